"""Graphs from files: their tensors and tasks, and the one-line message about a bad file."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import CLASSES, NODES, WIDTH, graph_arrays, write_graph

from alignattn.tasks.definitions import get_task
from alignattn.tasks.nodes.graph import SPLITS, read_graph
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError


def test_edges_go_both_ways_once_and_every_node_attends_itself(tmp_path):
    graph = read_graph(write_graph(tmp_path / "g.npz"))
    found = {tuple(edge) for edge in graph.edges.T.tolist()}
    wanted = {tuple(edge) for edge in graph_arrays()["edges"].tolist()}
    assert found == wanted | {edge[::-1] for edge in wanted} | {(node, node) for node in range(NODES)}
    assert len(found) == graph.edges.shape[1]
    assert (graph.edges[0].diff() >= 0).all()
    assert [edge for edge in found if 29 in edge] == [(29, 29)]


@pytest.mark.parametrize("is_dense", [True, False])
def test_rows_of_features_sum_to_one_unless_they_are_empty(is_dense, tmp_path):
    arrays = graph_arrays()
    features = np.zeros((NODES, WIDTH), np.float32)
    features[arrays["feat_row"], arrays["feat_col"]] = arrays["feat_val"]
    features[5], features[6, 0] = 0, -4
    row, column = features.nonzero()
    sparse = {"feat_row": row, "feat_col": column, "feat_val": features[row, column]}
    changed = dict.fromkeys((*sparse, "feat_shape")) | {"features": features} if is_dense else sparse
    graph = read_graph(write_graph(tmp_path / "g.npz", **changed))
    expected = torch.from_numpy(features / np.maximum(np.abs(features).sum(axis=1, keepdims=True), 1e-30))
    torch.testing.assert_close(graph.features.to_dense(), expected)


def test_sparse_features_are_stored_as_csr(tmp_path):
    few = {"feat_row": np.arange(NODES), "feat_col": np.arange(NODES) % WIDTH, "feat_val": np.ones(NODES)}
    assert read_graph(write_graph(tmp_path / "g.npz", **few)).features.layout == torch.sparse_csr


def test_a_file_defines_its_task(tmp_path):
    names = np.array(["a", "b", "c"])
    assert get_task(str(write_graph(tmp_path / "named.npz", label_names=names))).labels == ("a", "b", "c")
    task = get_task(str(write_graph(tmp_path / "g.npz", test_idx=None)))
    assert (task.name, task.labels, task.evaluation_splits) == ("g", tuple(map(str, range(CLASSES))), ("validation",))
    rows = load_rows(task)
    assert rows.train["node"][:] == list(range(12))
    assert rows.evaluation["validation"]["label"][:] == [number % CLASSES for number in range(12, 18)]
    with pytest.raises(AlignAttnError, match=r"no split 'test' \(there: train, validation\)"):
        load_rows(replace(task, evaluation_splits=("test",)))


def test_nodes_without_a_label_are_left_out_and_counted(tmp_path):
    rows = load_rows(get_task(str(write_graph(tmp_path / "g.npz", train_idx=np.array([0, 1, 2, 24, 25])))))
    assert (len(rows.train), rows.dropped["train"]) == (3, 2)


BAD = {
    "has no 'labels'": {"labels": None},
    "has no 'train_idx'": {"train_idx": None},
    "there is neither val_idx nor test_idx": {"val_idx": None, "test_idx": None},
    "train_idx lists no training nodes": {"train_idx": np.array([], int)},
    "train_idx contains a node twice": {"train_idx": np.array([1, 1])},
    "node 11 is in train_idx and in val_idx": {"val_idx": np.arange(11, 18)},
    "test_idx holds 99, and must be from 0 to 29": {"test_idx": np.array([99])},
    "edges is [3, 3]: it must be [edges, 2]": {"edges": np.zeros((3, 3), int)},
    "edges holds -1": {"edges": np.array([[0, -1]])},
    "edges is float64": {"edges": np.zeros((3, 2))},
    "labels holds -2": {"labels": np.full(NODES, -2)},
    "labels holds 1 class(es)": {"labels": np.zeros(NODES, int)},
    "features hold NaN or infinity": {"feat_val": np.full(len(graph_arrays()["feat_val"]), np.nan)},
    "features of 4 nodes and 12 columns": {
        "feat_shape": np.array([4, WIDTH]),
        "feat_row": np.zeros_like(graph_arrays()["feat_row"]),
    },
    "feat_row, feat_col, feat_val, feat_shape differ in length": {"feat_val": np.ones(2)},
    "pickled objects are refused": {"labels": np.array([{}] * NODES, dtype=object)},
}


@pytest.mark.parametrize("message", BAD)
def test_a_bad_graph_is_refused_in_one_line(message, tmp_path):
    path = tmp_path / "bad.npz"
    np.savez(
        path, allow_pickle=True, **{name: it for name, it in (graph_arrays() | BAD[message]).items() if it is not None}
    )
    with pytest.raises(AlignAttnError) as caught:
        get_task(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_file_and_a_file_without_a_graph_are_refused(tmp_path):
    with pytest.raises(AlignAttnError, match="there is no file"):
        get_task(str(tmp_path / "none.npz"))
    (tmp_path / "text.npz").write_text("no archive")
    with pytest.raises(AlignAttnError, match="cannot be read"):
        get_task(str(tmp_path / "text.npz"))


def test_the_splits_have_the_usual_names():
    assert tuple(SPLITS) == ("train", "validation", "test")
