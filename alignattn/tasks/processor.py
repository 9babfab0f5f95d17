"""What a kind of task does with rows and outputs: the one interface that runs go through."""

import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

import datasets
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from alignattn.tasks.file_rows import FileRows
from alignattn.tasks.mapping import map_rows
from alignattn.tasks.sources import read_rows
from alignattn.tasks.task import TEST, Task, TaskOptions
from alignattn.utils.errors import AlignAttnError, shown

T = TypeVar("T", bound=Task)

_UNSEEN = frozenset({"Cc", "Cf", "Zs", "Zl", "Zp"})
"""The categories of Unicode of blanks, of characters of control such as NUL, and of those without a width."""


@dataclass(frozen=True)
class EncodedSplit:
    """The rows of a split and what the model reads of them.

    Attributes:
        rows: as loaded.
        encoded: one item a sequence: a row, or a window of one.
        options: that it was encoded with.
        processor: likewise; what reads sequences that a model writes.
    """

    rows: datasets.Dataset
    encoded: datasets.Dataset
    options: TaskOptions
    processor: Any = None


@dataclass(frozen=True)
class Evaluation:
    """What a model's outputs for a split are worth.

    Attributes:
        metrics: fractions, by name; NaN where one is undefined.
        predictions: a table of one line a row: its number from 0 among those that are evaluated, its label and what was
            predicted.
        thresholds: limits that some of the metrics were tuned to on the very same rows, by the metric's name.
    """

    metrics: dict[str, float]
    predictions: pa.Table
    thresholds: Mapping[str, float] = field(default_factory=dict)


