"""Measures of the heads of a graph model: distances of the nodes' queries and keys, and the spread of the weights."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from alignattn.attention.masks import Edges, Segments
from alignattn.commands.inspect import InspectOptions
from alignattn.commands.inspect.head_study import POOLED_TOKENS, pooled_distances, query_key_distances
from alignattn.commands.inspect.report import FILES, LAYER_NAME, display_names, head_tables, write_heads
from alignattn.finetuning.heads import recording_all_layers
from alignattn.finetuning.predictor import load_predictor
from alignattn.finetuning.run_folder import read_finished_run
from alignattn.patching import collect, patch_of
from alignattn.tasks import NodeClassification
from alignattn.tasks.nodes.graph import Graph, graph_of
from alignattn.tasks.rows import load_rows
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished
from alignattn.utils.publishing import published_names

MEASURES = (
    *("sliced_wasserstein", "energy_distance", "spread_distance", "distance_floor", "c2st_accuracy"),
    *("entropy", "sparsity"),
)
"""The measures that apply to graphs: nodes have no order, and their scores no free basis."""
OF_TEXTS = ("max_eval_samples", "max_length", "batch_size")
"""Options that do not apply to a graph."""


@dataclass(frozen=True)
class GraphStudy:
    """The measures of a model's heads on a graph.

    Attributes:
        name: the name of the run folder.
        frame: a row per layer and head with each of `MEASURES`, and `entropy_uniform`: the entropy of equal weights of
            each node's neighbours, averaged over nodes with neighbours. Layers may differ in their number of heads.
    """

    name: str
    frame: pd.DataFrame


def inspect_graph(options: InspectOptions, task: NodeClassification) -> None:
    """Study the heads of one model or two on a task's graph, print the table, and write the table and the picture."""
    folder = Path(options.output_dir)
    check_free(folder, FILES)
    defaults = {field.name: field.default for field in fields(options)}
    if idle := [f"--{name}" for name in OF_TEXTS if getattr(options, name) != defaults[name]]:
        raise AlignAttnError(f"{', '.join(idle)}: --task {options.task} is a graph and reads all its nodes")
    rows = load_rows(task, need_train=False, data_dir=options.data_dir)
    graph = graph_of(next(iter(rows.evaluation.values())))
    names = published_names(options.models())
    studies = [
        study_graph(Path(model), name, graph, options.seed) for model, name in zip(options.models(), names, strict=True)
    ]
    if len({tuple(zip(one.frame["layer"], one.frame["head"], strict=True)) for one in studies}) > 1:
        raise AlignAttnError(
            f"{' and '.join(names)} differ in layers or heads: compare models with the same numbers of both"
        )
    frames = [study.frame.assign(data=task.name, nodes=graph.num_nodes) for study in studies]
    with unfinished(folder):
        write_heads(folder, frames, "\n".join([*display_names(studies), f"nodes of {task.name}"]))
    print("\n".join([*head_tables(frames), *display_names(studies), *_caption(task, graph), f"written to {folder}"]))


def study_graph(folder: Path, name: str, graph: Graph, seed: int) -> GraphStudy:
    """Return the measures of the heads of a finished run's model.

    Args:
        folder: the run folder.
        name: the model's name in the table.
        graph: the graph.
        seed: samples the nodes whose queries and keys are compared, if there are more than `POOLED_TOKENS`.

    Raises:
        AlignAttnError: if the run's task has no graph, or the graph has another number of features than the model.
    """
    run = read_finished_run(folder, "--model")
    if not isinstance(run.task, NodeClassification):
        raise AlignAttnError(f"--model {folder}: task {run.task.name!r} has no graph: give a --task with texts")
    model: Any = recording_all_layers(load_predictor(run, device="cpu").model)
    with torch.inference_mode(), collect(model) as seen:
        model(torch.arange(graph.num_nodes), graph.features, graph.edges)
    neighbours = Edges(graph.edges[0], graph.edges[1], graph.num_nodes).by_query
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(seed))
    nodes = order[:POOLED_TOKENS].sort().values
    degrees = torch.bincount(neighbours.index, minlength=neighbours.count)
    uniform_entropy = float(degrees[degrees > 0].double().log().mean())
    lines = []
    numbers = patch_of(model).config.layers or range(len(seen.layers))
    for number, layer in zip(numbers, seen.layers, strict=True):
        # `collect` records them for every layer.
        assert layer.query is not None
        assert layer.key is not None
        assert layer.weights is not None
        query, key = layer.query[:, :, nodes], layer.key[:, :, nodes]
        distances = query_key_distances(query, key) | pooled_distances([(query, key)], balances=False)
        measures = {name: values[0] for name, values in distances.items()}
        measures |= weight_measures(layer.weights[0], neighbours)
        lines += [
            {
                "model": name,
                LAYER_NAME: str(number),
                "layer": number,
                "attends": "nodes",
                "head": head,
                **{measure: float(measures[measure][head]) for measure in MEASURES},
                "entropy_uniform": uniform_entropy,
            }
            for head in range(len(measures["entropy"]))
        ]
    return GraphStudy(name, pd.DataFrame(lines))


def weight_measures(weights: Tensor, neighbours: Segments) -> dict[str, Tensor]:
    """Return the measures of edge weights `[H, E]`, each `[H]` float64.

    `entropy`: entropy of a node's weights in nats, averaged over the nodes with neighbours. `sparsity`: share of the
    edges whose weight is exactly 0.
    """
    by_edge = weights.double().T
    attends = torch.bincount(neighbours.index, minlength=neighbours.count) > 0
    return {
        "entropy": neighbours.sum(torch.special.entr(by_edge))[attends].mean(dim=0),
        "sparsity": (by_edge == 0).double().mean(dim=0),
    }


def _caption(task: NodeClassification, graph: Graph) -> list[str]:
    return [
        f"{task.name}: {graph.num_nodes} nodes; queries and keys of {min(graph.num_nodes, POOLED_TOKENS)} of them.",
        "sliced, energy: sliced Wasserstein and energy distance of queries and keys in units of their size.",
        "as is, floor: the sliced distance over the spread, and the same between two halves of one side.",
        "c2st: accuracy of a classifier that separates queries from keys; 0.5 is chance.",
        "entropy: entropy of a node's weights in nats; uniform: with equal weights.",
        "zeros: share of edges whose weight is exactly 0. A measure that is 0 for all heads is omitted.",
    ]
