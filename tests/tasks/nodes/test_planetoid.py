"""The public citation graphs, loaded by torch-geometric from raw files in the collection's format."""

import pickle

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from alignattn.tasks.nodes.graph import planetoid_file, read_graph
from alignattn.utils.errors import AlignAttnError

CLASSES, WIDTH, TRAIN, VALIDATION, TEST = 3, 5, 6, 500, 4
"""The loader uses the 500 nodes after the training nodes as the validation split."""

BEFORE_TEST = TRAIN + VALIDATION + 2
NODES = BEFORE_TEST + TEST


def write_raw(folder):
    """Write a graph in the collection's format, its test nodes not in order; return its features, labels and edges."""
    draw = np.random.default_rng(0)
    features = (draw.random((NODES, WIDTH)) < 0.5).astype(np.float32)
    labels = draw.integers(0, CLASSES, NODES)
    edges = draw.integers(0, NODES, (900, 2))
    test = BEFORE_TEST + np.array([2, 0, 3, 1])
    neighbours = {node: [] for node in range(NODES)}
    for first, second in edges.tolist():
        neighbours[first].append(second)
        neighbours[second].append(first)
    one_hot = np.eye(CLASSES, dtype=np.int32)[labels]
    parts = {
        "x": csr_matrix(features[:TRAIN]),
        "allx": csr_matrix(features[:BEFORE_TEST]),
        "tx": csr_matrix(features[test]),
        "y": one_hot[:TRAIN],
        "ally": one_hot[:BEFORE_TEST],
        "ty": one_hot[test],
        "graph": neighbours,
    }
    folder.mkdir(parents=True)
    for name, part in parts.items():
        (folder / f"ind.cora.{name}").write_bytes(pickle.dumps(part))
    (folder / "ind.cora.test.index").write_text("".join(f"{node}\n" for node in test))
    return features, labels, edges


def test_raw_files_become_the_graph(tmp_path):
    features, labels, edges = write_raw(tmp_path / "planetoid" / "Cora" / "raw")
    path = planetoid_file("cora", "Cora", "planetoid", str(tmp_path))
    graph = read_graph(path)
    assert graph.labels.tolist() == labels.tolist()
    sums = np.maximum(features.sum(axis=1, keepdims=True), 1)
    assert np.allclose(graph.features.to_dense().numpy(), features / sums)
    both_ways = {tuple(edge) for edge in edges.tolist()} | {tuple(edge[::-1]) for edge in edges.tolist()}
    expected = sorted(both_ways | {(node, node) for node in range(NODES)})
    assert graph.edges.T.tolist() == [list(edge) for edge in expected]
    assert {name: nodes.tolist() for name, nodes in graph.splits.items()} == {
        "train": list(range(TRAIN)),
        "validation": list(range(TRAIN, TRAIN + VALIDATION)),
        "test": list(range(BEFORE_TEST, NODES)),
    }
    # It is converted once: the raw files are not read again.
    (tmp_path / "planetoid" / "Cora" / "raw" / "ind.cora.x").unlink()
    assert planetoid_file("mine", "cora", "planetoid", str(tmp_path)) == path


def test_tasks_of_one_name_do_not_share_a_graph(tmp_path):
    write_raw(tmp_path / "planetoid" / "Cora" / "raw")
    planetoid_file("mine", "Cora", "planetoid", str(tmp_path))
    with pytest.raises(AlignAttnError, match=r"no graph on this machine: give --data_dir DIR with own/mine\.npz"):
        planetoid_file("mine", "", "own", str(tmp_path))


def test_unreadable_raw_files_are_refused_in_one_line(tmp_path):
    write_raw(tmp_path / "planetoid" / "Cora" / "raw")
    (tmp_path / "planetoid" / "Cora" / "raw" / "ind.cora.graph").write_bytes(b"torn")
    with pytest.raises(AlignAttnError, match=r"cannot load Cora by torch-geometric: .*give --data_dir DIR") as raised:
        planetoid_file("cora", "Cora", "planetoid", str(tmp_path))
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "planetoid" / "cora.npz").exists()
