"""What a task is: one small record, from which everything else about it follows.

`tasks/processors.py` lists the task types. A room's `task.py` declares the record of its type, and its `processor.py`
reads rows and outputs. The fields of a record are those of a task's file (`tasks/definitions.py`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

MetricName = Literal["accuracy", "f1", "macro_f1", "matthews_correlation", "pearson", "spearmanr", "mse", "mae"]
"""The metrics of `alignattn.tasks.metrics.METRICS`; named here so that a record needs no heavy import."""

CORRELATIONS = frozenset({"pearson", "spearmanr"})
ERRORS = frozenset({"mse", "mae"})
"""Those of them that are of scores and not of classes; of errors less is better, and they have the scores' unit."""

LESS_IS_BETTER = ERRORS | {"error_rate"}
"""Beside them what is an error as a share."""

MAX_TEXTS = 2
"""Texts that a tokenizer joins into one sequence."""

MAX_CLASSES = 10_000
"""Of a task; a column of more different labels is free text or numbers of rows."""

CONLL = ".conll"
"""The ending of a file of tagged words."""
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""The endings of files of columns, all but the last compressed or not."""
TEXT_FILE = ".txt"
TEXT_FILES = (TEXT_FILE, *TABLES)
"""Of texts without labels: a text a line, or a table."""
NPZ = ".npz"
"""The ending of a file of a graph."""

DRAWN, FIRST, BY_SEED = "drawn", "first", "seed"
"""How fewer rows than there are may be taken; before there was a choice, it was the first."""

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"

_FORBID_OTHERS = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where the rows of a task are read from: the Hub, a `--data_dir`, or the user's own files.

    Attributes:
        hub: The data set's id on the Hub; empty where it is not there.
        config: The configuration of that data set.
        revision: The branch of the Hub that holds it as Parquet, where the main one holds code alone.
        folder: Where `<split>.parquet` lies below a `--data_dir`.
        files: A file a split, its path relative to that of the task's file.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID_OTHERS

    hub: str = ""
    config: str = ""
    revision: str = "main"
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all kinds of tasks have in common.

    Attributes:
        kind: What the kind is called, here and on the Hub.
        implementation: `module:class` of its `TaskProcessor`, imported when it is asked for: it needs transformers.
        name: What a user calls the task.
        metrics: The names of the task's official metrics. The first selects checkpoints and ranks runs.
        evaluation_splits: The names of the labelled splits that are not trained on.
        derives_validation: Whether the split `validation` is a tenth of the training rows, drawn once and for all,
            because the data set has none (as in Wu et al. 2020).
        train_rows_of: The task whose training rows serve, where this one has none.
        max_length: The most tokens of a sequence where the user asks for no other length.
        sources: Where the rows are read from.
        description: What is asked, in a line.
        licence: Of the data.
        citation: Who made the data, and where it is described.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID_OTHERS
    kind: ClassVar[str]
    implementation: ClassVar[str]

    name: str
    metrics: tuple[str, ...]
    evaluation_splits: tuple[str, ...] = (VALIDATION,)
    derives_validation: bool = False
    train_rows_of: str = ""
    max_length: int = 128
    sources: Sources = Sources()
    description: str = ""
    licence: str = "unknown"
    citation: str = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns that a model reads of a row: what new rows must have, which have no label."""
        raise NotImplementedError

    @property
    def texts_of_a_row(self) -> int:
        """How many texts make a row, of which `row_of` makes one."""
        return len(self.input_columns)

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row that texts make, `texts_of_a_row` of them, in the order of `input_columns`."""
        return dict(zip(self.input_columns, texts, strict=True))

    @property
    def main_metric(self) -> str:
        """The metric that selects checkpoints and ranks runs."""
        return self.metrics[0]

    @property
    def fewest_rows(self) -> int:
        """How many rows its metrics need."""
        return 2 if CORRELATIONS.intersection(self.metrics) else 1

    def problem(self) -> str | None:
        """Return what is wrong with the record as its file gives it, which types do not tell; None where nothing is."""
        splits = self.evaluation_splits
        if not self.metrics or not splits or len({*splits, TRAIN}) <= len(splits):
            return "metrics and evaluation_splits must name one each at least, no split twice, and not the split train"
        if self.max_length < 1:
            return f"max_length {self.max_length} must be at least 1"
        for split in self.sources.files:
            if split not in (TRAIN, *splits):
                return f"sources.files names a split {split!r}, and there are {', '.join((TRAIN, *splits))}"
        return None


@dataclass(frozen=True, kw_only=True)
class LabelledTask(Task):
    """A task whose rows have one label each: a class or a score.

    Attributes:
        metrics: Names of `alignattn.tasks.metrics.METRICS`.
        label_column: The column of class numbers 0 to C-1 or of real numbers; -1 marks an unlabelled row.
        labels: The names of the classes in the order of their numbers; empty for a regression.
        label_range: The smallest and the largest score of a regression; None where there is no limit.
    """

    metrics: tuple[MetricName, ...]
    label_column: str = "label"
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None

    @property
    def is_regression(self) -> bool:
        """True where the label is a real number and not a class."""
        return not self.labels

    @property
    def num_labels(self) -> int:
        """How many outputs a row has: the number of classes, 1 for a regression."""
        return len(self.labels) or 1

    def problem(self) -> str | None:
        """Return what is wrong with the splits, the labels or their metrics."""
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            return f"labels must be two or more, none of them twice, or none for scores: {', '.join(self.labels)}"
        if len(self.labels) > MAX_CLASSES:
            return f"labels are {len(self.labels):,}, and a task has at most {MAX_CLASSES:,}"
        if self.label_range is not None and (self.labels or self.label_range[0] >= self.label_range[1]):
            return "label_range is for scores, which have no labels, and gives the smallest before the largest"
        unfit = [name for name in self.metrics if (name in CORRELATIONS | ERRORS) != self.is_regression]
        if unfit or ("f1" in self.metrics and self.num_labels != 2):
            return (
                f"metrics {', '.join(unfit or ['f1'])} do not go with {len(self.labels)} labels: scores, which have "
                f"none, take {', '.join(sorted(CORRELATIONS | ERRORS))}, two classes f1, more macro_f1"
            )
        return super().problem()


@dataclass(frozen=True)
class TaskOptions:
    """What a user can choose of how rows become tensors, and outputs answers.

    Attributes:
        max_length: the most tokens of a sequence, special tokens included.
        doc_stride: tokens that neighbouring windows of a long context share.
        n_best_size: answers to keep for each question.
        max_answer_length: the most tokens of an answer.
        num_beams: beginnings of a sequence that are followed where one is written.
        num_proc: processes that tokenize; this one when None.
        fan_out: of a graph, how many neighbours of a node are drawn at each step away from a batch's nodes; a batch is
            the whole graph when None.
        image_size: pixels of a side to which pictures are brought.
        feature_width: numbers of a region's features.
    """

    max_length: int
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    num_beams: int = 1
    num_proc: int | None = None
    fan_out: tuple[int, ...] | None = None
    image_size: int = 0
    feature_width: int = 0
