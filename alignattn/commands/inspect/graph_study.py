"""What the heads of a graph's model do: how the nodes' queries and keys lie, and how weights spread over neighbours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alignattn.attention.masks import Edges, Segments
from alignattn.commands.inspect import InspectOptions
from alignattn.commands.inspect.head_study import POOLED_TOKENS, pooled_distances, query_key_distances
from alignattn.commands.inspect.report import COLUMN_NAMES, FILES, HEADS_PICTURE, HEADS_TABLE, LETTERS, PANEL_TITLES
from alignattn.finetuning.predictor import load_predictor
from alignattn.finetuning.run_folder import read_finished_run
from alignattn.patching import collect
from alignattn.reports.plots import HeatMapPanel, draw_heat_maps, write_figure
from alignattn.tasks import NodeClassification
from alignattn.tasks.nodes.graph import Graph, graph_of
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished, write_csv
from alignattn.utils.publishing import published_names
from alignattn.utils.text_tables import READABLE_WIDTH, folded_tables

MEASURES = (
    *("sliced_wasserstein", "energy_distance", "spread_distance", "distance_floor", "c2st_accuracy"),
    *("entropy", "sparsity"),
)
"""Those of heads of texts that a graph has: its nodes have no order, and its scores no basis to choose."""
OF_TEXTS = ("max_eval_samples", "max_length", "batch_size")
"""Options that nothing of a graph hangs on."""


@dataclass(frozen=True)
class GraphStudy:
    """The measures of a model's heads on a graph.

    Attributes:
        name: of its folder.
        layers: of each layer, whose heads may be fewer than another's, `[H]` float64 by the name in `MEASURES`.
        uniform_entropy: of equal weights over each node's neighbours, in nats, mean over the nodes that have any.
    """

    name: str
    layers: Sequence[dict[str, Tensor]]
    uniform_entropy: float

    @property
    def heads(self) -> list[tuple[int, int]]:
        """Each layer and head, from 0."""
        return [(layer, head) for layer, by_name in enumerate(self.layers) for head in range(len(by_name["entropy"]))]

    def value(self, name: str, layer: int, head: int) -> float:
        """A measure of a head; NaN where the layer has fewer."""
        values = self.layers[layer][name]
        return float(values[head]) if head < len(values) else float("nan")


def inspect_graph(options: InspectOptions, task: NodeClassification) -> None:
    """Study the heads of one model or two on a task's graph, print the table, and write it and the picture."""
    folder = Path(options.output_dir)
    check_free(folder, FILES)
    defaults = {field.name: field.default for field in fields(options)}
    if idle := [f"--{name}" for name in OF_TEXTS if getattr(options, name) != defaults[name]]:
        raise AlignAttnError(f"{', '.join(idle)}: --task {options.task} is a graph, all of whose nodes are read")
    rows = load_rows(task, need_train=False, data_dir=options.data_dir)
    graph = graph_of(next(iter(rows.evaluation.values())))
    names = published_names(options.models())
    studies = [
        study_graph(Path(model), name, graph, options.seed) for model, name in zip(options.models(), names, strict=True)
    ]
    if len({tuple(study.heads) for study in studies}) > 1:
        raise AlignAttnError(f"{' and '.join(names)} differ in layers or heads: compare models of the same shape")
    with unfinished(folder):
        write_csv(folder / HEADS_TABLE, _lines(studies, task, graph))
        write_figure(_picture(studies, task), folder / HEADS_PICTURE)
    print(f"{_rendered(studies, task, graph)}\nwritten to {folder}")


