"""What a memory network reads of a story, hop by hop."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from alignattn.commands.figure import FigureOptions
from alignattn.commands.figure.heads import choose_examples
from alignattn.commands.figure.pictures import RunFolders
from alignattn.finetuning.heads import Examples
from alignattn.finetuning.predictor import load_predictor
from alignattn.finetuning.run_folder import read_finished_run
from alignattn.models.memory import MemN2NForSequenceClassification
from alignattn.models.word_model import Sentences
from alignattn.patching import collect, is_patched, patch
from alignattn.reports.plots import HeatMapPanel, draw_heat_maps
from alignattn.tasks import TextClassification
from alignattn.utils.errors import AlignAttnError


def draw_hops(runs: RunFolders, options: FigureOptions) -> Any:
    """Return the heat map of the attention to the sentences of one story, a column a hop and a panel a run."""
    examples = choose_examples(list(runs.values()), options, num_rows=1)
    panels = [hops_of(folder, name, examples, options.text) for name, folder in runs.items()]
    return draw_heat_maps(panels, x_label="hop", y_label="sentence", title=f"attention, {examples.description}")


def hops_of(folder: Path, name: str, examples: Examples, texts: Sequence[str] | None) -> HeatMapPanel:
    """Return what a run's model attends to in the first of examples, the story from its first sentence on.

    Args:
        folder: of the run.
        name: that it is called by.
        examples: that it is shown.
        texts: what they were made of, where that was given.

    Raises:
        AlignAttnError: if the run is of no memory network, or the texts are no row of its.
    """
    run = read_finished_run(folder, "--run")
    predictor = load_predictor(run, device="cpu")
    model: Any = predictor.model
    if not isinstance(model, MemN2NForSequenceClassification):
        raise AlignAttnError(f"--run {folder}: {run.options.model.model} has no hops: give runs of --model memn2n")
    assert isinstance(run.task, TextClassification)
    if texts is not None:
        predictor.checked([texts])
    if not is_patched(model):
        patch(model, "soft")
    encoded = examples.encode(predictor.tokenizer)[0]
    batch = {key: torch.as_tensor(values).view(1, -1) for key, values in encoded.items()}
    with collect(model) as seen, torch.inference_mode():
        answer = int(model(**batch).logits.argmax())
    story = batch["input_ids"][batch["token_type_ids"] == 0][None]
    memories, is_real = model.memories(Sentences(story, torch.ones_like(story, dtype=torch.bool)))
    told = [predictor.tokenizer.decode(ids[ids != model.config.pad_token_id]) for ids in memories[0][is_real[0]]]
    weights = torch.stack([layer.weights[0, 0, 0] for layer in seen.layers if layer.weights is not None], dim=1)
    # The latest comes first in the model.
    return HeatMapPanel(f"{name}: {run.task.labels[answer]}", told[::-1], {"": weights.flip(0).tolist()})
