"""Attention in one row: to the sentences of a story, the cells of a picture, or the source words."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.heads import choose_examples
from alignattn.finetuning.heads import Examples, recording_all_layers
from alignattn.finetuning.predictor import Predictor, load_predictor
from alignattn.finetuning.rows import input_batches
from alignattn.finetuning.run_folder import FinishedRun, read_finished_run
from alignattn.models.memory import MemN2NForSequenceClassification
from alignattn.models.vqa import REGIONS, WORDS, Sides
from alignattn.models.word_model import Sentences
from alignattn.patching import collect, patch_of
from alignattn.patching.recording import LayerRecord
from alignattn.reports.plots.maps import (
    HeatMapPanel,
    ImagePanel,
    TokenMapPanel,
    draw_heat_maps,
    draw_image_attention,
    draw_token_maps,
)
from alignattn.tasks import ImageToText, TextClassification, VisualQuestionAnswering
from alignattn.tasks.task_types import processor_class, processor_for
from alignattn.utils.errors import AlignAttnError, listing


def draw_hops(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the heat map of the attention to the sentences of one story, a column per hop and a panel per run."""
    examples = choose_examples(list(runs.values()), options, num_rows=1)
    panels = [_hops(folder, name, examples, options.text) for name, folder in runs.items()]
    return draw_heat_maps(panels, x_label="hop", y_label="sentence", title=f"attention, {examples.description}")


def draw_question(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the picture of a question's attention, a column per run: over image cells, and of the cells over words."""
    panels = [_question_panel(folder, name, options.text) for name, folder in runs.items()]
    assert options.text is not None
    return draw_image_attention(panels, title=options.text[1])


def draw_written(runs: Mapping[str, Path], options: FigureOptions) -> Any:
    """Return the picture of what each generated word attends to: a map per run, or a panel per word over a picture."""
    panels = {name: _generated(folder, name, options.text) for name, folder in runs.items()}
    assert options.text is not None
    maps = [panel for panel in panels.values() if isinstance(panel, TokenMapPanel)]
    if len(maps) == len(panels):
        return draw_token_maps(maps, title=options.text[0])
    if len(panels) > 1:
        raise AlignAttnError("figure written shows the caption of one run: give one --run")
    ((name, pictures),) = panels.items()
    assert not isinstance(pictures, TokenMapPanel)
    return draw_image_attention(pictures, title=name, cells="weight of a cell")


def _hops(folder: Path, name: str, examples: Examples, texts: Sequence[str] | None) -> HeatMapPanel:
    """The attention weights of a model on the first example, by hop and sentence, the first sentence first."""
    run = read_finished_run(folder, "--run")
    predictor = load_predictor(run, device="cpu")
    model: Any = predictor.model
    if not isinstance(model, MemN2NForSequenceClassification):
        raise AlignAttnError(f"--run {folder}: {run.options.model.model} has no hops: give runs of --model memn2n")
    assert isinstance(run.task, TextClassification)
    if texts is not None:
        predictor.checked([texts])
    recording_all_layers(model)
    encoded = examples.encode(predictor.tokenizer)[0]
    batch = {key: torch.as_tensor(values).view(1, -1) for key, values in encoded.items()}
    with collect(model) as seen, torch.inference_mode():
        answer = int(model(**batch).logits.argmax())
    story = batch["input_ids"][batch["token_type_ids"] == 0][None]
    memories, is_real = model.memories(Sentences(story, torch.ones_like(story, dtype=torch.bool)))
    sentences = [predictor.tokenizer.decode(ids[ids != model.config.pad_token_id]) for ids in memories[0][is_real[0]]]
    recorded = [layer.weights[0, 0, 0] for layer in seen.layers if layer.weights is not None]
    # A hop that is not patched is not recorded, and stays blank.
    weights = torch.full((len(sentences), model.config.hops), torch.nan)
    weights[:, list(patch_of(model).config.layers or range(len(recorded)))] = torch.stack(recorded, dim=1)
    # In the model the latest sentence comes first.
    return HeatMapPanel(f"{name}: {run.task.labels[answer]}", sentences[::-1], {"": weights.flip(0).tolist()})


def _question_panel(folder: Path, name: str, texts: Sequence[str] | None) -> ImagePanel:
    """The weights of a picture's cells for the model's answer, and of the words for the cells."""
    run = read_finished_run(folder, "--run")
    if not isinstance(run.task, VisualQuestionAnswering) or run.task.reads_features:
        raise AlignAttnError(f"--run {folder}: task {run.task.name!r} has no questions about pictures")
    if texts is None or len(texts) != len(run.task.input_columns):
        raise AlignAttnError("figure question shows one question: give --text PICTURE QUESTION")
    predictor, batch, _ = _row(run, texts)
    model: Any = predictor.model
    kept: list[Any] = []
    handle = model.reduce_regions.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    try:
        with collect(model) as seen, torch.inference_mode():
            logits = model(**batch).logits
            pooled = model.reduce_regions.weights(kept[0])[0]
    finally:
        handle.remove()
    numbers = patch_of(model).config.layers or range(len(seen.layers))
    sides = [model.attention_sides[number] for number in numbers]
    if (REGIONS, WORDS) not in sides:
        there = listing(list(map(str, numbers)))
        raise AlignAttnError(f"--run {folder}: none of its patched layers, {there}, attends from image cells to words")
    weights = [record.weights[0].mean(dim=0) for record in seen.layers if record.weights is not None]
    cells, word_weights = attention_rollout(pooled, sides, weights)
    return ImagePanel(
        f"{name}: {run.task.labels[int(logits.argmax())]}",
        _pixels(batch),
        _grid(cells),
        predictor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0]),
        word_weights.tolist(),
    )


