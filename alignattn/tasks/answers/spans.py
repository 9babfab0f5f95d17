"""The best answers by the start and end scores of tokens: exact substrings of the contexts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from alignattn.tasks.answers.windows import NO_CHARACTER, NULL_POSITION
from alignattn.tasks.task import check_finite

_WINDOWS_AT_ONCE = 1024  # some 10 MB with 20 × 20 pairs per window


@dataclass(frozen=True)
class AnswerCandidates:
    """The answers to one question, best first; at least one.

    Attributes:
        texts: Substrings of the context, each span once; one empty text if no span is possible.
        scores: The start logit plus the end logit of each, the best over windows.
        starts: The first character of each in the context.
        no_answer_score: How much better "no answer" is than the best of them: the minimum over windows of [CLS]'s start
            logit plus end logit, minus the best score. Positive is "no answer" (Devlin et al. 2019, section 4.3).
        probabilities: The softmax of `scores`.
    """

    texts: tuple[str, ...]
    scores: tuple[float, ...]
    starts: tuple[int, ...]
    no_answer_score: float
    probabilities: tuple[float, ...]


@dataclass(frozen=True)
class _Spans:
    """Candidates of several windows, [C] each."""

    row: NDArray[np.int64]
    start: NDArray[np.int64]
    end: NDArray[np.int64]
    score: NDArray[np.float64]

    def take(self, chosen: NDArray[Any] | slice) -> "_Spans":
        return _Spans(self.row[chosen], self.start[chosen], self.end[chosen], self.score[chosen])


def best_answers(
    rows: ArrayLike,
    span_start: Sequence[Sequence[int]],
    span_end: Sequence[Sequence[int]],
    start_logits: NDArray[Any],
    end_logits: NDArray[Any],
    contexts: Sequence[str],
    *,
    n_best: int = 20,
    max_answer_length: int = 30,
) -> list[AnswerCandidates]:
    """Return the best answers to each question, from the windows of `encode_windows`.

    Args:
        rows: `[W]`, the context of each window; every context has a window.
        span_start: `[W]` lists, the first character of each token, `NO_CHARACTER` outside the context; the length of a
            list is the window's, and logits beyond it (padding) are ignored.
        span_end: `[W]` lists, the character after the last one of each token.
        start_logits: `[W, n]`, scores of each token as the first one of the answer.
        end_logits: `[W, n]`, scores of each token as the last one of the answer.
        contexts: `[N]` texts.
        n_best: the number of starts and ends of a window to pair, and the maximum number of answers per question.
        max_answer_length: the maximum number of tokens per answer.

    Returns:
        One item per context. If no span is possible (a context without tokens), its score is 0, as in transformers'
        `run_qa.py`.
    """
    window_rows = np.asarray(rows, dtype=np.int64)
    starts, ends = np.asarray(start_logits), np.asarray(end_logits)
    if starts.ndim != 2 or starts.shape != ends.shape:
        raise ValueError(f"start logits {starts.shape} and end logits {ends.shape} must both be [W, n]")
    if not len(window_rows) == len(span_start) == len(span_end) == len(starts):
        raise ValueError(f"{len(window_rows)} rows, {len(span_start)} and {len(span_end)} spans, {len(starts)} logits")
    if len(window_rows) and not 0 <= window_rows.min() <= window_rows.max() < len(contexts):
        raise ValueError(f"rows {window_rows.min()} to {window_rows.max()} are not all of {len(contexts)} contexts")
    is_real = np.arange(starts.shape[1]) < np.fromiter(map(len, span_start), np.int64)[:, np.newaxis]
    for logits in (starts, ends):
        check_finite(logits[is_real])
    if not len(contexts):
        return []

    null_scores = np.full(len(contexts), np.inf)
    found: list[_Spans] = []
    for low in range(0, len(window_rows), _WINDOWS_AT_ONCE):
        part = slice(low, low + _WINDOWS_AT_ONCE)
        places = _padded(span_start[part], starts.shape[1]), _padded(span_end[part], starts.shape[1])
        null = starts[part, NULL_POSITION].astype(np.float64) + ends[part, NULL_POSITION]
        np.minimum.at(null_scores, window_rows[part], null)
        found.append(
            _window_candidates(window_rows[part], *places, starts[part], ends[part], n_best, max_answer_length)
        )
    if not np.isfinite(null_scores).all():
        raise ValueError(f"context {int(np.argmax(null_scores))} has no window")
    names = ("row", "start", "end", "score")
    joined = _Spans(*(np.concatenate([getattr(part, name) for part in found]) for name in names))
    candidates = _best_of_rows(joined, n_best)
    bounds = np.searchsorted(candidates.row, np.arange(len(contexts) + 1))

    answers = []
    for context, low, high, null in zip(contexts, bounds[:-1], bounds[1:], null_scores.tolist(), strict=True):
        spans = candidates.take(slice(low, high))
        if not len(spans.score):
            answers.append(AnswerCandidates(("",), (0.0,), (0,), no_answer_score=null, probabilities=(1.0,)))
            continue
        weights = np.exp(spans.score - spans.score[0])
        answers.append(
            AnswerCandidates(
                texts=tuple(context[start:end] for start, end in zip(spans.start, spans.end, strict=True)),
                scores=tuple(spans.score.tolist()),
                starts=tuple(spans.start.tolist()),
                no_answer_score=null - float(spans.score[0]),
                probabilities=tuple((weights / weights.sum()).tolist()),
            )
        )
    return answers


def _padded(lists: Sequence[Sequence[int]], width: int) -> NDArray[np.int64]:
    """`[W, width]`, `NO_CHARACTER` beyond the lists."""
    lengths = np.fromiter(map(len, lists), np.int64)
    if len(lengths) and lengths.max() > width:
        raise ValueError(f"a window of {lengths.max()} tokens has logits for {width}")
    padded = np.full((len(lengths), width), NO_CHARACTER, dtype=np.int64)
    padded[np.arange(width) < lengths[:, np.newaxis]] = np.fromiter(chain.from_iterable(lists), np.int64)
    return padded


def _window_candidates(
    rows: NDArray[np.int64],
    span_start: NDArray[np.int64],
    span_end: NDArray[np.int64],
    starts: NDArray[Any],
    ends: NDArray[Any],
    n_best: int,
    max_answer_length: int,
) -> _Spans:
    """The best `n_best` spans of each window, from its best starts and best ends; all arrays are `[W, n]`."""
    in_context = span_start != NO_CHARACTER
    first, first_score = _top(np.where(in_context, starts, -np.inf), n_best)
    last, last_score = _top(np.where(in_context, ends, -np.inf), n_best)
    span = last[:, np.newaxis, :] - first[:, :, np.newaxis]
    score = first_score[:, :, np.newaxis] + last_score[:, np.newaxis, :]
    score[(span < 0) | (span >= max_answer_length)] = -np.inf

    pair, score = _top(score.reshape(len(rows), -1), n_best)
    begin = np.take_along_axis(span_start, np.take_along_axis(first, pair // last.shape[1], 1), 1)
    end = np.take_along_axis(span_end, np.take_along_axis(last, pair % last.shape[1], 1), 1)
    possible = np.isfinite(score) & (end > begin)
    row = np.broadcast_to(rows[:, np.newaxis], score.shape)
    return _Spans(row[possible], begin[possible], end[possible], score[possible])


def _top(scores: NDArray[Any], size: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """The positions of the highest `size` scores of each row, unordered, and the scores: `[W, size]` each."""
    size = min(size, scores.shape[1])
    chosen = np.argpartition(scores, scores.shape[1] - size, axis=1)[:, scores.shape[1] - size :]
    return chosen, np.take_along_axis(scores, chosen, 1).astype(np.float64)


def _best_of_rows(spans: _Spans, n_best: int) -> _Spans:
    """The best `n_best` distinct spans of each row, sorted by row, best first, ties by position."""
    spans = spans.take(np.lexsort((-spans.score, spans.end, spans.start, spans.row)))
    keys = np.stack([spans.row, spans.start, spans.end])
    is_new = np.ones(len(spans.row), dtype=bool)
    is_new[1:] = (keys[:, 1:] != keys[:, :-1]).any(axis=0)
    spans = spans.take(is_new)
    spans = spans.take(np.lexsort((spans.end, spans.start, -spans.score, spans.row)))
    rank = np.arange(len(spans.row)) - np.searchsorted(spans.row, spans.row)
    return spans.take(rank < n_best)
