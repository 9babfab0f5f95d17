"""Scores of the entities in tag sequences, by `seqeval` in its default mode.

That mode is the definition of `conlleval`, the script of the CoNLL-2000 to 2003 shared tasks (Tjong Kim Sang & De
Meulder 2003). It reads every tagging scheme (IOB1, IOB2, IOE1, IOE2, BIOES) and every malformed sequence: an `I-` after
`O` or after another type starts an entity. seqeval's `mode="strict"` gives other numbers on malformed sequences.
"""

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from seqeval.metrics.sequence_labeling import accuracy_score, get_entities, precision_recall_fscore_support

from alignattn.tasks.class_scores import named_scores

OUTSIDE = "O"
"""The tag of a token outside any entity."""

TOKEN_ACCURACY: Final = "token_accuracy"  # noqa: S105
"""The only metric that needs no entities."""

SCORES: Final = ("precision", "recall", "f1", TOKEN_ACCURACY)


def entity_scores(predicted: Sequence[list[str]], gold: Sequence[list[str]]) -> dict[str, float]:
    """Return precision, recall and F1 over all entities (micro average), and the share of correctly tagged tokens.

    An entity is correct if its type, its first and its last token are those of a gold entity of the same sentence.

    Args:
        predicted: The predicted tags, one list per sentence.
        gold: The gold tags, one list per sentence, each as long as the predicted one.

    Returns:
        `precision`, `recall`, `f1` and `token_accuracy` as fractions; undefined ones are 0.
    """
    if not any(gold) and not any(predicted):
        return dict.fromkeys(SCORES, 0.0)
    with _any_tags():
        found = precision_recall_fscore_support(list(gold), list(predicted), average="micro", zero_division=0)
    scores = (*found[:3], accuracy_score(list(gold), list(predicted)))
    return {name: float(score) for name, score in zip(SCORES, scores, strict=True)}


def entity_type_scores(predicted: Sequence[list[str]], gold: Sequence[list[str]]) -> dict[str, dict[str, float]]:
    """Return `precision`, `recall`, `f1` and `support` of each entity type, by type; arguments as `entity_scores`."""
    with _any_tags():
        types = sorted({kind for tags in (*gold, *predicted) for kind, _, _ in get_entities(tags)})
        if not types:
            return {}
        found = precision_recall_fscore_support(list(gold), list(predicted), average=None, zero_division=0)
    return named_scores(types, found)


def score_parts(score: str, predicted: list[str], gold: list[str]) -> tuple[int, int]:
    """Return the numerator and the denominator of a sentence; the score of several is the ratio of their sums."""
    if score == TOKEN_ACCURACY:
        return sum(tag == right for tag, right in zip(predicted, gold, strict=True)), len(gold)
    with _any_tags():
        found, true = set(get_entities(predicted)), set(get_entities(gold))
    right = len(found & true)
    # F1 is the harmonic mean of precision and recall, without dividing by a sum of zeros.
    parts = {"precision": (right, len(found)), "recall": (right, len(true)), "f1": (2 * right, len(found) + len(true))}
    return parts[score]


@contextmanager
def _any_tags() -> Iterator[None]:
    """Silence seqeval's warning about tags without a prefix, such as parts of speech."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*seems not to be NE tag")
        yield
