"""t-SNE of a graph attention layer's outputs for the nodes of a graph."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from alignattn.commands.figure import MIN_TOKENS, FigureOptions
from alignattn.finetuning.heads import in_plane
from alignattn.finetuning.predictor import load_predictor
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_folder import read_finished_run
from alignattn.reports.plots.bars import PointPanel, draw_points
from alignattn.tasks import NodeClassification
from alignattn.tasks.nodes.graph import Graph, graph_of
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class NodeOutputs:
    """The outputs of a layer for the nodes with a class.

    Attributes:
        layer: number of the layer, from 0.
        states: outputs, `[n, width]`.
        labels: classes, `[n]`.
        names: names of the classes.
    """

    layer: int
    states: NDArray[np.float32]
    labels: NDArray[np.int64]
    names: tuple[str, ...]


def draw_nodes(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the t-SNE of a layer's outputs for the nodes, one panel per run and one colour per class.

    By default it is figure 2 of Veličković et al. 2018: the outputs of the last layer but one. The title of a panel has
    the silhouette of the classes (Rousseeuw 1987). It is computed before the projection, in the space of the outputs: 1
    means that classes are far apart, 0 that they overlap.
    """
    from sklearn.metrics import silhouette_score

    panels = []
    for name, folder in runs.items():
        seen = node_outputs(folder, options)
        count = min(len(seen.labels), options.max_tokens)
        draw = np.random.default_rng(options.seed)
        chosen = np.sort(draw.choice(len(seen.labels), count, replace=False))
        places, labels = np.asarray(in_plane(seen.states[chosen], options.seed)), seen.labels[chosen]
        clouds = {
            title: [(float(x), float(y)) for x, y in places[labels == number]]
            for number, title in enumerate(seen.names)
            if (labels == number).any()
        }
        number = f"{count} nodes" if count == len(seen.labels) else f"{count} of {len(seen.labels)} nodes"
        silhouette = silhouette_score(seen.states, seen.labels)
        panels.append(PointPanel(f"{name}\nlayer {seen.layer}, {number}\nsilhouette {silhouette:.3f}", clouds))
    title = "t-SNE of nodes, coloured by class"
    return draw_points(panels, x_label="t-SNE dimension 1", y_label="t-SNE dimension 2", title=title)


def node_outputs(folder: Path, options: FigureOptions) -> NodeOutputs:
    """Return the outputs of a layer for all nodes with a class.

    Args:
        folder: folder of the run.
        options: options with the layer, and the graph's folder if it has moved.

    Raises:
        AlignAttnError: if the run has no graph or no such layer, or if the classes of the graph have no silhouette.
    """
    run = read_finished_run(folder, "--run")
    if not isinstance(run.task, NodeClassification):
        raise AlignAttnError(
            f"--run {folder}: task {run.task.name!r} has no graph: draw its heads with `alignattn figure tsne`"
        )
    graph = graph_of(next(iter(load_run_evaluation(run.options, options.data_dir).evaluation.values())))
    model: Any = load_predictor(run, device="cpu").model
    count = len(model.layers)
    layer = max(count - 2, 0) if options.layer is None else options.layer
    if layer >= count:
        raise AlignAttnError(f"--layer {layer}: {folder.name} has layers 0 to {count - 1}")
    is_labelled = graph.labels >= 0
    labels = graph.labels[is_labelled]
    if len(labels) < MIN_TOKENS or len(np.unique(labels)) in (1, len(labels)):
        raise AlignAttnError(
            f"--run {folder}: its graph has {len(labels)} nodes with a class: the figure needs two classes, and two "
            "nodes of one class"
        )
    states = _states(model, graph, layer)[torch.from_numpy(is_labelled)].numpy()
    return NodeOutputs(layer, states, labels, graph.class_names)


def _states(model: nn.Module, graph: Graph, layer: int) -> Tensor:
    """The outputs of a layer, `[n, width]`; those of the last are the logits."""
    layers: Any = model.layers
    kept: list[Tensor] = []
    if layer + 1 < len(layers):
        handle = layers[layer + 1].register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    else:
        handle = layers[layer].register_forward_hook(lambda module, args, states: kept.append(states))
    try:
        with torch.inference_mode():
            model(torch.arange(graph.num_nodes), graph.features, graph.edges)
    finally:
        handle.remove()
    return kept[0].clone()