def study_graph(folder: Path, name: str, graph: Graph, seed: int) -> GraphStudy:
    """Return the measures of the heads of a finished run's model.

    Args:
        folder: of the run.
        name: what it is called.
        graph: to attend on.
        seed: draws the nodes whose queries and keys are compared, where there are more than `POOLED_TOKENS`.

    Raises:
        AlignAttnError: if the run is of no graph, or of nodes with other features.
    """
    run = read_finished_run(folder, "--model")
    if not isinstance(run.task, NodeClassification):
        raise AlignAttnError(f"--model {folder}: task {run.task.name!r} is of no graph: give --task of texts")
    model: Any = load_predictor(run, device="cpu").model
    with torch.inference_mode(), collect(model) as seen:
        model(torch.arange(graph.num_nodes), graph.features, graph.edges)
    neighbours = Edges(graph.edges[0], graph.edges[1], graph.num_nodes).by_query
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    nodes = order[:POOLED_TOKENS].sort().values
    layers = []
    for layer in seen.layers:
        # `collect` records them of every layer.
        assert layer.query is not None
        assert layer.key is not None
        assert layer.weights is not None
        query, key = layer.query[:, :, nodes], layer.key[:, :, nodes]
        distances = query_key_distances(query, key) | pooled_distances([(query, key)], balances=False)
        of_weights = weight_measures(layer.weights[0], neighbours)
        layers.append(of_weights | {name: distances[name][0] for name in MEASURES if name in distances})
    degrees = torch.bincount(neighbours.index, minlength=neighbours.count)
    return GraphStudy(name, layers, float(degrees[degrees > 0].double().log().mean()))


def weight_measures(weights: Tensor, neighbours: Segments) -> dict[str, Tensor]:
    """Return what the weights of edges `[H, E]` tell of each head, `[H]` float64.

    `entropy`: of a node's weights in nats, mean over the nodes that attend any. `sparsity`: share of the edges whose
    weight is exactly 0.
    """
    by_edge = weights.double().T
    attends = torch.bincount(neighbours.index, minlength=neighbours.count) > 0
    return {
        "entropy": neighbours.sum(torch.special.entr(by_edge))[attends].mean(dim=0),
        "sparsity": (by_edge == 0).double().mean(dim=0),
    }


def _shown(studies: Sequence[GraphStudy]) -> list[str]:
    """The measures that are not 0 everywhere, as the zeros of a softmax are."""
    return [name for name in MEASURES if any((layer[name] != 0).any() for study in studies for layer in study.layers)]


def _rendered(studies: Sequence[GraphStudy], task: NodeClassification, graph: Graph) -> str:
    shown = _shown(studies)
    lines = [
        [str(layer), str(head), *("/".join(f"{s.value(name, layer, head):.3f}" for s in studies) for name in shown)]
        for layer, head in studies[0].heads
    ]
    measures = [COLUMN_NAMES.get(name, name) for name in shown]
    names = [f"{letter} = {study.name}" for letter, study in zip(LETTERS, studies, strict=False)]
    return "\n".join(
        [
            *folded_tables(["layer", "head", *measures], lines, READABLE_WIDTH, keys=2),
            *(names if len(studies) > 1 else [studies[0].name]),
            f"{task.name}: {graph.num_nodes} nodes; queries and keys of {min(graph.num_nodes, POOLED_TOKENS)} of them.",
            "sliced, energy: sliced Wasserstein and energy distance of queries and keys in units of their size.",
            "as is, floor: the sliced distance over the spread, and between two halves of one cloud.",
            "told: the share of queries and keys that a discriminator tells apart; 0.5 is chance.",
            f"entropy: of a node's weights, in nats; equal ones have {studies[0].uniform_entropy:.3f}.",
            "zeros: share of edges whose weight is exactly 0. A measure that is 0 for all heads is left out.",
        ]
    )


def _picture(studies: Sequence[GraphStudy], task: NodeClassification) -> Any:
    layers, heads = (range(1 + max(numbers)) for numbers in zip(*studies[0].heads, strict=True))
    panels = [
        HeatMapPanel(
            PANEL_TITLES[name],
            [str(layer) for layer in layers],
            {
                letter: [[study.value(name, layer, head) for head in heads] for layer in layers]
                for letter, study in zip(LETTERS, studies, strict=False)
            },
        )
        for name in _shown(studies)
    ]
    title = "\n".join([*(study.name for study in studies), f"nodes of {task.name}"])
    return draw_heat_maps(panels, x_label="head", y_label="layer", title=title)


def _lines(studies: Sequence[GraphStudy], task: NodeClassification, graph: Graph) -> Iterator[dict[str, Any]]:
    for study in studies:
        for layer, head in study.heads:
            yield {
                "model": study.name,
                "layer": layer,
                "head": head,
                **{name: study.value(name, layer, head) for name in MEASURES},
                "entropy_uniform": study.uniform_entropy,
                "data": task.name,
                "nodes": graph.num_nodes,
            }