def attention_rollout(pooled: Tensor, sides: Sequence[Sides], weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the weights of cells and words for the classification, by attention rollout (Abnar & Zuidema 2020).

    It goes backwards from the pooling (Yu et al. 2019, eq. 9). Each self-attention of the image passes half of a cell's
    weight to the cells that it attends to; the other half stays, for the residual connection. In each guided attention
    a cell distributes its current weight over the words.

    Args:
        pooled: weight of each cell in the pooled vector of the image, `[cells]`.
        sides: for each attention call in order, which side attends to which.
        weights: attention weights of each call, mean over heads, `[n, m]`.

    Returns:
        `[cells]`, and `[words]`, mean over the guided attentions; each sums to 1 if `pooled` and each row of `weights`
        do.
    """
    cells, by_unit = pooled, []
    for attends, attention in zip(reversed(sides), reversed(weights), strict=True):
        if attends == (REGIONS, WORDS):
            by_unit.append(cells @ attention)
        elif attends == (REGIONS, REGIONS):
            cells = (cells + cells @ attention) / 2
    return cells, torch.stack(by_unit).mean(dim=0)


def _generated(folder: Path, name: str, texts: Sequence[str] | None) -> TokenMapPanel | list[ImagePanel]:
    """The attention of each generated word to the source words, or a panel per word over the cells of a picture."""
    run = read_finished_run(folder, "--run")
    if not processor_class(run.task).is_generative:
        raise AlignAttnError(f"--run {folder}: task {run.task.name!r} generates no sequences")
    if texts is None or len(texts) != len(run.task.input_columns):
        raise AlignAttnError(f"figure written shows one row: give --text {' '.join(run.task.input_columns).upper()}")
    predictor, batch, task_options = _row(run, texts)
    model: Any = predictor.model
    generated = processor_for(run.task).generate(model, batch, task_options)[0]
    with collect(model) as seen, torch.inference_mode():
        model(**batch, labels=generated)
    # The best beam is padded if another beam is longer.
    is_word = generated[0] != model.config.pad_token_id
    weights = attention_to_source(folder, model, seen.layers)[0, is_word]
    words = predictor.tokenizer.convert_ids_to_tokens(generated[0, is_word])
    if isinstance(run.task, ImageToText):
        pixels = _pixels(batch)
        return [ImagePanel(word, pixels, _grid(cells)) for word, cells in zip(words, weights, strict=True)]
    read = predictor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    return TokenMapPanel(name, words, weights.tolist(), read)


def attention_to_source(folder: Path, model: Any, layers: Sequence[LayerRecord]) -> Tensor:
    """Return the weights of generated words for the source in the last recorded layer that attends to it, `[B, T, n]`.

    Raises:
        AlignAttnError: if no recorded layer does.
    """
    # In self-attention both masks are the same tensor.
    across = [layer.weights for layer in layers if layer.key_mask is not layer.mask]
    if not across:
        there = listing(list(map(str, patch_of(model).config.layers or ())))
        raise AlignAttnError(f"--run {folder}: none of its patched layers, {there}, attends to the source")
    weights: Tensor = model.weights_of_words(across)
    return weights


def _row(run: FinishedRun, texts: Sequence[str]) -> tuple[Predictor, dict[str, Tensor], Any]:
    """A run's model whose attention is recorded in all layers, a batch of one row, and the encoding options."""
    predictor = load_predictor(run, device="cpu")
    split = predictor.encode(predictor.checked([texts]))
    batch = next(input_batches(run.task, split, predictor.tokenizer, [0], 1))
    recording_all_layers(predictor.model)
    return predictor, batch, split.options


def _pixels(batch: Mapping[str, Tensor]) -> Any:
    return batch["image"][0].permute(1, 2, 0).tolist()


def _grid(cells: Tensor) -> Any:
    """The cells as a square grid, because pictures are resized to a square."""
    side = round(len(cells) ** 0.5)
    return cells.view(side, side).tolist()
