"""Multiple choice: the correct ending of a context."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.metrics import MetricName
from alignattn.tasks.names import MAX_TEXTS
from alignattn.tasks.task import EncodedSplit, TaskOptions, by_row, check_max_length, text_problem
from alignattn.utils.errors import shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedConfig


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(LabelledTask):
    """The choice of the correct ending of a context; the label is its number.

    Attributes:
        context_column: The column of the context.
        start_column: The column of the first words of every ending; empty for none.
        ending_columns: One column per ending, or one column of lists of endings.
    """

    kind = "multiple-choice"
    can_weight_classes = False  # a label is the position of an ending, which says nothing about it
    auto_class = "AutoModelForMultipleChoice"

    context_column: str
    ending_columns: tuple[str, ...]
    start_column: str = ""
    metrics: tuple[MetricName, ...] = ("accuracy",)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of the context, of the start of every ending, and of the endings."""
        return (self.context_column, *((self.start_column,) if self.start_column else ()), *self.ending_columns)

    @property
    def texts_of_a_row(self) -> int:
        """The number of texts of a row, counting every ending."""
        return len(self.input_columns) - len(self.ending_columns) + self.num_labels

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row with these texts; the endings may be one column of lists."""
        if len(self.ending_columns) > 1:
            return super().row_of(texts)
        first = self.texts_of_a_row - self.num_labels
        return dict(zip(self.input_columns, [*texts[:first], list(texts[first:])], strict=True))

    def problem(self) -> str | None:
        """Return the problem of the endings, or that of `LabelledTask.problem`."""
        if not self.labels or len(self.ending_columns) not in (1, len(self.labels)):
            return (
                f"ending_columns needs one column of lists or one column per label, not {len(self.ending_columns)} "
                f"for {len(self.labels)} labels"
            )
        return super().problem()

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text or a wrong number of endings."""
        columns = dataset.select_columns(list(self.input_columns))[:]
        problems: list[str | None] = []
        for values in zip(*columns.values(), strict=True):
            row = dict(zip(columns, values, strict=True))
            endings = self._endings(row)
            if not isinstance(endings, list):
                problems.append(f"column {self.ending_columns[0]!r} is not a list of endings ({shown(endings)})")
            elif len(endings) != self.num_labels:
                problems.append(f"it has {len(endings)} endings and must have {self.num_labels}")
            else:
                texts = [(f"column {name!r}", row[name]) for name in (self.context_column, self.start_column) if name]
                texts += [(f"its ending {number}", ending) for number, ending in enumerate(endings)]
                bad = (text_problem(name, text, may_be_empty=may_be_empty) for name, text in texts)
                problems.append(next(filter(None, bad), None))
        return by_row(problems)

    def _endings(self, row: dict[str, Any]) -> Any:
        columns = [row[column] for column in self.ending_columns]
        return columns if len(columns) > 1 else columns[0]

    def configure(self, config: PreTrainedConfig) -> None:
        """Leave the config unchanged: the head returns one score per sequence for any number of choices."""

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the model's inputs, each a list with one sequence per choice, and `label`.

        In pairs that are too long, the longer text is truncated first.
        """
        check_max_length(self.name, tokenizer, options.max_length, MAX_TEXTS)
        return self.encode_rows(self._encode_batch, dataset, tokenizer, options)

    def _encode_batch(self, batch: dict[str, list[Any]], tokenizer: Any, max_length: int) -> dict[str, list[Any]]:
        rows = [dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True)]
        starts = [f"{row[self.start_column]} " if self.start_column else "" for row in rows]
        endings = [[start + ending for ending in self._endings(row)] for start, row in zip(starts, rows, strict=True)]
        contexts = [[row[self.context_column]] * self.num_labels for row in rows]
        encoding = tokenizer(list(chain(*contexts)), list(chain(*endings)), truncation=True, max_length=max_length)
        by_choice = {
            name: [values[first : first + self.num_labels] for first in range(0, len(values), self.num_labels)]
            for name, values in encoding.items()
        }
        return by_choice | {"label": batch[self.label_column]}

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that pads to the longest sequence."""
        from transformers import DataCollatorForMultipleChoice

        return DataCollatorForMultipleChoice(tokenizer)
