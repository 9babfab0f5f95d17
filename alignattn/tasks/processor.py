"""The interface of task types, by which runs process rows and outputs."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from datasets.fingerprint import generate_random_fingerprint
from numpy.typing import NDArray
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedConfig, PreTrainedTokenizerBase

from alignattn.tasks.formats.class_folders import read_class_folder
from alignattn.tasks.formats.file_rows import FileRows
from alignattn.tasks.reading import read_rows
from alignattn.tasks.task import TEST, Task, TaskOptions
from alignattn.utils.errors import AlignAttnError, shown

T = TypeVar("T", bound=Task)

TEXT_DTYPES = ("string", "large_string", "string_view")
"""The types of a column of texts, as `datasets` names them."""

_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Unicode's categories of blanks, of control characters such as NUL, and of zero-width characters."""


@dataclass(frozen=True)
class EncodedSplit:
    """The rows of a split and their encoding.

    Attributes:
        rows: the rows as loaded.
        encoded: one item per sequence, which is a row or a window of one.
        options: the options of the encoding.
        tokenizer: the tokenizer of the encoding, which also decodes generated sequences.
    """

    rows: datasets.Dataset
    encoded: datasets.Dataset
    options: TaskOptions
    tokenizer: Any = None


@dataclass(frozen=True)
class Evaluation:
    """The scores of a model on a split.

    Attributes:
        metrics: fractions by name; NaN where a metric is undefined.
        predictions: one line per row: its number from 0 among the evaluated rows, its label and the prediction.
        thresholds: the thresholds of metrics that tune one on the same rows, by metric.
        classes: `precision`, `recall` and `f1` of each class as fractions, and `support`, its number of labels.
    """

    metrics: dict[str, float]
    predictions: pa.Table
    thresholds: Mapping[str, float] = field(default_factory=dict)
    classes: dict[str, dict[str, float]] = field(default_factory=dict)


