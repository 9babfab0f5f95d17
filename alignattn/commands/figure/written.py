"""What each word that a run's model writes attends to: words that it read, or the cells of a picture."""

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
from alignattn.patching import collect, is_patched, patch, patch_of, unpatch
from alignattn.reports.plots import ImagePanel, TokenMapPanel, draw_image_attention, draw_token_maps
from alignattn.tasks import ImageToText
from alignattn.tasks.task_types import processor_for
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Written:
    """What a run's model wrote of a row.

    Attributes:
        words: T of them, the end one.
        weights: `[T, n]`, by which each attended to what was read.
        read: the n words that were read; none of a picture.
        pixels: `[3, height, width]` of 0 to 1 of a picture; None of words.
    """

    words: Sequence[str]
    weights: Tensor
    read: Sequence[str] = ()
    pixels: Tensor | None = None


def draw_written(runs: RunFolders, options: FigureOptions) -> Any:
    """Return the picture of what was written: a map a run, or over a picture a panel a word."""
    written = {name: see_written(folder, options) for name, folder in runs.items()}
    assert options.text is not None
    (text,) = options.text
    if all(one.pixels is None for one in written.values()):
        maps = [TokenMapPanel(name, one.words, one.weights.tolist(), one.read) for name, one in written.items()]
        return draw_token_maps(maps, title=text)
    if len(written) > 1:
        raise AlignAttnError("figure written shows a picture under each word of one caption: give one --run")
    ((name, one),) = written.items()
    assert one.pixels is not None
    # Where there are as many rows as columns: pictures are brought to a square.
    side = round(one.weights.shape[1] ** 0.5)
    pixels, cells = one.pixels.permute(1, 2, 0).tolist(), one.weights.unflatten(1, (side, side)).tolist()
    panels = [ImagePanel(word, pixels, weights) for word, weights in zip(one.words, cells, strict=True)]
    return draw_image_attention(panels, title=name, cells="weight of a cell")


def see_written(folder: Path, options: FigureOptions) -> Written:
    """Return what a run's model writes of a row, and the weights by which it attended to it.

    Args:
        folder: of the run.
        options: whose `text` is what is read.

    Raises:
        AlignAttnError: if the run writes nothing, or the row cannot be used.
    """
    run = read_finished_run(folder, "--run")
    processor = processor_for(run.task)
    if not processor.is_generative:
        raise AlignAttnError(f"--run {folder}: task {run.task.name!r} writes no sequences")
    if options.text is None or len(options.text) != len(run.task.input_columns):
        raise AlignAttnError(f"figure written shows one row: give --text {' '.join(run.task.input_columns).upper()}")
    predictor = load_predictor(run, device="cpu")
    split = predictor.encode(predictor.checked([options.text]))
    batch = next(input_batches(run.task, split, predictor.tokenizer, [0], 1))
    model: Any = predictor.model
    if is_patched(model) and not patch_of(model).config.changes_function:
        # Not each of its layers may have slots, whose calls are recorded.
        unpatch(model)
    if not is_patched(model):
        patch(model, "soft")
    written = processor.generate(model, batch, split.options)[0]
    with collect(model) as seen, torch.inference_mode():
        model(**batch, labels=written)
    # Of several beams the likeliest need not be the longest.
    is_word = written[0] != model.config.pad_token_id
    weights = model.weights_of_words([layer.weights for layer in seen.layers])[0, is_word]
    name_of = predictor.tokenizer.convert_ids_to_tokens
    words = name_of(written[0, is_word])
    if isinstance(run.task, ImageToText):
        return Written(words, weights, pixels=batch["image"][0])
    return Written(words, weights, name_of(batch["input_ids"][0]))
