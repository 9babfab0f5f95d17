"""`alignattn figure`: one picture of runs side by side, as PNG, SVG or PDF."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from alignattn.finetuning.results import PREDICTIONS_FILE
from alignattn.finetuning.run_folder import (
    check_run_folder,
    evaluation_digests,
    read_finished_run,
    read_run_options,
    short_names,
)
from alignattn.reports.plots import (
    HeatMapPanel,
    PointPanel,
    draw_curves,
    draw_heat_maps,
    draw_points,
    draw_reliability,
    write_figure,
)
from alignattn.tasks import MultipleChoice, NodeClassification, TextClassification
from alignattn.tasks.names import FIRST, MAX_TEXTS, PROBABILITIES, VALIDATION
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.options import REQUIRED, Count, InputDir, Options, OutputFile, Seed, option

ENDINGS = (".png", ".svg", ".pdf")
MIN_TOKENS = 2
"""Minimum number of points for t-SNE."""

PICTURES: Mapping[str, str] = {
    "tsne": "t-SNE of the queries and keys of a head",
    "attention": "attention weights in one row: of a head, of hops to a story, of generated words to the source",
    "reliability": "reliability diagrams",
    "curves": "losses, diagnostics and scores over training",
    "nodes": "t-SNE of a layer's outputs for the nodes of a graph, by class",
}
"""What each kind of picture shows."""


def _for(*kinds: str) -> Sequence[str]:
    return [f"kind={kind}" for kind in kinds]


@dataclass(frozen=True, kw_only=True)
class FigureOptions(Options):
    """The options of `alignattn figure`."""

    kind: str = option(
        REQUIRED,
        "; ".join(f"{name}: {shows}" for name, shows in PICTURES.items()) + ".",
        choices=tuple(PICTURES),
        positional=True,
        metavar="KIND",
    )
    run: tuple[str, ...] = option(
        REQUIRED, "Run folders; each adds a panel or a line.", metavar="DIR", place=check_run_folder
    )
    output_file: OutputFile = option(
        REQUIRED, f"File of the picture, with the ending {', '.join(ENDINGS)}.", endings=ENDINGS
    )
    names: tuple[str, ...] | None = option(None, "Names of the runs (default: last parts of their paths).")
    layer: int | None = option(
        None,
        "Layer, from 0; for mcan, attention call (default: the last; for nodes, the last but one).",
        low=0,
        requires=_for("tsne", "nodes", "attention"),
    )
    head: int = option(0, "Head, from 0.", low=0, requires=_for("tsne", "attention"))
    text: tuple[str, ...] | None = option(
        None,
        "A text, a pair, a picture, or a picture and a question (default: first rows).",
        metavar="TEXT",
        requires=_for("tsne", "attention"),
        excludes=dict.fromkeys(("data_dir", "max_eval_samples"), "the text replaces evaluation rows"),
    )
    max_eval_samples: Count = option(32, "Number of evaluation rows to show.", requires=_for("tsne"))
    max_tokens: int = option(
        500, "Maximum tokens or nodes; more are sampled.", low=MIN_TOKENS, requires=_for("tsne", "nodes")
    )
    seed: Seed = option(42, "Seed of the sample and of t-SNE.", requires=_for("tsne", "nodes"))
    balanced: bool = option(False, "Use the basis in which queries and keys have equal moments.", requires=_for("tsne"))
    data_dir: InputDir | None = option(
        None, "Folder with Parquet files of the rows (default: the runs').", requires=_for("tsne", "nodes", "attention")
    )
    split: str | None = option(
        None, "Split of the predictions (default: the first of each run).", requires=_for("reliability")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None and not (1 <= len(self.text) <= MAX_TEXTS and all(map(str.strip, self.text))):
            raise AlignAttnError("--text needs one or two texts that are not empty")


COMMAND = Command(
    "figure",
    "draw pictures of runs: queries and keys, attention, nodes, calibration, training curves",
    FigureOptions,
    run="alignattn.commands.figure:make_figure",
    draws=True,
    examples=(
        "alignattn figure tsne --run runs/mrpc/seed-1 runs/mrpc/seed-2 --output_file tsne.png",
        'alignattn figure attention --run runs/mrpc/seed-1 --layer 2 --text "He said ." --output_file attention.svg',
    ),
)


def make_figure(options: FigureOptions) -> Any:
    """Draw one picture of runs, write it, and return the `matplotlib` figure."""
    folders = [Path(run) for run in options.run]
    short = short_names(folders, "--run")
    names = options.names or [short[folder] for folder in folders]
    if len(names) != len(folders) or len(set(names)) < len(names):
        raise AlignAttnError(f"--names {' '.join(names)}: give {len(folders)} different names, one for each run")
    draw = {
        "tsne": draw_tsne,
        "attention": draw_attention,
        "reliability": draw_calibration,
        "curves": draw_training,
        "nodes": draw_nodes,
    }
    figure = draw[options.kind](dict(zip(names, folders, strict=True)), options)
    write_figure(figure, Path(options.output_file))
    print(f"written to {options.output_file}")
    return figure


def draw_tsne(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the t-SNE of a head's queries and keys, one panel per run (Zhang et al. 2021, figure 1 a, b).

    The queries and keys of a run are projected together. If there are more than `max_tokens` tokens, `max_tokens` of
    them are sampled.
    """
    from alignattn.finetuning.heads import tsne_panel, view_head

    examples = choose_examples(list(runs.values()), options, options.max_eval_samples)
    views = [view_head(folder, name, examples, options.layer, options.head) for name, folder in runs.items()]
    for view in views:
        if options.balanced and view.reason_unbalanced is not None:
            raise AlignAttnError(f"--balanced: {view.name}: {view.reason_unbalanced}")
    panels = [
        tsne_panel(view, max_tokens=options.max_tokens, seed=options.seed, balanced=options.balanced) for view in views
    ]
    title = f"t-SNE of queries and keys{', balanced' if options.balanced else ''}, {examples.description}"
    return draw_points(panels, x_label="t-SNE dimension 1", y_label="t-SNE dimension 2", title=title)