class TaskProcessor(ABC, Generic[T]):
    """A kind of task."""

    auto_class: ClassVar[Any]
    """The class of transformers whose models have this kind's head."""

    reads_texts: ClassVar[bool] = True
    """Whether it is a tokenizer that makes tensors of its rows."""

    continuous_input: ClassVar[str | None] = None
    """The tensor of a batch that holds numbers, which noise can be added to; None where a batch holds tokens, and it is
    their embeddings that are such numbers."""

    reads_texts_alone: ClassVar[bool] = True
    """Whether all that a model attends to is tokens of a row's texts."""

    has_lengths: ClassVar[bool] = True
    """Whether what is encoded of a row are sequences of tokens, as long as they are many."""

    truncates_rows: ClassVar[bool] = True
    """Whether what is too long of a row is left out, and not read in a window of its own."""

    is_generative: ClassVar[bool] = False
    """Whether a model writes what is predicted, token by token, and `written` calls it for that; its forward trains."""

    tokenizer_options: ClassVar[Mapping[str, Any]] = MappingProxyType({})
    """How the tokenizer of a model must be loaded to serve."""

    def feature_dim(self, dims: int) -> int:
        """Return along which dimension of the continuous input, of so many, its features are: the last.

        Each feature is standardised by its own deviation.
        """
        return -1

    def read_split(
        self, task: T, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a split and where they are from, if this kind reads them by itself; None if it does not.

        Args:
            task: that they are of.
            name: of the split.
            data_dir: as for `alignattn.tasks.rows.load_rows`.
            cache_dir: likewise.
        """
        return None

    def read_rows(self, task: T, path: Path, encoding: str | None) -> FileRows:
        """Return the rows of a user's file, which need have no label."""
        return read_rows(path, encoding=encoding)

    def watched(self, splits: Sequence[str]) -> Sequence[str]:
        """Return which of the evaluation splits are evaluated while a model is trained, too.

        All but `test` where there is another: those rows have no part in what is chosen on the way.
        """
        return [name for name in splits if name != TEST] or splits

    @abstractmethod
    def columns(self, task: T) -> list[str]:
        """Return the columns that are read of a row."""

    def normalise(self, task: T, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows in the one form that all other methods take."""
        return dataset

    def resolve(self, task: T, dataset: datasets.Dataset, origin: str) -> T:
        """Return the task with what only its training rows tell."""
        return task

    @abstractmethod
    def problems(self, task: T, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return what is wrong with each bad row, by its index from 0.

        Args:
            task: that the rows are of.
            dataset: with the columns of `columns`.
            may_be_empty: whether a text may be: published ones are taken as they are, for a user cannot mend them.
        """

    def normalise_inputs(self, task: T, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return rows of `input_columns` alone in the one form that the methods for such rows take."""
        return dataset

    @abstractmethod
    def input_problems(self, task: T, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return as `problems` does what is wrong with what a model reads of rows, which need have no label.

        Args:
            task: that the rows are of.
            dataset: with the task's `input_columns`.
            may_be_empty: as for `problems`.
        """

    @abstractmethod
    def unlabelled(self, task: T, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return rows that have no label with one that stands for none: so they are encoded as all others.

        Args:
            task: that the rows are of.
            dataset: its `input_columns` alone.
        """

    def labelled(self, task: T, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the good rows that have a label."""
        return dataset

    def part(self, task: T, dataset: datasets.Dataset) -> tuple[NDArray[np.int64], str] | None:
        """Return the rows that are the task's among those of its files, as indices, and which they are; None for all.

        Args:
            task: that has them.
            dataset: good and labelled rows of a split.
        """
        return None

    def strata(self, task: T, dataset: datasets.Dataset) -> NDArray[Any] | None:
        """Return what rows are alike in that are drawn class by class, a value or a line of them a row; or None."""
        return None

    def smooths_labels(self, task: T) -> bool:
        """Return whether the labels are classes that the Trainer can smooth (`--label_smoothing_factor`)."""
        return True

    def has_divergence(self, task: T) -> bool:
        """Return whether R-Drop's divergence is that of what the task's loss takes logits for."""
        return True

    def averages(self, task: T) -> bool:
        """Return whether predictions of the same rows have a mean, which `mean_outputs` gives."""
        return False

    def mean_outputs(self, task: T, outputs: Sequence[Any]) -> Any:
        """Return the mean of what several passes predict of the same rows, in the form of the outputs of one.

        Args:
            task: that the rows are of.
            outputs: of each pass, as for `answers`.
        """
        raise NotImplementedError

    def constant_prediction(self, task: T, predictions: pa.Table) -> str | None:
        """Return what is predicted of every row, if that is one and the same of several, in words.

        Args:
            task: that the rows are of.
            predictions: as of an `Evaluation`.
        """
        return None

    @abstractmethod
    def configure(self, task: T, config: PreTrainedConfig) -> None:
        """Set what a model's config says of the task."""

    @abstractmethod
    def encode(self, task: T, dataset: datasets.Dataset, processor: Any, options: TaskOptions) -> datasets.Dataset:
        """Return what a model reads of the rows; nothing is padded.

        Args:
            task: that the rows are of.
            dataset: its rows.
            processor: the model's own, as in `alignattn.models.build.BuiltModel`: a tokenizer for texts; None for rows
                that need none.
            options: how long a sequence may be, and so on.
        """

    def collator(self, processor: Any) -> Any:
        """Return what makes a batch of encoded rows; `processor` as for `encode`."""
        raise NotImplementedError

    def batches(self, processor: Any, split: EncodedSplit, *, trains: bool = False) -> Any:
        """Return what makes a batch of encoded rows, where that takes more than the rows of the batch: a graph.

        Args:
            processor: as for `encode`.
            split: that the rows are of.
            trains: whether a model is trained on them, and may see a part that is drawn.
        """
        return self.collator(processor)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return what a model writes for a batch in place of what its forward returns, `[B, …]` each.

        Args:
            model: in evaluation mode.
            batch: what it reads.
            options: how it writes.
        """
        raise NotImplementedError

    @abstractmethod
    def answers(self, task: T, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return what a model's outputs for a split say, one line a row: `prediction`, and what goes with it.

        Args:
            task: that the split is of.
            split: its rows.
            outputs: logits as `Trainer.predict` gives them, one array or several.
            labels: the encoded labels, likewise, of which at most the places count.
        """

    def readable(self, task: T, answers: pa.Table, most: int | None) -> pa.Table:
        """Return answers as they are told to a user: classes by their names.

        Args:
            task: that they are of.
            answers: of the method of that name.
            most: of what could be the answer so many are told, the best first; where None, what suits the kind.
        """
        return answers

    def nothing(self, task: T, most: int | None) -> pa.Table:
        """Return what `readable` returns, of no rows, where these are no texts, of which one is soon made up."""
        raise NotImplementedError

    @abstractmethod
    def evaluate(self, task: T, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score a model's outputs for a split; arguments as of `answers`."""


def text_problem(place: str, text: Any, *, may_be_empty: bool = False) -> str | None:
    """Return what is wrong with a text, or None; `place` says where it stands, as "column 'a'"."""
    if text is not None and not isinstance(text, str):
        return f"{place} is no text ({shown(text)})"
    if text is None or not (may_be_empty or text.strip()):
        return f"{place} is empty"
    if not may_be_empty and all(unicodedata.category(character) in _UNSEEN for character in text):
        return f"{place} holds no visible character ({shown(text)})"
    return None


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
    """Refuse a length that leaves no room for a token of each text, or that the model does not take."""
    # Below this the tokenizer does not cut at all, and does not say so.
    smallest = tokenizer.num_special_tokens_to_add(pair=num_texts > 1) + num_texts
    if not smallest <= max_length <= tokenizer.model_max_length:
        raise AlignAttnError(
            f"max_length {max_length} is no good: task {task.name!r} needs at least {smallest} tokens a row, "
            f"and the model takes at most {tokenizer.model_max_length}"
        )


def name_classes(config: PreTrainedConfig, labels: Sequence[str]) -> None:
    """Set the names of a model's outputs, which say how many there are."""
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: index for index, label in enumerate(labels)}


def row_numbers(dataset: datasets.Dataset) -> NDArray[np.int64]:
    """Return the numbers of the rows from 0, `[N]`."""
    return np.arange(len(dataset))