class TaskProcessor(ABC, Generic[T]):
    """Reads, checks and encodes the rows of a task, and scores a model's outputs for them."""

    auto_class: ClassVar[Any]
    """The auto class of transformers for models with the head of this task type."""

    reads_texts: ClassVar[bool] = True
    """Whether a tokenizer converts rows to tensors."""

    reads_images: ClassVar[bool] = False
    """Whether an image processor converts rows to tensors; the methods below then receive it as `tokenizer`."""

    continuous_input: ClassVar[str | None] = None
    """The tensor of a batch to which noise can be added; None for tokens, to whose embeddings it is added."""

    reads_only_texts: ClassVar[bool] = True
    """Whether a model attends only to tokens of a row's texts."""

    has_lengths: ClassVar[bool] = True
    """Whether encoded rows are sequences of tokens."""

    truncates_rows: ClassVar[bool] = True
    """Whether long rows are truncated, not split into windows."""

    can_pool_windows: ClassVar[bool] = False
    """Whether long texts may be read in windows whose logits are pooled (`--long_texts windows`)."""

    is_generative: ClassVar[bool] = False
    """Whether `generate` makes the predictions, token by token; the model's forward is then only for training."""

    tokenizer_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options that the model's tokenizer must be loaded with."""

    def __init__(self, task: T) -> None:
        self.task = task

    @staticmethod
    def splits_in_training(splits: Sequence[str]) -> Sequence[str]:
        """Return the splits to evaluate during training: all but `test`, which must not influence any choice."""
        return [name for name in splits if name != TEST] or splits

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a split and their origin if this type has its own reader for them, otherwise None."""
        return None

    def read_rows(self, path: Path, encoding: str | None) -> FileRows:
        """Return the rows of a user's file, which may lack labels."""
        return read_rows(path, encoding=encoding, read_folder=self.read_folder, is_labelled=False)

    def read_folder(self, folder: Path, encoding: str | None) -> FileRows:
        """Return the rows of a folder with a folder per class."""
        return read_class_folder(folder, encoding)

    @property
    def file_column(self) -> str | None:
        """The input column that may name files; None if rows hold everything."""
        return None

    def locate(self, dataset: datasets.Dataset, folder: Path) -> datasets.Dataset:
        """Return the rows with paths relative to the current folder; a table has paths relative to its folder."""
        column = self.file_column
        feature = dataset.features.get(column)
        if not isinstance(feature, datasets.Value) or feature.dtype not in TEXT_DTYPES:
            return dataset
        paths = [str(folder / path) if path else path for path in dataset[column][:]]
        located, others = datasets.Dataset.from_dict({column: paths}), dataset.remove_columns(column)
        # A data set without columns has no rows.
        return datasets.concatenate_datasets([others, located], axis=1) if others.column_names else located

    @abstractmethod
    def columns(self) -> list[str]:
        """Return the columns of a labelled row."""

    def infer_labels(self, dataset: datasets.Dataset, origin: str) -> T:
        """Return the task completed from its training rows, for example by its labels."""
        return self.task

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows in the form that all methods below expect."""
        return dataset

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return unlabelled rows, of the `input_columns` alone, in the form that the methods for them expect."""
        return dataset

    @abstractmethod
    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the problem of each bad row, by its index from 0.

        Args:
            dataset: the rows, with the columns of `columns`.
            may_be_empty: whether a text may be empty: a user cannot correct published rows.
        """

    @abstractmethod
    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the same for unlabelled rows, which have the task's `input_columns`."""

    @abstractmethod
    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return rows of the `input_columns` with a dummy label, so that they can be encoded."""

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the good rows that have a label."""
        return dataset

    def subset(self, dataset: datasets.Dataset) -> tuple[NDArray[np.int64], str] | None:
        """Return the indices of the rows of a split that the task uses, and a description; None for all rows."""
        return None

    def strata(self, dataset: datasets.Dataset) -> NDArray[Any] | None:
        """Return the stratum of each row for stratified sampling, a value or a vector per row; None without strata."""
        return None

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of labels of each class, `[C]`; only for tasks that `can_weight_classes`."""
        raise NotImplementedError

    def class_weights(self, split: EncodedSplit, named: Mapping[str, float]) -> NDArray[np.float64]:
        """Return the weight of each class in the loss, `[C]`.

        This method, for one label per row, word or node, scales them to a mean of 1 over the labels.

        Args:
            split: the training rows.
            named: weights by class, 1 for the other classes. If empty, the weights are balanced: all classes count the
                same (`sklearn.utils.class_weight.compute_class_weight`).

        Raises:
            AlignAttnError: if the weights are balanced and a class has no row.
        """
        names: tuple[str, ...] = self.task.labels  # type: ignore[attr-defined]
        counts = self.class_counts(split)
        if not named:
            check_present(names, counts)
        weights = np.array([named.get(name, 1.0) for name in names]) if named else 1 / counts
        return np.asarray(weights * counts.sum() / (weights @ counts))

    @property
    def can_smooth_labels(self) -> bool:
        """Whether the Trainer can smooth the labels (`--label_smoothing_factor`)."""
        return True

    @property
    def supports_r_drop(self) -> bool:
        """Whether R-Drop's divergence fits the task's loss."""
        return True

    @property
    def can_average(self) -> bool:
        """Whether the outputs of several passes can be averaged (`average_outputs`)."""
        return False

    def average_outputs(self, outputs: Sequence[Any]) -> Any:
        """Return the mean of the outputs of several passes over the same rows, in the form of one pass."""
        raise NotImplementedError

    @abstractmethod
    def configure(self, config: PreTrainedConfig) -> None:
        """Write the task's fields into a model's config."""

    @abstractmethod
    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the model's inputs for labelled rows; nothing is padded.

        Args:
            dataset: the rows.
            tokenizer: the model's tokenizer; None if the rows need none.
            options: the encoding options, such as `max_length`.
        """

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return the collator of a split's encoded rows; the default one pads to the longest row.

        Args:
            tokenizer: as for `encode`.
            split: the whole split, which a graph's collator needs.
            is_training: whether the batches train a model; they may then be sampled.
        """
        return DataCollatorWithPadding(tokenizer)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return the outputs that a model in evaluation mode generates for a batch, `[B, …]` each."""
        raise NotImplementedError

    @abstractmethod
    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the predictions for a split, one line per row, in the column `prediction` and others.

        Args:
            split: the rows.
            outputs: the logits of `Trainer.predict`, one array or several.
            labels: the encoded labels, used only for their positions.
        """

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return predictions with class names.

        Args:
            predictions: the table of `predictions`.
            top_k: the number of alternatives to list, best first; the type's default if None.
        """
        return predictions

    def empty_predictions(self, top_k: int | None) -> pa.Table:
        """Return an empty table with the columns of `readable_predictions`; for types that read more than texts."""
        raise NotImplementedError

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the prediction in words if two or more rows all share it; `predictions` is that of `evaluate`."""
        return None

    @abstractmethod
    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score a model's outputs for a split; arguments as for `predictions`."""


