"""Exact match and F1 of extractive question answering, as the official SQuAD scripts define them.

Sources: `evaluate-v1.1.py` (Rajpurkar et al. 2016) and `evaluate-v2.0.py` (Rajpurkar et al. 2018). The scripts differ
only where a text normalises to nothing ("the", "..."): v1.1 gives F1 0 then; v2.0 drops such golds and compares.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from alignattn.utils.errors import AlignAttnError

SquadVersion = Literal["1.1", "2.0"]

NO_ANSWER_THRESHOLD = 0.0
"""A question with a higher no-answer score is left unanswered: the null span beats the best answer."""
NO_ANSWER = ""

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class SquadScores:
    """The result of `squad_scores`.

    Attributes:
        metrics: Fractions by name.
        thresholds: The no-answer scores up to which `best_exact` and `best_f1` answer questions; empty for SQuAD 1.1.
    """

    metrics: dict[str, float]
    thresholds: dict[str, float] = field(default_factory=dict)


def normalize_answer(text: str) -> str:
    """Return a text in lower case without ASCII punctuation, English articles and superfluous white space."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_WITHOUT_PUNCTUATION)).split())


def final_answers(answers: Sequence[str], no_answer_scores: Sequence[float]) -> list[str]:
    """Return the answers, empty if the no-answer score is above `NO_ANSWER_THRESHOLD`."""
    return [
        NO_ANSWER if score > NO_ANSWER_THRESHOLD else answer
        for answer, score in zip(answers, no_answer_scores, strict=True)
    ]


def squad_scores(
    answers: Sequence[str], golds: Sequence[Sequence[str]], no_answer_scores: Sequence[float] | None = None
) -> SquadScores:
    """Score answers by SQuAD 2.0 if there are no-answer scores, and by SQuAD 1.1 otherwise.

    Args:
        answers: `[N]`, the best answer to each question, for SQuAD 2.0 never "no answer".
        golds: `[N]`, the gold answers to each question; none for an unanswerable one.
        no_answer_scores: `[N]`, how much better "no answer" is than the answer, for SQuAD 2.0; None for 1.1.

    Returns:
        `exact` and `f1`. For SQuAD 2.0 both are computed from the `final_answers`, and there are also
        `has_answer_exact`, `has_answer_f1`, `no_answer_exact`, `no_answer_f1` (for the answerable and the unanswerable
        questions, if any) and `best_exact`, `best_f1` with the best threshold for these rows. As in the official
        script, that threshold is 0.0 if answering nothing is best, and rows with equal no-answer scores count one by
        one in order.
    """
    if not len(answers):
        raise AlignAttnError("exact match and F1 need at least 1 row and got 0: evaluate on more rows")
    if no_answer_scores is None:
        exact, f1_ = _scores(answers, golds, "1.1")
        return SquadScores({"exact": float(exact.mean()), "f1": float(f1_.mean())})
    exact, f1_ = _scores(final_answers(answers, no_answer_scores), golds, "2.0")
    metrics = {"exact": float(exact.mean()), "f1": float(f1_.mean())}
    answerable = np.array([len(texts) > 0 for texts in golds])
    for group, members in (("has_answer", answerable), ("no_answer", ~answerable)):
        if members.any():
            metrics |= {f"{group}_exact": float(exact[members].mean()), f"{group}_f1": float(f1_[members].mean())}

    # The best mean score over the thresholds, as by `find_best_thresh` of `evaluate-v2.0.py`.
    thresholds = {}
    is_text = np.array([bool(answer) for answer in answers])
    by_threshold = np.asarray(no_answer_scores, float)
    order = np.argsort(by_threshold, kind="stable")
    for name, scores in zip(("best_exact", "best_f1"), _scores(answers, golds, "2.0"), strict=True):
        # What answering each question adds to the sum of scores; an unanswerable one scores 1 unanswered.
        gains = np.where(answerable, scores, -is_text.astype(float))
        sums = np.cumsum(np.concatenate([[float((~answerable).sum())], gains[order]]))
        best = int(sums.argmax())  # the first in a tie, as by the script's strict comparison
        metrics[name] = float(sums[best]) / len(gains)
        thresholds[name] = float(by_threshold[order[best - 1]]) if best else NO_ANSWER_THRESHOLD
    return SquadScores(metrics, thresholds)


def _scores(
    answers: Sequence[str], golds: Sequence[Sequence[str]], version: SquadVersion
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    pairs = [exact_and_f1(answer, texts, version) for answer, texts in zip(answers, golds, strict=True)]
    scores = np.array(pairs, dtype=np.float64)
    return scores[:, 0], scores[:, 1]


def exact_and_f1(prediction: str, golds: Sequence[str], version: SquadVersion = "2.0") -> tuple[float, float]:
    """Return exact match and F1 of a prediction.

    Exact match is 1.0 if the prediction is one of the golds after normalisation. F1 is of the normalised words that
    prediction and gold share (as multisets), the best over the golds.

    Args:
        prediction: the answer; empty for "no answer".
        golds: the gold answers; none for an unanswerable question.
        version: the version whose rule applies to texts that normalise to nothing.
    """
    answer = normalize_answer(prediction)
    references = {normalize_answer(gold) for gold in golds} or {NO_ANSWER}
    if version == "2.0":
        references = references - {NO_ANSWER} or {NO_ANSWER}
    exact = float(answer in references)
    if exact and (answer or version == "2.0"):
        return exact, 1.0
    words, best = answer.split(), 0.0
    for gold in map(str.split, references):
        if shared := (Counter(words) & Counter(gold)).total():
            best = max(best, 2 * shared / (len(words) + len(gold)))
    return exact, best
