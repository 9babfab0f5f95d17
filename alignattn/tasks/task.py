"""The base class of all tasks: the fields of a task's YAML file, how runs process its rows and outputs, and helpers.

Each task type is one file. Its methods import what is heavy, so that reading a task's file does not
import PyTorch.
"""

from __future__ import annotations

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Self

from alignattn.tasks.metrics import metric_of
from alignattn.tasks.names import TEST, TRAIN, TRUNCATE, VALIDATION, WINDOWS
from alignattn.utils.errors import AlignAttnError, shown

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from alignattn.tasks.reading import FileRows

TEXT_DTYPES = ("string", "large_string", "string_view")
"""The types of a column of texts, as `datasets` names them."""

_INVISIBLE = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""Unicode's categories of blanks, of control characters such as NUL, and of zero-width characters."""

_CHECKS = {"extra": "forbid", "allow_inf_nan": False}


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

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _CHECKS

    hub: str = ""
    config: str = ""
    revision: str = "main"
    folder: str = ""
    files: Mapping[str, str] = field(default_factory=dict)


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


@dataclass(frozen=True, kw_only=True)
class Task(ABC):
    """The base of all task types.

    Attributes:
        kind: The name of the task type, as on the Hub.
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

    __pydantic_config__: ClassVar[Mapping[str, Any]] = _CHECKS
    kind: ClassVar[str]

    auto_class: ClassVar[str]
    """The name of transformers' auto class of models with the head of this task type."""

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

    can_average: ClassVar[bool] = False
    """Whether the outputs of several passes can be averaged (`average_outputs`)."""

    tokenizer_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """Options that the model's tokenizer must be loaded with."""

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
    @abstractmethod
    def input_columns(self) -> tuple[str, ...]:
        """The columns that a model reads; unlabelled rows must have them."""

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

    @staticmethod
    def splits_in_training(splits: Sequence[str]) -> Sequence[str]:
        """Return the splits to evaluate during training: all but `test`, unless there is no other."""
        return [name for name in splits if name != TEST] or splits

    def data_files(self, data_dir: Path) -> dict[str, Path]:
        """Return the files of the rows in `--data_dir`, by split; further files of a split by its name and another."""
        folder = data_dir / self.sources.folder
        return {split: folder / f"{split}.parquet" for split in (TRAIN, *self.evaluation_splits)}

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a split and their origin if this type has its own reader for them, otherwise None."""
        return None

    def read_rows(
        self, path: Path, encoding: str | None, *, cache_dir: str | None = None, is_labelled: bool = False
    ) -> FileRows:
        """Return the rows of a user's file, which may lack labels; arguments as for `reading.read_rows`."""
        from alignattn.tasks.reading import read_rows

        return read_rows(path, cache_dir, encoding=encoding, read_folder=self.read_folder, is_labelled=is_labelled)

    def read_folder(self, folder: Path, encoding: str | None) -> FileRows:
        """Return the rows of a folder with a folder per class."""
        from alignattn.tasks.reading import read_class_folder

        return read_class_folder(folder, encoding)

    @property
    def file_column(self) -> str | None:
        """The input column that may name files; None if rows hold everything."""
        return None

    def locate(self, dataset: datasets.Dataset, folder: Path) -> datasets.Dataset:
        """Return the rows with paths relative to the current folder; a table has paths relative to its folder."""
        import datasets

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

    def infer_labels(self, dataset: datasets.Dataset, origin: str) -> Self:
        """Return the task completed from its training rows, for example by its labels."""
        return self

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows in the form that all methods below expect."""
        return dataset

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return unlabelled rows, of the `input_columns` alone, in the form that the methods for them expect."""
        return dataset

    @abstractmethod
    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
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
        import numpy as np

        names: tuple[str, ...] = self.labels  # type: ignore[attr-defined]
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

    def encode_rows(
        self,
        encode_batch: Callable[..., dict[str, list[Any]]],
        dataset: datasets.Dataset,
        tokenizer: Any,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return `dataset` mapped by `encode_batch(batch, tokenizer, max_length)`, whose columns replace its own."""
        return map_rows(
            dataset,
            encode_batch,
            fn_kwargs={"tokenizer": tokenizer, "max_length": options.max_length},
            remove_columns=dataset.column_names,
            num_proc=options.num_proc,
            desc=f"tokenizing {self.name}",
        )

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return the collator of a split's encoded rows; the default one pads to the longest row.

        Args:
            tokenizer: as for `encode`.
            split: the whole split, which a graph's collator needs.
            is_training: whether the batches train a model; they may then be sampled.
        """
        from transformers import DataCollatorWithPadding

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
    return {
        index: problem
        for column in reversed(columns)
        for index, text in enumerate(dataset[column][:])
        if (problem := text_problem(f"column {column!r}", text, may_be_empty=may_be_empty)) is not None
    }


def by_row(problems: Iterable[str | None]) -> dict[int, str]:
    """Return the problems of rows by index, given one per row or None."""
    return {index: problem for index, problem in enumerate(problems) if problem is not None}


def map_rows(dataset: datasets.Dataset, function: Callable[..., dict[str, list[Any]]], **options: Any) -> Any:
    """Return `dataset.map(function, batched=True, **options)`, without a hash if the dataset is not cached on disk.

    Hashing a tokenizer takes a tenth of a second or more, as long as encoding a hundred rows.
    """
    from datasets.fingerprint import generate_random_fingerprint

    if not dataset.cache_files:
        options["new_fingerprint"] = generate_random_fingerprint()
    return dataset.map(function, batched=True, **options)


def check_max_length(task_name: str, tokenizer: PreTrainedTokenizerBase, max_length: int, num_texts: int) -> None:
    """Refuse a length without room for a token of each text, or beyond the model's maximum."""
    # Below the smallest length the tokenizer silently does not truncate at all.
    smallest = tokenizer.num_special_tokens_to_add(pair=num_texts > 1) + num_texts
    if not smallest <= max_length <= tokenizer.model_max_length:
        raise AlignAttnError(
            f"--max_length {max_length} is out of range: task {task_name!r} needs at least {smallest} tokens per row, "
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
    import numpy as np

    if not np.isfinite(outputs).all():
        raise AlignAttnError(
            "the model's outputs hold NaN or infinity: the training diverged; lower the learning rate or the alignment "
            "weight"
        )


def evaluation_table(dataset: datasets.Dataset, columns: Mapping[str, pa.Array], predictions: pa.Table) -> pa.Table:
    """Return the numbers of the rows, columns of the rows such as `label`, and their predictions."""
    import numpy as np
    import pyarrow as pa

    predicted = dict(zip(predictions.column_names, predictions.columns, strict=True))
    return pa.table({"row": pa.array(np.arange(len(dataset))), **columns, **predicted})


def best_first(probabilities: NDArray[np.float64], names: pa.Array, top_k: int | None) -> pa.Array:
    """Return one list of `{label, probability}` per row, best first.

    Args:
        probabilities: `[N, C]`.
        names: the label names, `[C]`.
        top_k: the number of labels to list; all if None.
    """
    import numpy as np
    import pyarrow as pa

    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top_k]
    values = np.take_along_axis(probabilities, order, axis=1)
    pairs = pa.StructArray.from_arrays(
        [names.take(pa.array(order.ravel())), pa.array(values.ravel())], ["label", "probability"]
    )
    return pa.ListArray.from_arrays(np.arange(len(order) + 1, dtype=np.int32) * order.shape[1], pairs)