def text_problem(place: str, text: Any, *, may_be_empty: bool = False) -> str | None:
    """Return the problem of a text, or None; `place` is where it is, such as "column 'a'"."""
    if text is not None and not isinstance(text, str):
        return f"{place} is not text ({shown(text)})"
    if text is None or not (may_be_empty or text.strip()):
        return f"{place} is empty"
    if not may_be_empty and all(unicodedata.category(character) in _INVISIBLE for character in text):
        return f"{place} has no visible character ({shown(text)})"
    return None


def text_problems(dataset: datasets.Dataset, columns: Sequence[str], *, may_be_empty: bool = False) -> dict[int, str]:
    """Return the problem of the first bad text of each bad row, by the row's index from 0."""
    problems: dict[int, str] = {}
    for column in reversed(columns):
        found = (text_problem(f"column {column!r}", text, may_be_empty=may_be_empty) for text in dataset[column][:])
        problems |= by_row(found)
    return problems


def by_row(problems: Iterable[str | None]) -> dict[int, str]:
    """Return the problems of rows by index, given one per row or None."""
    return {index: problem for index, problem in enumerate(problems) if problem is not None}


def map_rows(dataset: datasets.Dataset, function: Callable[..., dict[str, list[Any]]], **options: Any) -> Any:
    """Return `dataset.map(function, batched=True, **options)`, without a hash if the dataset is not cached on disk.

    Hashing a tokenizer takes a tenth of a second or more, as long as encoding a hundred rows.
    """
    if not dataset.cache_files:
        options["new_fingerprint"] = generate_random_fingerprint()
    return dataset.map(function, batched=True, **options)


def encode_rows(
    encode_batch: Callable[..., dict[str, list[Any]]],
    task: Task,
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: TaskOptions,
) -> datasets.Dataset:
    """Return `dataset` mapped by `encode_batch(batch, task, tokenizer, max_length)`, whose columns replace its own."""
    return map_rows(
        dataset,
        encode_batch,
        fn_kwargs={"task": task, "tokenizer": tokenizer, "max_length": options.max_length},
        remove_columns=dataset.column_names,
        num_proc=options.num_proc,
        desc=f"tokenizing {task.name}",
    )


def check_max_length(task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int, num_texts: int) -> None:
    """Refuse a length without room for a token of each text, or beyond the model's maximum."""
    # Below the smallest length the tokenizer silently does not truncate at all.
    smallest = tokenizer.num_special_tokens_to_add(pair=num_texts > 1) + num_texts
    if not smallest <= max_length <= tokenizer.model_max_length:
        raise AlignAttnError(
            f"--max_length {max_length} is out of range: task {task.name!r} needs at least {smallest} tokens per row, "
            f"and the model takes at most {tokenizer.model_max_length}"
        )


def name_classes(config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Set the names, and with them the number, of a model's outputs."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def check_present(names: Sequence[str], counts: NDArray[np.int64]) -> None:
    """Refuse to balance classes if one has no training row.

    Args:
        names: the class names, `[C]`.
        counts: the number of training rows of each class, `[C]`.
    """
    if missing := [name for name, count in zip(names, counts, strict=True) if not count]:
        raise AlignAttnError(
            f"--class_weights balanced: no training row of class {missing[0]!r}: add some, or give weights by name"
        )


def check_finite(outputs: NDArray[Any]) -> None:
    """Refuse NaN and infinity, which argmax would silently turn into a class."""
    if not np.isfinite(outputs).all():
        raise AlignAttnError(
            "the model's outputs hold NaN or infinity: the training diverged; lower the learning rate or the alignment "
            "weight"
        )


def row_numbers(dataset: datasets.Dataset) -> pa.Array:
    """Return the numbers of the rows from 0, `[N]`."""
    return pa.array(np.arange(len(dataset)))


def evaluation_table(dataset: datasets.Dataset, columns: Mapping[str, pa.Array], predictions: pa.Table) -> pa.Table:
    """Return the numbers of the rows, columns of the rows such as `label`, and their predictions."""
    predicted = dict(zip(predictions.column_names, predictions.columns, strict=True))
    return pa.table({"row": row_numbers(dataset), **columns, **predicted})
