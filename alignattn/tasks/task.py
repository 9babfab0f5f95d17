"""The base of all tasks: the record of a task, with the fields of its YAML file.

The record of each task type stands in `tasks/task_types.py`, its `TaskProcessor` in a module or room of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

MetricName = Literal["accuracy", "f1", "macro_f1", "matthews_correlation", "pearson", "spearmanr", "mse", "mae"]
"""The metrics of `alignattn.tasks.metrics`, listed here to keep this module's imports light."""

CORRELATIONS = frozenset({"pearson", "spearmanr"})
ERRORS = frozenset({"mse", "mae"})
"""The metrics of scores; all others are for classes. Errors have the unit of the scores."""

LESS_IS_BETTER = ERRORS | {"error_rate"}

MAX_TEXTS = 2
"""Maximum texts that a tokenizer joins into one sequence."""

MAX_CLASSES = 10_000
"""A column with more distinct labels holds free text or row numbers."""

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

TRUNCATE, WINDOWS = "truncate", "windows"
"""What to do with texts longer than the model: truncate them, or read all of them in overlapping windows."""

WINDOW_OF, NEEDED_LENGTH = "window_of", "needed_length"
"""Columns of windows: the number of the row, and the --max_length that would truncate nothing of it."""
WINDOW_COUNTS = "window_counts"
"""Key of a training batch of windows: how many each row has, `[B]`, in the order of the windows."""

DRAWN, FIRST, BY_SEED = "drawn", "first", "seed"
"""How to sample rows: a fixed sample, the first rows, or a sample per seed."""

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"


def is_picture(path: Path) -> bool:
    """Return whether a file is a picture by its name; hidden ones are none."""
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


_FORBID_OTHERS = {"extra": "forbid"}


@dataclass(frozen=True, kw_only=True)
class Sources:
    """Where to read the rows of a task: the Hub, a `--data_dir`, or the user's own files.

    Attributes:
        hub: The data set's id on the Hub; empty if it is not there.
        config: The configuration of that data set.
        revision: The branch of the Hub with Parquet files, if the main one holds only code.
        folder: The folder of `<split>.parquet` below a `--data_dir`.
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
        kind: The name of the task type, which is also the Hub's.
        processor: `module:class` of its `TaskProcessor`, imported on demand because it needs transformers.
        name: What a user calls the task.
        metrics: The names of the task's official metrics. The first selects checkpoints and ranks runs.
        evaluation_splits: The names of the labelled splits that are not trained on.
        derives_validation: Whether the split `validation` is a fixed tenth of the training rows, because the data set
            has none (as in Wu et al. 2020).
        train_rows_of: The task whose training rows to use, if this one has none.
        max_length: The default maximum of tokens per sequence.
        sources: Where to read the rows.
        description: One line on what the task asks.
        licence: Of the data.
        citation: Who made the data, and where it is described.
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
        """The columns that a model reads, which unlabelled rows must have."""
        raise NotImplementedError

    @property
    def has_classes(self) -> bool:
        """Whether a row has exactly one class, and the model a probability for each."""
        return False

    @property
    def texts_of_a_row(self) -> int:
        """The number of texts that `row_of` takes."""
        return len(self.input_columns)

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row made of these texts, `texts_of_a_row` of them, in the order of `input_columns`."""
        return dict(zip(self.input_columns, texts, strict=True))

    @property
    def main_metric(self) -> str:
        """The metric that selects checkpoints and ranks runs."""
        return self.metrics[0]

    @property
    def can_weight_classes(self) -> bool:
        """Whether each label is a class, with scores of its own and a weight in the loss."""
        return False

    @property
    def measured(self) -> tuple[str, ...]:
        """The metrics, and macro-F1 where there are classes."""
        return self.metrics

    @property
    def fewest_rows(self) -> int:
        """The number of rows that the metrics need at least."""
        return 2 if CORRELATIONS.intersection(self.metrics) else 1

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
        """The metrics, and macro-F1 where there are classes: accuracy says little of rare ones."""
        is_missing = self.can_weight_classes and "macro_f1" not in self.metrics
        return (*self.metrics, "macro_f1") if is_missing else self.metrics

    def problem(self) -> str | None:
        """Return the problem of the splits, the labels or their metrics."""
        if len(self.labels) == 1 or len(set(self.labels)) < len(self.labels):
            return f"labels must be two or more different names, or none for scores: {', '.join(self.labels)}"
        if len(self.labels) > MAX_CLASSES:
            return f"labels are {len(self.labels):,}, and a task has at most {MAX_CLASSES:,}"
        if self.label_range is not None and (self.labels or self.label_range[0] >= self.label_range[1]):
            return "label_range needs a task without labels, and the smallest score before the largest"
        unfit = [name for name in self.metrics if (name in CORRELATIONS | ERRORS) != self.is_regression]
        if unfit or ("f1" in self.metrics and self.num_labels != 2):
            return (
                f"metrics {', '.join(unfit or ['f1'])} do not go with {len(self.labels)} labels: scores, which have "
                f"none, take {', '.join(sorted(CORRELATIONS | ERRORS))}, two classes f1, more macro_f1"
            )
        return super().problem()


@dataclass(frozen=True)
class TaskOptions:
    """The user's options for encoding rows and reading outputs.

    Attributes:
        max_length: The maximum of tokens per sequence, special tokens included.
        long_texts: `TRUNCATE`, or `WINDOWS` whose logits are pooled.
        doc_stride: Tokens that neighbouring windows of a long text or context share.
        n_best_size: Answers to keep per question.
        max_answer_length: The maximum of tokens per answer.
        num_beams: Beams of the beam search of a generated sequence.
        num_proc: Processes that tokenize; None for this one.
        fan_out: How many neighbours of a node to sample at each step away from a batch's nodes; None to use the whole
            graph as a batch.
        image_size: Pixels per side to which pictures are scaled.
        feature_width: The number of features of a region.
    """

    max_length: int
    long_texts: str = TRUNCATE
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    num_beams: int = 1
    num_proc: int | None = None
    fan_out: tuple[int, ...] | None = None
    image_size: int = 0
    feature_width: int = 0