def draw_attention(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return heat maps of the attention in one example, one per run (Zhang et al. 2021, figures 1 and 3).

    A row attends to the columns: tokens or regions of a picture in one head, the hops of a memory network to the
    sentences of a story, or generated words to the words or regions of the source.
    """
    from alignattn.finetuning.heads import view_head
    from alignattn.models.build import saved_class
    from alignattn.models.memory import MemN2NForSequenceClassification
    from alignattn.patching.checkpoints import read_config_fields

    examples = choose_examples(list(runs.values()), options, num_rows=1)
    panels = []
    for name, folder in runs.items():
        if read_finished_run(folder, "--run").task.is_generative:
            panels.append(_generated_words(folder, name, examples))
        elif saved_class(read_config_fields(str(folder))) is MemN2NForSequenceClassification:
            panels.append(_hops(folder, name, examples, options.text))
        else:
            view = view_head(folder, name, examples, options.layer, options.head)
            panels.append(view.attention_panels()[0])
    return draw_heat_maps(
        panels,
        x_label="key (attended to)",
        y_label="query (attends)",
        title=f"attention, {examples.description}",
        colour_label="attention weight",
    )


def choose_examples(folders: Sequence[Path], options: FigureOptions, num_rows: int) -> Any:
    """Return the `Examples` for all runs: the given text, or else the first evaluation rows of the first run."""
    from alignattn.finetuning.heads import Examples, row_examples
    from alignattn.finetuning.predictor import load_predictor
    from alignattn.finetuning.rows import load_run_evaluation
    from alignattn.tasks.rows import max_samples

    if options.text is not None:
        texts, finished = options.text, [read_finished_run(folder, "--run") for folder in folders]
        for run in finished:
            # A model that was trained on single texts does not know pairs.
            if len(texts) > len(run.task.input_columns):
                raise AlignAttnError(f"--text: the task of {run.folder} has one text per row; give one text")
        first, task = finished[0], finished[0].task
        if task.reads_only_texts and not task.is_generative:
            return Examples(
                "the given text",
                TextClassification,
                lambda tokenizer: [dict(tokenizer(*texts, return_tensors="pt"))],
            )
        dataset = task.normalise_inputs(load_predictor(first, device="cpu").checked([texts]))
        given = row_examples(task, "", task.add_dummy_labels(dataset), first.options.data)
        return replace(given, description="the given text")
    runs, origins = [read_run_options(folder) for folder in folders], []
    for folder, made in zip(folders, runs, strict=True):
        split = made.task.evaluation_splits[0] if made.task is not None else VALIDATION
        name = made.data.validation_file or made.data.task or made.data.train_file
        # Files count by their content, wherever they lie; rows of the Hub by their task.
        origins.append((name, evaluation_digests(made, folder, split) or name, made.data.validation_share))
        if origins[-1][1:] != origins[0][1:]:
            raise AlignAttnError(
                f"--run: {folders[0]} ({origins[0][0]}) and {folder} ({name}) have other evaluation rows: give runs "
                "with the same ones, or --text"
            )
    rows = load_run_evaluation(runs[0], options.data_dir)
    if isinstance(rows.task, MultipleChoice):
        raise AlignAttnError(f"task {rows.task.name!r} has several sequences per row: give --text")
    if not rows.evaluation:
        raise AlignAttnError(f"{folders[0]} has no evaluation rows: it was made without --validation_file; give --text")
    split, dataset = next(iter(rows.evaluation.items()))
    return row_examples(rows.task, split, max_samples(rows.task, dataset, num_rows, FIRST), runs[0].data)


def _hops(folder: Path, name: str, examples: Any, texts: Sequence[str] | None) -> HeatMapPanel:
    """The attention of a memory network's hops to the sentences of the first example, the first sentence first."""
    import torch

    from alignattn.finetuning.heads import recording_all_layers
    from alignattn.finetuning.predictor import load_predictor
    from alignattn.models.word_model import Sentences
    from alignattn.patching import collect, patch_of

    run = read_finished_run(folder, "--run")
    assert isinstance(run.task, TextClassification)
    predictor = load_predictor(run, device="cpu")
    if texts is not None:
        predictor.checked([texts])
    model: Any = recording_all_layers(predictor.model)
    encoded = examples.encode(predictor.tokenizer)[0]
    batch = {key: torch.as_tensor(values).view(1, -1) for key, values in encoded.items()}
    with collect(model) as seen, torch.inference_mode():
        answer = int(model(**batch).logits.argmax())
    story = batch["input_ids"][batch["token_type_ids"] == 0][None]
    memories, is_real = model.memories(Sentences(story, torch.ones_like(story, dtype=torch.bool)))
    sentences = [predictor.tokenizer.decode(ids[ids != model.config.pad_token_id]) for ids in memories[0][is_real[0]]]
    recorded = [layer.weights[0, 0, 0] for layer in seen.layers if layer.weights is not None]
    # A hop that is not patched is not recorded, and stays blank.
    weights = torch.full((model.config.hops, len(sentences)), torch.nan)
    weights[list(patch_of(model).config.layers or range(len(recorded)))] = torch.stack(recorded)
    # In the model the latest sentence comes first.
    hops = [f"hop {number}" for number in range(model.config.hops)]
    return HeatMapPanel(f"{name}: {run.task.labels[answer]}", hops, sentences[::-1], weights.flip(1).tolist())


def _generated_words(folder: Path, name: str, examples: Any) -> HeatMapPanel:
    """The attention of each word that a model generates to the words, or the regions of the picture, that it reads."""
    import torch

    from alignattn.finetuning.heads import recording_all_layers, region_names
    from alignattn.finetuning.predictor import load_predictor
    from alignattn.patching import collect

    run = read_finished_run(folder, "--run")
    predictor = load_predictor(run, device="cpu")
    model: Any = recording_all_layers(predictor.model)
    batch = examples.encode(predictor.tokenizer)[0]
    generated = run.task.generate(model, batch, predictor.options)[0]
    with collect(model) as seen, torch.inference_mode():
        model(**batch, labels=generated)
    # The best beam is padded if another beam is longer.
    is_word = generated[0] != model.config.pad_token_id
    weights = attention_to_source(folder, model, seen.layers)[0, is_word]
    words = predictor.tokenizer.convert_ids_to_tokens(generated[0, is_word])
    ids = batch.get("input_ids")
    source = region_names(weights.shape[1]) if ids is None else predictor.tokenizer.convert_ids_to_tokens(ids[0])
    return HeatMapPanel(name, words, source, weights.tolist())


def attention_to_source(folder: Path, model: Any, layers: Sequence[Any]) -> Any:
    """Return the weights of generated words for the source in the last recorded layer that attends to it, `[B, T, n]`.

    Raises:
        AlignAttnError: if no recorded layer does.
    """
    from alignattn.patching import patch_of

    # In self-attention both masks are the same tensor.
    across = [layer.weights for layer in layers if layer.key_mask is not layer.mask]
    if not across:
        there = listing(list(map(str, patch_of(model).config.layers or ())))
        raise AlignAttnError(f"--run {folder}: none of its patched layers, {there}, attends to the source")
    return model.weights_of_words(across)


def draw_calibration(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the reliability diagrams of runs side by side."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from alignattn.evaluation.calibration.predictions import read_predictions
    from alignattn.reports.charts import reliability_panel

    panels = []
    for name, folder in runs.items():
        path = folder / PREDICTIONS_FILE
        if not path.is_file():
            raise AlignAttnError(
                f"{folder} has no {PREDICTIONS_FILE}: the run has not finished, or had no evaluation rows"
            )
        try:
            columns = pq.read_schema(path).names
        except (pa.ArrowException, OSError) as error:
            raise AlignAttnError(f"cannot read {path} as a Parquet file: {one_line(error)}") from error
        if PROBABILITIES not in columns:
            raise AlignAttnError(
                f"{folder} has no probabilities: a reliability diagram needs a task with one class per row"
            )
        predictions = read_predictions(path, label_column="label", probabilities_column=PROBABILITIES)
        chosen = options.split or predictions.split_names()[0]
        if chosen not in predictions.split_names():
            there = ", ".join(predictions.split_names())
            raise AlignAttnError(f"--split {chosen}: {folder} has predictions of {there}")
        rows = predictions.splits == chosen
        panel = reliability_panel(predictions.probabilities[rows], predictions.labels[rows])
        panels.append(replace(panel, title=f"{name}\n{chosen}, {int(rows.sum())} rows, {panel.title}"))
    return draw_reliability(panels, title="Reliability: accuracy over confidence")


def draw_training(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the training curves of runs, one panel per quantity and one line per run."""
    from alignattn.finetuning.logs import X_LABEL, curve_panels, read_log_history

    panels = curve_panels({name: read_log_history(folder) for name, folder in runs.items()})
    if not panels:
        raise AlignAttnError(f"{', '.join(map(str, runs.values()))} did not log any loss: train with --logging_steps")
    return draw_curves(panels, names=list(runs), x_label=X_LABEL, title="Training curves")


def draw_nodes(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the t-SNE of a layer's outputs for the nodes, one panel per run and one colour per class.

    By default it is figure 2 of Veličković et al. 2018: the outputs of the last layer but one. The title of a panel has
    the silhouette of the classes (Rousseeuw 1987). It is computed before the projection, in the space of the outputs: 1
    means that classes are far apart, 0 that they overlap.
    """
    import numpy as np
    from sklearn.metrics import silhouette_score

    from alignattn.finetuning.heads import in_plane

    panels = []
    for name, folder in runs.items():
        layer, states, labels, class_names = node_outputs(folder, options)
        count = min(len(labels), options.max_tokens)
        chosen = np.sort(np.random.default_rng(options.seed).choice(len(labels), count, replace=False))
        places = np.asarray(in_plane(states[chosen], options.seed))
        clouds = {
            title: [(float(x), float(y)) for x, y in places[labels[chosen] == number]]
            for number, title in enumerate(class_names)
            if (labels[chosen] == number).any()
        }
        shown = f"{count} nodes" if count == len(labels) else f"{count} of {len(labels)} nodes"
        silhouette = silhouette_score(states, labels)
        panels.append(PointPanel(f"{name}\nlayer {layer}, {shown}\nsilhouette {silhouette:.3f}", clouds))
    title = "t-SNE of nodes, coloured by class"
    return draw_points(panels, x_label="t-SNE dimension 1", y_label="t-SNE dimension 2", title=title)


def node_outputs(folder: Path, options: FigureOptions) -> tuple[int, Any, Any, Sequence[str]]:
    """Return a layer's number, its outputs `[n, width]` for the nodes with a class, their classes, and class names.

    Args:
        folder: folder of the run.
        options: options with the layer, and the graph's folder if it has moved.

    Raises:
        AlignAttnError: if the run has no graph or no such layer, or if the classes of the graph have no silhouette.
    """
    import numpy as np
    import torch

    from alignattn.finetuning.predictor import load_predictor
    from alignattn.finetuning.rows import load_run_evaluation
    from alignattn.tasks.nodes.graph import graph_of

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
    states: list[torch.Tensor] = []
    if layer + 1 < count:
        handle = model.layers[layer + 1].register_forward_pre_hook(lambda module, args: states.append(args[0]))
    else:
        handle = model.layers[layer].register_forward_hook(lambda module, args, output: states.append(output))
    with handle, torch.inference_mode():
        model(torch.arange(graph.num_nodes), graph.features, graph.edges)
    return layer, states[0].clone()[torch.from_numpy(is_labelled)].numpy(), labels, graph.class_names
