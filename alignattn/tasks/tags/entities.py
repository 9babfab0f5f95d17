"""Tagging schemes, and scores of the entities in tag sequences by `seqeval` in its default mode.

That mode is the definition of `conlleval`, the script of the CoNLL-2000 to 2003 shared tasks (Tjong Kim Sang & De
Meulder 2003). It reads every tagging scheme (IOB1, IOB2, IOE1, IOE2, BIOES) and every malformed sequence: an `I-` after
`O` or after another type starts an entity. seqeval's `mode="strict"` gives other numbers on malformed sequences.

seqeval takes the first letter of a tag for its prefix, whatever it is, so only tags that `marks_entities` accepts have
scores of entities.
"""

import re
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Literal, NamedTuple

from alignattn.tasks.metrics import named_scores
from alignattn.utils.errors import plural

OUTSIDE = "O"
"""The tag of a token outside any entity."""

TOKEN_ACCURACY: Final = "token_accuracy"  # noqa: S105
"""The only metric that needs no entities."""

BIO: Literal["bio"] = "bio"
"""Also called IOB2: an entity's first word has the tag `B-` and its type, the others `I-` and its type."""

ANY: Literal["any"] = "any"
"""Any other scheme: any tag may follow any other."""

SchemeName = Literal["bio", "any"]

_BEGIN_OR_INSIDE = re.compile(r"([BI])(-.+)?")

SCORES: Final = ("precision", "recall", "f1", TOKEN_ACCURACY)

_ENTITY_TAG = re.compile(r"O|[BIESMLU]([-_:.].*)?")
"""The prefixes of IOB, IOE, BIOES, BMES and BILOU, alone or with a type."""

_BIOES = {"L": "E", "U": "S"}
"""The prefixes of BIOES by those of BILOU, which seqeval does not know: it would join neighbouring entities."""


class Scheme(NamedTuple):
    """The scheme of rows, and a remark on how they deviate from it, or None."""

    name: SchemeName
    remark: str | None = None


def marks_entities(names: Iterable[str]) -> bool:
    """Return whether tags mark where entities begin and end; parts of speech, types alone and numbers do not."""
    return all(map(_ENTITY_TAG.fullmatch, names))


def is_bio(names: Iterable[str]) -> bool:
    """Return whether tags are those of BIO: `O`, and a `B-X` for each `I-X`."""
    names = set(names)
    others = names - {OUTSIDE}
    parts = [_BEGIN_OR_INSIDE.fullmatch(name) for name in others]
    if OUTSIDE not in names or not all(parts):
        return False
    inside = {name for name in others if name.startswith("I")}
    return bool(inside) and all(f"B{name[1:]}" in others for name in inside)


def may_follow(before: str | None, tag: str) -> bool:
    """Return whether BIO allows a tag after another, None for the start: `I-X` continues only `B-X` or `I-X`."""
    return not tag.startswith("I") or (before is not None and before != OUTSIDE and before[1:] == tag[1:])


def scheme_of(names: Sequence[str], rows: Iterable[Sequence[str]]) -> Scheme:
    """Return the scheme of tagged rows.

    IOB1 has the tags of BIO, but an entity begins with `I-` unless another of its type ends right before it. If more
    entities begin with `I-` than with `B-`, the scheme is IOB1, in which any tag may follow any other; otherwise they
    are mistakes.

    Args:
        names: the tags.
        rows: the tags of each row.
    """
    if not is_bio(names):
        return Scheme(ANY)
    begun = wrong = odd_rows = 0
    for tags in rows:
        here = sum(not may_follow(before, tag) for before, tag in zip((None, *tags), tags, strict=False))
        begun, wrong, odd_rows = begun + sum(tag.startswith("B") for tag in tags), wrong + here, odd_rows + (here > 0)
    if wrong == 0:
        return Scheme(BIO)
    remark = f"in {plural(odd_rows, 'training row')} an I- tag does not continue an entity"
    if wrong > begun:
        return Scheme(ANY, f"{remark}, more often than an entity begins with B-: read as IOB1, any tag may follow any")
    return Scheme(BIO, f"{remark}, against BIO: the CRF learns from them and never predicts such tags")


def entity_scores(predicted: Sequence[list[str]], gold: Sequence[list[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over all entities (micro average), and the share of correctly tagged tokens.

    An entity is correct if its type, its first and its last token are those of a gold entity of the same sentence.

    Args:
        predicted: The predicted tags, one list per sentence.
        gold: The gold tags, one list per sentence, each as long as the predicted one.

    Returns:
        `precision`, `recall`, `f1` and `token_accuracy` as fractions; undefined ones are 0.
    """
    from seqeval.metrics.sequence_labeling import accuracy_score, precision_recall_fscore_support

    if not any(gold) and not any(predicted):
        return dict.fromkeys(SCORES, 0.0)
    with _any_tags():
        found = precision_recall_fscore_support(_read(gold), _read(predicted), average="micro", zero_division=0)
    scores = (*found[:3], accuracy_score(list(gold), list(predicted)))
    return {name: float(score) for name, score in zip(SCORES, scores, strict=True)}


def entity_type_scores(predicted: Sequence[list[str]], gold: Sequence[list[str]]) -> dict[str, dict[str, float]]:
    """Return `precision`, `recall`, `f1` and `support` of each entity type, by type; arguments as `entity_scores`."""
    from seqeval.metrics.sequence_labeling import get_entities, precision_recall_fscore_support

    right, found = _read(gold), _read(predicted)
    with _any_tags():
        types = sorted({kind for tags in (*right, *found) for kind, _, _ in get_entities(tags)})
        if not types:
            return {}
        scores = precision_recall_fscore_support(right, found, average=None, zero_division=0)
    return named_scores(types, scores)


def score_parts(score: str, predicted: list[str], gold: list[str]) -> tuple[int, int]:
    """Return the numerator and the denominator of a sentence; the score of several is the ratio of their sums."""
    from seqeval.metrics.sequence_labeling import get_entities

    if score == TOKEN_ACCURACY:
        return sum(tag == right for tag, right in zip(predicted, gold, strict=True)), len(gold)
    with _any_tags():
        found, true = (set(get_entities(tags)) for tags in _read([predicted, gold]))
    right = len(found & true)
    # F1 is the harmonic mean of precision and recall, without dividing by a sum of zeros.
    parts = {"precision": (right, len(found)), "recall": (right, len(true)), "f1": (2 * right, len(found) + len(true))}
    return parts[score]


def _read(sentences: Sequence[list[str]]) -> list[list[str]]:
    """The tags with the prefixes that seqeval knows."""
    return [[_BIOES.get(tag[0], tag[0]) + tag[1:] for tag in tags] for tags in sentences]


@contextmanager
def _any_tags() -> Iterator[None]:
    """Silence seqeval's warning about tags such as `M-PER` and `B_PER`, which it reads nevertheless."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*seems not to be NE tag")
        yield
