"""The picture of where a head looked in a row."""

from typing import Any

import datasets

from alignattn.commands.predict import PredictOptions
from alignattn.finetuning.heads import Examples, batch_of_one, view_head
from alignattn.finetuning.predictor import Predictor
from alignattn.reports.plots import draw_token_maps
from alignattn.tasks.task_types import processor_class
from alignattn.utils.errors import AlignAttnError

MAX_PANELS = 4
"""Sequences of one row that are drawn: its choices, or windows of its context."""


def draw_explanation(predictor: Predictor, row: datasets.Dataset, options: PredictOptions) -> Any:
    """Return the `matplotlib` figure of a head's attention in a row, a panel a sequence.

    Args:
        predictor: the run's model.
        row: the one row, its input columns.
        options: which head.
    """
    for problem in predictor.problems(row).values():
        raise AlignAttnError(f"--explain shows row 1, and {problem}")
    # A token is shown once: windows of a long context share none.
    encoded = predictor.encode(row, doc_stride=0).encoded
    names = [name for name in predictor.tokenizer.model_input_names if name in encoded.column_names]
    sequences = list(encoded.select_columns(names))
    if isinstance(sequences[0][names[0]][0], list):
        (choices,) = sequences
        sequences = [dict(zip(names, values, strict=True)) for values in zip(*choices.values(), strict=True)]
    shown = sequences[:MAX_PANELS]
    more = f", {MAX_PANELS} of its {len(sequences)} sequences" if len(sequences) > MAX_PANELS else ""
    examples = Examples(
        "the first row", processor_class(predictor.task), lambda tokenizer: list(map(batch_of_one, shown))
    )
    view = view_head(predictor.run.folder, predictor.run.folder.name, examples, options.layer, options.head)
    return draw_token_maps(view.attention_panels(), title=f"attention, {examples.description}{more}")
