"""Multiple choice: the correct ending of a context."""

from itertools import chain
from typing import Any

import datasets
from transformers import (
    AutoModelForMultipleChoice,
    DataCollatorForMultipleChoice,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.processor import EncodedSplit, by_row, check_max_length, encode_rows, text_problem
from alignattn.tasks.task import MAX_TEXTS, TaskOptions
from alignattn.tasks.task_types import MultipleChoice
from alignattn.utils.errors import shown


class MultipleChoiceProcessor(LabelledProcessor[MultipleChoice]):
    """One sequence per choice: the context and an ending. The model scores each sequence."""

    auto_class = AutoModelForMultipleChoice

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text or a wrong number of endings."""
        columns = dataset.select_columns(list(self.task.input_columns))[:]
        rows = (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
        return by_row(_texts_problem(self.task, row, may_be_empty=may_be_empty) for row in rows)

    def configure(self, config: PreTrainedConfig) -> None:
        """Leave the config unchanged: the head returns one score per sequence for any number of choices."""

    def encode(
        self, dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the model's inputs, each a list with one sequence per choice, and `label`.

        In pairs that are too long, the longer text is truncated first.
        """
        check_max_length(self.task, tokenizer, options.max_length, MAX_TEXTS)
        return encode_rows(_encode_batch, self.task, dataset, tokenizer, options)

    def collator(
        self, tokenizer: PreTrainedTokenizerBase, split: EncodedSplit, *, is_training: bool = False
    ) -> DataCollatorForMultipleChoice:
        """Return a collator that pads to the longest sequence."""
        return DataCollatorForMultipleChoice(tokenizer)


def _endings(task: MultipleChoice, row: dict[str, Any]) -> Any:
    columns = [row[column] for column in task.ending_columns]
    return columns if len(columns) > 1 else columns[0]


def _texts_problem(task: MultipleChoice, row: dict[str, Any], *, may_be_empty: bool) -> str | None:
    endings = _endings(task, row)
    if not isinstance(endings, list):
        return f"column {task.ending_columns[0]!r} is not a list of endings ({shown(endings)})"
    if len(endings) != task.num_labels:
        return f"it has {len(endings)} endings and must have {task.num_labels}"
    texts = [(f"column {name!r}", row[name]) for name in (task.context_column, task.start_column) if name]
    texts += [(f"its ending {number}", ending) for number, ending in enumerate(endings)]
    problems = (text_problem(name, text, may_be_empty=may_be_empty) for name, text in texts)
    return next((problem for problem in problems if problem is not None), None)


def _encode_batch(
    batch: dict[str, list[Any]], task: MultipleChoice, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
    starts = [f"{row[task.start_column]} " if task.start_column else "" for row in rows]
    endings = [[start + ending for ending in _endings(task, row)] for start, row in zip(starts, rows, strict=True)]
    contexts = [[row[task.context_column]] * task.num_labels for row in rows]
    encoding = tokenizer(list(chain(*contexts)), list(chain(*endings)), truncation=True, max_length=max_length)
    by_choice = {
        name: [values[first : first + task.num_labels] for first in range(0, len(values), task.num_labels)]
        for name, values in encoding.items()
    }
    return by_choice | {"label": batch[task.label_column]}
