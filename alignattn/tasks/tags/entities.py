"""Entities in tag sequences, and how well predicted ones match: the definition of conlleval and of seqeval.

One set of rules reads every tagging scheme (IOB1, IOB2, IOE1, IOE2, BIOES) and every malformed sequence: an `I-` after
`O` or after another type starts an entity. It is that of `conlleval`, the script of the CoNLL-2000 to 2003 shared
tasks (Tjong Kim Sang & De Meulder 2003), as `seqeval` 1.2.2 has it by default. seqeval's `mode="strict"` is another
definition, and gives other numbers on malformed sequences.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

OUTSIDE = "O"
"""The tag of a token that is in no entity."""

TOKEN_ACCURACY: Final = "token_accuracy"  # noqa: S105
"""The one score that needs no entities."""

SCORES: Final = ("precision", "recall", "f1", TOKEN_ACCURACY)

_NO_TYPE = "_"
_OUTSIDE_PREFIXES = frozenset("O.")


class TagCounts(NamedTuple):
    """What the scores of one sentence or of several are made of.

    Attributes:
        right_entities: predicted, and of the type, the first and the last token of a gold one.
        predicted_entities: all of them.
        gold_entities: likewise.
        right_tokens: tokens with the gold tag.
        tokens: all of them.
    """

    right_entities: int
    predicted_entities: int
    gold_entities: int
    right_tokens: int
    tokens: int

    def parts(self, score: str) -> tuple[int, int]:
        """Return the numerator and the denominator of one of the scores of `entity_scores`."""
        if score == "precision":
            return self.right_entities, self.predicted_entities
        if score == "recall":
            return self.right_entities, self.gold_entities
        if score == TOKEN_ACCURACY:
            return self.right_tokens, self.tokens
        # The harmonic mean of precision and recall, without dividing by a sum of zeros.
        return 2 * self.right_entities, self.predicted_entities + self.gold_entities


class Entity(NamedTuple):
    """A run of tokens that are one entity: its type and its first and last token, counted from 0."""

    type: str
    first: int
    last: int


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence, in order.

    A tag's first character is its prefix, what follows up to and with the first hyphen is dropped, and the rest is
    its type: `B-PER` is (B, PER), `B` is (B, _). So too where there is no prefix, as seqeval does: `LOC` is (L, OC),
    which keeps types apart as long as their tails differ, but `ORG` is (O, RG) and therefore outside.

    Args:
        tags: One tag a token, none of them empty.
    """
    found = []
    first = 0
    before = (OUTSIDE, _NO_TYPE)
    for position, tag in enumerate([*tags, OUTSIDE]):
        here = _prefix_and_type(tag)
        if _ends(before, here):
            found.append(Entity(before[1], first, position - 1))
        if _starts(before, here):
            first = position
        before = here
    return found


def _prefix_and_type(tag: str) -> tuple[str, str]:
    if not tag:
        raise ValueError("a tag is empty: the tag of a token outside every entity is 'O'")
    return tag[0], tag[1:].split("-", maxsplit=1)[-1] or _NO_TYPE


def _ends(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether an entity ends with the token before."""
    (prefix_before, type_before), (prefix, type_here) = before, here
    if prefix_before in _OUTSIDE_PREFIXES:
        return False
    if prefix_before in "ES" or type_before != type_here:
        return True
    return prefix_before in "BI" and prefix in "BSO"


def _starts(before: tuple[str, str], here: tuple[str, str]) -> bool:
    """Whether an entity starts with this token."""
    (prefix_before, type_before), (prefix, type_here) = before, here
    if prefix in _OUTSIDE_PREFIXES:
        return False
    if prefix in "BS" or type_before != type_here:
        return True
    return prefix_before in "ESO" and prefix in "EI"


def entity_scores(predicted: Sequence[Sequence[str]], gold: Sequence[Sequence[str]]) -> dict[str, float]:
    """Precision, recall and F1 over all entities (micro average), and the share of tokens tagged right.

    An entity is right when its type, its first and its last token are those of a gold entity of the same sentence.

    Args:
        predicted: The predicted tags, a list a sentence.
        gold: The right tags, a list a sentence, each as long as the predicted one.

    Returns:
        `precision`, `recall`, `f1` and `token_accuracy` as fractions; 0 where there is nothing to divide by.
    """
    if [len(tags) for tags in predicted] != [len(tags) for tags in gold]:
        raise ValueError("predicted and gold tags differ in the number of sentences or of tokens")
    counts = map(tag_counts, predicted, gold)
    whole = TagCounts(*map(sum, zip(*counts, strict=True))) if gold else TagCounts(0, 0, 0, 0, 0)
    return {score: _share(*whole.parts(score)) for score in SCORES}


def tag_counts(predicted: Sequence[str], gold: Sequence[str]) -> TagCounts:
    """Return what the scores of a sentence are made of, tags as of `entity_scores`."""
    found, true = set(entities(predicted)), set(entities(gold))
    right_tokens = sum(tag == right for tag, right in zip(predicted, gold, strict=True))
    return TagCounts(len(found & true), len(found), len(true), right_tokens, len(gold))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
