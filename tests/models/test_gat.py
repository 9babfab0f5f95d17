"""GAT and GATv2: against the layers of torch-geometric, against a loop over nodes, and what they refuse."""

import pytest
import torch
from autocast import assert_near_under_autocast
from graphs import CLASSES, NODES, WIDTH, write_graph
from torch import nn
from torch.nn import functional as F
from torch_geometric import nn as layers

import alignattn
from alignattn.attention.alignment import OTAlignment
from alignattn.models import MODELS
from alignattn.models.build import build_model
from alignattn.models.graphs import GATLayer
from alignattn.patching import patch_of
from alignattn.tasks.nodes.graph import read_graph
from alignattn.utils.errors import AlignAttnError

ATTENTIONS = ("soft", "sparsemax", "entmax15", "aa-gan", "aa-ot", "aa-ct", "qvi")


@pytest.fixture
def graph(tmp_path):
    return read_graph(write_graph(tmp_path / "g.npz"))


@pytest.fixture
def inputs(graph):
    return {"node": torch.arange(NODES), "features": graph.features, "edges": graph.edges}


def make_model(name="gat", attention=None, **fields):
    fields = {"num_features": WIDTH, "num_labels": CLASSES, "hidden_dim": 4, "num_attention_heads": 2, **fields}
    model = build_model(MODELS.load(name), fields, seed=0)
    return model if attention is None else alignattn.patch(model, attention)


def logits_of(model, inputs):
    with torch.no_grad():
        return model.eval()(**inputs).logits


