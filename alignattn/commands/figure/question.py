"""What a question makes a run's model look at: the cells of a picture, and its own words."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.pictures import RunFolders
from alignattn.finetuning.predictor import load_predictor
from alignattn.finetuning.rows import input_batches
from alignattn.finetuning.run_folder import read_finished_run
from alignattn.models.vqa import REGIONS, WORDS, Sides
from alignattn.patching import collect, is_patched, patch, patch_of, unpatch
from alignattn.reports.plots import ImagePanel, draw_image_attention
from alignattn.tasks import VisualQuestionAnswering
from alignattn.utils.errors import AlignAttnError, listing


@dataclass(frozen=True)
class SeenQuestion:
    """What a run's model attends to, asked a question about a picture.

    Attributes:
        pixels: `[3, height, width]` of 0 to 1.
        cells: `[cells]`, what each weighs in what is classified, by attention rollout.
        words: of the question, n.
        word_weights: `[n]`, how much the cells, by these weights, attend each word, mean over units.
        answer: of the model.
    """

    pixels: Tensor
    cells: Tensor
    words: tuple[str, ...]
    word_weights: Tensor
    answer: str


def draw_question(runs: RunFolders, options: FigureOptions) -> Any:
    """Return the picture of a question's attention, a column a run: over cells, and of the cells over words."""
    panels = []
    for name, folder in runs.items():
        seen = see_question(folder, options)
        # Where there are as many rows as columns: pictures are brought to a square.
        side = round(len(seen.cells) ** 0.5)
        panels.append(
            ImagePanel(
                f"{name}: {seen.answer}",
                seen.pixels.permute(1, 2, 0).tolist(),
                seen.cells.view(side, side).tolist(),
                seen.words,
                seen.word_weights.tolist(),
            )
        )
    assert options.text is not None
    return draw_image_attention(panels, title=options.text[1])


def see_question(folder: Path, options: FigureOptions) -> SeenQuestion:
    """Return what a run's model attends to.

    Args:
        folder: of the run.
        options: whose `text` is the file of a picture and a question.

    Raises:
        AlignAttnError: if the run is of no pictures, or the row cannot be used.
    """
    run = read_finished_run(folder, "--run")
    if not isinstance(run.task, VisualQuestionAnswering) or run.task.reads_features:
        raise AlignAttnError(f"--run {folder}: task {run.task.name!r} asks no questions about pictures")
    if options.text is None or len(options.text) != len(run.task.input_columns):
        raise AlignAttnError("figure question shows one question: give --text PICTURE QUESTION")
    predictor = load_predictor(run, device="cpu")
    split = predictor.encode(predictor.checked([options.text]))
    batch = next(input_batches(run.task, split, predictor.tokenizer, [0], 1))
    model: Any = predictor.model
    if is_patched(model) and not patch_of(model).config.changes_function:
        # Not each of its layers may have slots, whose calls are recorded.
        unpatch(model)
    if not is_patched(model):
        patch(model, "soft")
    kept: list[Any] = []
    handle = model.reduce_regions.register_forward_pre_hook(lambda module, args: kept.append(args[0]))
    try:
        with collect(model) as seen, torch.inference_mode():
            logits = model(**batch).logits
            cells = model.reduce_regions.weights(kept[0])[0]
    finally:
        handle.remove()
    numbers = patch_of(model).config.layers or range(len(seen.layers))
    sides = [model.attention_sides[number] for number in numbers]
    if (REGIONS, WORDS) not in sides:
        there = listing(list(map(str, numbers)))
        raise AlignAttnError(f"--run {folder}: none of its patched layers, {there}, attends from cells to words")
    weights = [record.weights[0].mean(dim=0) for record in seen.layers if record.weights is not None]
    cells, word_weights = roll_out(cells, sides, weights)
    words = predictor.tokenizer.convert_ids_to_tokens(batch["input_ids"][0])
    return SeenQuestion(batch["image"][0], cells, tuple(words), word_weights, run.task.labels[int(logits.argmax())])


def roll_out(pooled: Tensor, sides: Sequence[Sides], weights: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return what cells and words weigh in what is classified, by attention rollout (Abnar & Zuidema 2020).

    Backwards from the pooling (Yu et al. 2019, eq. 9), each self-attention of the image gives half of a cell's weight
    to the cells that it attends; the other half stays, for the residual connection. In guided attention each cell
    attends words by the weight that it has there.

    Args:
        pooled: `[cells]`, what each weighs in the vector of the image.
        sides: what attends what in each attention call, in order.
        weights: of each, mean over heads: `[n, m]`.

    Returns:
        `[cells]`, and `[words]`, mean over the guided attentions; each sums to 1 if each row of `weights` does.
    """
    cells, by_unit = pooled, []
    for attends, attention in zip(reversed(sides), reversed(weights), strict=True):
        if attends == (REGIONS, WORDS):
            by_unit.append(cells @ attention)
        elif attends == (REGIONS, REGIONS):
            cells = (cells + cells @ attention) / 2
    return cells, torch.stack(by_unit).mean(dim=0)
