"""Batches of nodes: whole graphs, and samples around some nodes."""

import pytest
import torch
from graphs import CLASSES, WIDTH, write_graph

from alignattn.models import MODELS
from alignattn.models.build import build_model
from alignattn.tasks.nodes.batches import ALL, NodeBatches
from alignattn.tasks.nodes.graph import read_graph


@pytest.fixture(params=[True, False], ids=["by_rows", "dense"])
def graph(request, tmp_path):
    graph = read_graph(write_graph(tmp_path / "g.npz"))
    features = graph.features.to_dense()
    features = features.to_sparse_csr() if request.param else features
    return type(graph)(features, graph.edges, graph.labels, graph.label_names, graph.splits)


def rows(*nodes):
    return [{"node": node, "label": node % CLASSES} for node in nodes]


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_sampling_all_neighbours_gives_the_outputs_of_the_whole_graph(name, graph):
    model = build_model(MODELS.load(name), {"num_features": WIDTH, "num_labels": CLASSES}, seed=0)
    asked = rows(4, 17, 29, 4)
    with torch.no_grad():
        whole = model(**NodeBatches(graph)(asked))
        drawn = NodeBatches(graph, (ALL, ALL))(asked)
        part = model(**drawn)
    torch.testing.assert_close(part.logits, whole.logits)
    torch.testing.assert_close(part.loss, whole.loss)
    assert len(drawn["features"]) < len(graph.features)


def test_each_node_has_itself_and_at_most_fan_out_neighbours(graph):
    torch.manual_seed(0)
    batches = NodeBatches(graph, (2, 1))
    batch = batches(rows(3, 8))
    counts = torch.bincount(batch["edges"][0])
    own = batch["edges"][0] == batch["edges"][1]
    assert torch.equal(batch["edges"][0][own].unique(), batch["edges"][0].unique())
    assert counts.max() == 3
    assert batches(rows(29))["edges"].tolist() == [[0], [0]]
    known = {tuple(edge) for edge in graph.edges.T.tolist()}
    drawn = [batches._around(torch.tensor([3]))[1] for _ in range(5)]
    assert all(tuple(edge) in known for edges in drawn for edge in edges.T.tolist())
    assert len({edges.numpy().tobytes() for edges in drawn}) > 1