@pytest.mark.parametrize("output_heads", [1, 3])
@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_it_computes_what_torch_geometric_does(name, output_heads, inputs, graph):
    model = make_model(name, num_output_heads=output_heads)
    layer_class = layers.GATConv if name == "gat" else layers.GATv2Conv
    theirs = [layer_class(WIDTH, 4, heads=2), layer_class(8, CLASSES, heads=output_heads, concat=False)]
    for mine, other in zip(model.layers, theirs, strict=True):
        nn.init.normal_(other.bias)
        copies = {"bias": other.bias}
        if name == "gat":
            copies |= {"shared_projection.weight": other.lin.weight}
            copies |= {"query_vector": other.att_dst[0], "key_vector": other.att_src[0]}
        else:
            copies |= {f"query_projection.{part}": getattr(other.lin_r, part) for part in ("weight", "bias")}
            copies |= {f"key_projection.{part}": getattr(other.lin_l, part) for part in ("weight", "bias")}
            copies |= {"own_score.vector": other.att[0]}
        mine.load_state_dict(copies)
    # Edges of torch-geometric start at the attended node.
    edges = graph.edges.flip(0)
    expected = theirs[1](F.elu(theirs[0](graph.features.to_dense(), edges)), edges)
    torch.testing.assert_close(logits_of(model, inputs), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_permuting_nodes_permutes_outputs(name, attention, inputs):
    model = make_model(name, attention)
    order = torch.randperm(NODES)
    places = order.argsort()
    moved = {**inputs, "features": inputs["features"].to_dense()[order], "edges": places[inputs["edges"]]}
    torch.testing.assert_close(logits_of(model, moved), logits_of(model, inputs)[order], atol=1e-5, rtol=1e-5)


def test_sparse_features_train_as_dense_ones(inputs):
    dense = inputs["features"].to_dense()
    by_rows = {**inputs, "features": dense.to_sparse_csr()}
    for attention in ("soft", "aa-ct"):
        model = make_model(attention=attention, dropout=0.0)
        gradients = []
        for given in ({**inputs, "features": dense}, by_rows):
            model.zero_grad()
            loss = model.train()(**given, labels=torch.arange(NODES) % CLASSES).loss
            (loss + alignattn.alignment_loss(model) if attention == "aa-ct" else loss).backward()
            gradients.append([values.grad.clone() for values in model.parameters() if values.grad is not None])
        torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("attention", ["soft", "aa-ct", "qvi"])
@pytest.mark.parametrize("by_rows", [False, True])
def test_autocast_trains_near_full_precision(by_rows, attention, inputs):
    features = inputs["features"].to_dense()
    given = {**inputs, "features": features.to_sparse_csr() if by_rows else features}
    model = make_model(attention=attention, dropout=0.0).train()
    assert_near_under_autocast(model, {**given, "labels": torch.arange(NODES) % CLASSES})


def test_dropout_drops_sparse_features_at_its_rate():
    model = make_model(num_features=500, dropout=0.6).train()
    features = torch.ones(400, 500).to_sparse_csr()
    dropped = model._dropped(features).to_dense()
    assert set(dropped.unique().tolist()) <= {0.0, 2.5}
    assert abs((dropped == 0).double().mean() - 0.6) < 0.01
    assert model.eval()._dropped(features) is features


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_every_parameter_gets_a_gradient(name, inputs):
    model = make_model(name, dropout=0.0, num_output_heads=2).train()
    model(**inputs, labels=torch.arange(NODES) % CLASSES).loss.backward()
    for path, parameter in model.named_parameters():
        assert parameter.grad.abs().max() > 0, path


@pytest.mark.parametrize("name", ["gat", "gatv2"])
def test_learns_32_nodes_by_heart(name):
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(32, WIDTH, generator=generator)
    # Each node has four neighbours and attends to itself.
    edges = torch.stack(
        [torch.arange(32).repeat(5), (torch.arange(32) + torch.tensor([[0], [1], [3], [7], [12]])).flatten() % 32]
    )
    labels = torch.randint(CLASSES, (32,), generator=generator)
    model = make_model(name, dropout=0.0, hidden_dim=16).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    given = {"node": torch.arange(32), "features": features, "edges": edges}
    for _ in range(150):
        optimizer.zero_grad()
        model(**given, labels=labels).loss.backward()
        optimizer.step()
    assert torch.equal(model(**given).logits.argmax(1), labels)


def queries_and_keys(model, inputs):
    """Return a_l ⊙ W h_i and a_r ⊙ W h_j of each layer, node by node and head by head."""
    states, found = inputs["features"].to_dense(), []
    for layer in model.layers:
        queries, keys = [], []
        for state in states:
            projected = (layer.shared_projection.weight @ state).view(layer.num_heads, -1)
            queries.append(layer.query_vector * projected)
            keys.append(layer.key_vector * projected)
        found.append([torch.stack(part).transpose(0, 1)[None] for part in (queries, keys)])
        outputs = []
        for node in range(NODES):
            neighbours = inputs["edges"][1][inputs["edges"][0] == node]
            heads = []
            for head in range(layer.num_heads):
                scores = torch.stack([queries[node][head].sum() + keys[other][head].sum() for other in neighbours])
                weights = F.leaky_relu(scores, 0.2).softmax(dim=0)
                values = layer.shared_projection.weight.view(layer.num_heads, -1, states.shape[1])[head] @ states.T
                heads.append((weights * values[:, neighbours]).sum(dim=1))
            outputs.append(torch.cat(heads) if layer.joins_heads else torch.stack(heads).mean(dim=0))
        states = F.elu(torch.stack(outputs) + layer.bias)
    return found


def test_an_alignment_on_a_graph_is_that_of_a_loop_over_nodes(inputs):
    model = make_model(attention="aa-ot", dropout=0.0).double()
    given = {**inputs, "features": inputs["features"].to_dense().double()}
    model.train()(**given)
    found = alignattn.alignment_loss(model) / patch_of(model).config.alignment_weight
    losses = [OTAlignment(query.shape[-1])(query, key) for query, key in queries_and_keys(model, given)]
    torch.testing.assert_close(found, torch.stack(losses).mean())
    assert all((query - key).abs().max() > 0.01 for query, key in queries_and_keys(model, given))


def test_the_alignment_updates_only_what_computes_queries_and_keys(inputs):
    model = make_model(attention="aa-ct")
    model.train()(**inputs)
    alignattn.alignment_loss(model).backward()
    first, second = model.layers
    for layer in (first, second):
        for values in (layer.shared_projection.weight, layer.query_vector, layer.key_vector):
            assert values.grad.abs().sum() > 0
        assert layer.bias.grad is None


class OneCloud(GATLayer):
    """Uses W h as queries and as keys."""

    def queries_and_keys(self, projected):
        return projected, projected


def test_one_cloud_for_queries_and_keys_is_refused(inputs):
    model = make_model()
    model.layers[0].__class__ = OneCloud
    with pytest.raises(AlignAttnError, match="nothing to align"):
        alignattn.patch(model, "aa-ct")


def test_balance_is_refused(inputs):
    model = make_model()
    with pytest.raises(AlignAttnError, match=r"a score of its own \(GAT\)"):
        alignattn.balance(model, [inputs, inputs])


def test_features_of_another_width_are_one_line(inputs):
    with pytest.raises(AlignAttnError, match="the graph has 12 features per node, and the model expects 5"):
        make_model(num_features=5)(**inputs)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_patch_and_unpatch_leave_the_model_as_it_was(attention, inputs):
    model = make_model()
    before, names = logits_of(model, inputs), list(model.state_dict())
    alignattn.patch(model, attention)
    with alignattn.collect(model) as seen:
        patched = logits_of(model, inputs)
    assert [list(layer.weights.shape) for layer in seen.layers] == [
        [1, 2, inputs["edges"].shape[1]],
        [1, 1, inputs["edges"].shape[1]],
    ]
    assert torch.equal(patched, before) == (not patch_of(model).config.changes_function)
    alignattn.unpatch(model)
    assert list(model.state_dict()) == names
    assert torch.equal(logits_of(model, inputs), before)
