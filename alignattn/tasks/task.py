"""The base class of all tasks, a record with the fields of a task's YAML file.

`tasks/task_types.py` defines the record of each task type; each `TaskProcessor` has its own module or package.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from alignattn.tasks.metrics import METRICS, MetricName, metric_of

MAX_TEXTS = 2
"""Maximum number of texts that a tokenizer joins into one sequence."""

MAX_CLASSES = 10_000
"""Maximum number of distinct labels; columns with more hold free text or row numbers."""

CONLL = ".conll"
TABLES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
"""Endings of tables; all but the last may be compressed."""
TEXT_FILE = ".txt"
TEXT_FILES = (TEXT_FILE, *TABLES)
"""Endings of files of unlabelled texts: one text per line, or a table."""
PICTURES = (".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp")
"""Endings of the pictures in a folder."""
NPZ = ".npz"
"""The ending of a graph's file."""

TEXT, LABEL = "text", "label"
"""The columns of a folder of texts."""
TOKENS, TAGS = "tokens", "ner_tags"
"""The columns of a CoNLL file."""
PROBABILITIES = "probabilities"
"""The column of the probabilities of all classes in predictions."""

TRUNCATE, WINDOWS = "truncate", "windows"
"""What to do with texts longer than the model: truncate them, or read all of them in overlapping windows."""

WINDOW_OF, IS_TRUNCATED = "window_of", "is_truncated"
"""Columns of windows: the number of the row, and whether its shorter text is truncated."""
WINDOW_COUNTS = "window_counts"
"""Key of a training batch of windows: the number of windows of each row, `[B]`, in the order of the windows."""

DRAWN, FIRST, BY_SEED = "drawn", "first", "seed"
"""How to sample rows: a fixed sample, the first rows, or a sample per seed."""

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"


