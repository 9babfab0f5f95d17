"""What each word that a run's model writes attends to, of those that it read."""

from pathlib import Path
from typing import Any

import torch

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.pictures import RunFolders
from alignattn.patching import collect, is_patched, patch, patch_of, unpatch
from alignattn.plots import TokenMapPanel, draw_token_maps
from alignattn.runs.predictor import load_predictor
from alignattn.runs.rows import input_batches
from alignattn.runs.run_folder import read_finished_run
from alignattn.support.errors import AlignAttnError
from alignattn.tasks.kinds import kind_of


def draw_written(runs: RunFolders, options: FigureOptions) -> Any:
    """Return the picture of the words that are written over those that are read, a panel a run."""
    panels = [written_panel(name, folder, options) for name, folder in runs.items()]
    assert options.text is not None
    return draw_token_maps(panels, title=" ".join(options.text))


def written_panel(name: str, folder: Path, options: FigureOptions) -> TokenMapPanel:
    """Return what a run's model writes of a text, and the weights by which it attended to it.

    Args:
        name: of the run.
        folder: of the run.
        options: whose `text` is what is read.

    Raises:
        AlignAttnError: if the run writes nothing, or the row cannot be used.
    """
    run = read_finished_run(folder, "--run")
    kind = kind_of(run.task)
    if not kind.writes:
        raise AlignAttnError(f"--run {folder}: task {run.task.name!r} writes no sequences")
    if options.text is None or len(options.text) != len(run.task.input_columns):
        raise AlignAttnError(f"figure written shows one row: give --text {' '.join(run.task.input_columns).upper()}")
    predictor = load_predictor(run, device="cpu")
    split = predictor.encode(predictor.checked([options.text]))
    batch = next(input_batches(run.task, split, predictor.processor, [0], 1))
    model: Any = predictor.model
    if is_patched(model) and not patch_of(model).config.changes_function:
        # Not each of its layers may have slots, whose calls are recorded.
        unpatch(model)
    if not is_patched(model):
        patch(model, "soft")
    written = kind.written(model, batch, split.options)[0]
    with collect(model) as seen, torch.inference_mode():
        model(**batch, labels=written)
    weights = model.weights_of_words([layer.weights for layer in seen.layers])[0]
    read, told = (predictor.processor.convert_ids_to_tokens(ids[0]) for ids in (batch["input_ids"], written))
    return TokenMapPanel(name, told, weights.tolist(), read)
