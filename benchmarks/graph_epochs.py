"""Time of an epoch of GAT on Cora, compared with torch-geometric's GATConv example, and the cost of an alignment.

    OMP_NUM_THREADS=1 python benchmarks/graph_epochs.py --graph ../shared/data/planetoid/cora.npz --repeats 40

An epoch is that of `examples/gat.py` of torch-geometric: a training step on the whole graph, Adam included, and an
evaluation of all nodes. The example has two `GATConv` on dense features; ours reads only the nonzero features, and
aligns as many sampled nodes as `alignattn finetune` does. In every repeat each subject runs one epoch, in rotating
order, and its processor time is divided by that of plain attention and of the example in the same repeat, so that other
processes on the machine have little effect. One thread. Prints medians and quartiles.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch_geometric.nn import GATConv

import alignattn
from alignattn.attention.config import PLAIN_ATTENTION, AttentionConfig
from alignattn.models import capabilities_of
from alignattn.models.graphs import GatConfig, GatForNodeClassification
from alignattn.tasks.nodes.graph import Graph, read_graph

SEED = 42
RATE, L2 = 0.005, 5e-4
HIDDEN, HEADS, DROPOUT = 8, 8, 0.6
WARM_UP = 4
EXAMPLE = "torch-geometric"

Epoch = Callable[[], None]


class Example(nn.Module):
    """The network of torch-geometric's example."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.first = GATConv(width, HIDDEN, HEADS, dropout=DROPOUT)
        self.second = GATConv(HIDDEN * HEADS, classes, heads=1, concat=False, dropout=DROPOUT)

    def forward(self, states: Tensor, edges: Tensor) -> Tensor:
        """Return logits `[n, classes]` of nodes `[n, width]`."""
        states = F.elu(self.first(F.dropout(states, DROPOUT, self.training), edges))
        return self.second(F.dropout(states, DROPOUT, self.training), edges)


def example_epoch(graph: Graph) -> Epoch:
    """Return the epoch of the example: a step on the training nodes, and an evaluation of all nodes."""
    features = graph.features.to_dense()
    # The layer adds self-loops, and expects the attending node in the second row.
    edges = graph.edges.flip(0)[:, graph.edges[0] != graph.edges[1]]
    nodes, labels = (torch.from_numpy(part) for part in (graph.splits["train"], graph.labels))
    model = Example(graph.num_features, len(graph.class_names))
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=L2)

    def epoch() -> None:
        model.train()
        optimizer.zero_grad()
        F.cross_entropy(model(features, edges)[nodes], labels[nodes]).backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(features, edges).argmax(dim=-1)

    return epoch


def own_epoch(graph: Graph, attention: str) -> Epoch:
    """Return the same epoch for this package's model, with a plain training loop."""
    config = GatConfig(num_features=graph.num_features, num_labels=len(graph.class_names))
    model = GatForNodeClassification(config)
    if attention != PLAIN_ATTENTION:
        config_of_slots = AttentionConfig.resolve(attention)
        drawn = capabilities_of("gat").default_slot_options["alignment"].get(str(config_of_slots.alignment), {})
        alignattn.attach(model, config_of_slots, alignment_options=dict(drawn))
    nodes, labels = torch.from_numpy(graph.splits["train"]), torch.from_numpy(graph.labels)
    batch: dict[str, Any] = {"features": graph.features, "edges": graph.edges}
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, weight_decay=L2)

    def epoch() -> None:
        model.train()
        optimizer.zero_grad()
        loss = model(nodes, **batch, labels=labels[nodes]).loss
        if attention != PLAIN_ATTENTION:
            loss = loss + alignattn.alignment_loss(model)
        loss.backward()
        optimizer.step()
        model.eval()
        with torch.no_grad():
            model(torch.arange(graph.num_nodes), **batch).logits.argmax(dim=-1)

    return epoch


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--graph", type=Path, required=True)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--attentions", nargs="+", default=["aa-gan", "aa-ct"])
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    graph = read_graph(options.graph)
    epochs = {EXAMPLE: example_epoch(graph)}
    epochs |= {attention: own_epoch(graph, attention) for attention in (PLAIN_ATTENTION, *options.attentions)}
    names = list(epochs)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(-WARM_UP, options.repeats):
        first = repeat % len(names)
        for name in (*names[first:], *names[:first]):
            start = time.process_time()
            epochs[name]()
            taken = time.process_time() - start
            if repeat >= 0:
                seconds[name].append(taken)
    print(f"{options.graph.name}, {options.repeats} repeats, torch {torch.__version__}")
    for name, of_name in seconds.items():
        ratios = [_ratio(of_name, seconds[other]) for other in (PLAIN_ATTENTION, EXAMPLE)]
        shown = f"{ratios[0]} of {PLAIN_ATTENTION}, {ratios[1]} of {EXAMPLE}"
        print(f"{name:16} {1000 * statistics.median(of_name):6.1f} ms, {shown}", flush=True)


def _ratio(of_one: list[float], of_other: list[float]) -> str:
    low, median, high = statistics.quantiles([a / b for a, b in zip(of_one, of_other, strict=True)], n=4)
    return f"{median:.2f} ({low:.2f} to {high:.2f})"


if __name__ == "__main__":
    main()