def is_picture(path: Path) -> bool:
    """Return whether a file's name is that of a picture; hidden files are excluded."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


_FORBID_OTHERS = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where to read the rows of a task: the Hub, a `--data_dir`, or the user's own files.

    Attributes:
        hub: The data set's id on the Hub; empty if it is not there.
        config: The configuration of that data set.
        revision: The branch of the Hub with Parquet files, if the main one holds only code.
        folder: The folder of `<split>.parquet` in a `--data_dir`.
        files: One file per split, relative to the folder of the task's file.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID_OTHERS

    hub: str = ""
    config: str = ""
    revision: str = "main"
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Task:
    """The base of all task types.

    Attributes:
        kind: The name of the task type, as on the Hub.
        processor: `module:class` of its `TaskProcessor`, imported on demand because it needs transformers.
        name: The name of the task.
        metrics: The names of the task's official metrics. The first selects checkpoints and ranks runs.
        evaluation_splits: The names of the labelled splits to evaluate on.
        derives_validation: Whether the split `validation` is a fixed tenth of the training rows, because the data set
            has none (as in Wu et al. 2020).
        train_rows_of: The task whose training rows to use, if this one has none.
        max_length: The default maximum number of tokens per sequence.
        sources: Where to read the rows.
        description: One line on what the model predicts.
        licence: The licence of the data.
        citation: The authors of the data, and their publication.
    """

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _FORBID_OTHERS
    kind: ClassVar[str]
    processor: ClassVar[str]

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
        """The columns that a model reads; unlabelled rows must have them."""
        raise NotImplementedError

    @property
    def has_classes(self) -> bool:
        """Whether each row has exactly one class, and the model predicts a probability for every class."""
        return False

    @property
    def texts_of_a_row(self) -> int:
        """The number of texts that `row_of` accepts."""
        return len(self.input_columns)

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row with these `texts_of_a_row` texts, in the order of `input_columns`."""
        return dict(zip(self.input_columns, texts, strict=True))

    @property
    def main_metric(self) -> str:
        """The metric that selects checkpoints and ranks runs."""
        return self.metrics[0]

    @property
    def can_weight_classes(self) -> bool:
        """Whether labels are classes, which have their own scores and a weight in the loss."""
        return False

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics to compute."""
        return self.metrics

    @property
    def fewest_rows(self) -> int:
        """The minimum number of rows for the metrics."""
        return max(metric_of(name).min_rows for name in self.metrics)

    def problem(self) -> str | None:
        """Return the problem of the record beyond the types of its fields, or None."""
        splits = self.evaluation_splits
        if not self.metrics or not splits or len({*splits, TRAIN}) <= len(splits):
            return (
                "metrics and evaluation_splits need at least one entry each, evaluation_splits without duplicates and "
                "without train"
            )
        if self.max_length < 1:
            return f"max_length {self.max_length} must be at least 1"
        for split in self.sources.files:
            if split not in (TRAIN, *splits):
                return f"sources.files has an unknown split {split!r}: choose from {', '.join((TRAIN, *splits))}"
        return None


@dataclass(frozen=True, kw_only=True)
class LabelledTask(Task):
    """A task with one label per row: a class or a score.

    Attributes:
        metrics: Metrics of `alignattn.tasks.metrics`.
        label_column: The column of class numbers 0 to C-1 or of real numbers; -1 marks an unlabelled row.
        labels: The names of the classes in the order of their numbers; empty for a regression.
        label_range: The smallest and the largest score of a regression; None for no limits.
    """

    metrics: tuple[MetricName, ...]
    label_column: str = LABEL
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None

    @property
    def is_regression(self) -> bool:
        """Whether the label is a real number and not a class."""
        return not self.labels

    @property
    def has_classes(self) -> bool:
        """Whether the label is a class."""
        return not self.is_regression

    @property
    def num_labels(self) -> int:
        """The number of outputs per row: the number of classes, 1 for a regression."""
        return len(self.labels) or 1

    @property
    def can_weight_classes(self) -> bool:
        """Whether the label is a class."""
        return not self.is_regression

    @property
    def measured(self) -> tuple[MetricName, ...]:
        """The metrics, and macro-F1 if there are classes: accuracy says little about rare ones."""
        is_missing = self.can_weight_classes and "macro_f1" not in self.metrics
        return (*self.metrics, "macro_f1") if is_missing else self.metrics

    def problem(self) -> str | None:
        """Return the problem of the splits, the labels or their metrics."""
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            return f"labels must be two or more different names, or none for scores: {', '.join(self.labels)}"
        if len(self.labels) > MAX_CLASSES:
            return f"there are {len(self.labels):,} labels, and a task has at most {MAX_CLASSES:,}"
        if self.label_range is not None and (self.labels or self.label_range[0] >= self.label_range[1]):
            return "label_range needs a task without labels, and the smallest score before the largest"
        unfit = [name for name in self.metrics if metric_of(name).is_of_scores != self.is_regression]
        if unfit or ("f1" in self.metrics and self.num_labels != 2):
            return (
                f"metrics {', '.join(unfit or ['f1'])} do not fit {len(self.labels)} labels: choose "
                f"{', '.join(sorted(name for name, metric in METRICS.items() if metric.is_of_scores))} for scores, "
                "f1 for two classes, macro_f1 for more"
            )
        return super().problem()


@dataclass(frozen=True)
class TaskOptions:
    """The user's options for encoding rows and reading outputs.

    Attributes:
        max_length: The maximum number of tokens per sequence, special tokens included.
        long_texts: `TRUNCATE`, or `WINDOWS` whose logits are pooled.
        doc_stride: The number of tokens that neighbouring windows of a long text or context share.
        n_best_size: The number of answers to keep per question.
        max_answer_length: The maximum number of tokens per answer.
        num_beams: The number of beams of beam search.
        num_proc: The number of processes that tokenize; None for this one.
        fan_out: The number of neighbours of a node to sample at each step away from a batch's nodes; None to use the
            whole graph as a batch.
    """

    max_length: int
    long_texts: str = TRUNCATE
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    num_beams: int = 1
    num_proc: int | None = None
    fan_out: tuple[int, ...] | None = None

    @property
    def has_windows(self) -> bool:
        """Whether long texts are read in windows whose logits are pooled."""
        return self.long_texts == WINDOWS
