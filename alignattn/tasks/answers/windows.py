"""Questions and contexts as token ids; long contexts become overlapping windows."""

from bisect import bisect_left, bisect_right
from itertools import chain
from operator import itemgetter
from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from alignattn.tasks.long_texts import fixed_tokens, plain_tokens, truncated_texts, window_encodings
from alignattn.tasks.names import IS_TRUNCATED
from alignattn.tasks.task import map_rows
from alignattn.utils.errors import AlignAttnError

MAX_QUESTION_TOKENS = 64
"""Maximum tokens of a question, as in BERT's `run_squad.py`."""
NULL_POSITION = 0
"""The position of the [CLS] token, which means "no answer"."""
NO_CHARACTER = -1
"""The span of a token outside the context."""

PROBES = ("the small red cat a bird saw", "It sees U.S. (dogs), cat's-eyes and x-rays!", "in 1984 or 7 by 21:30")
"""Texts on which the offsets of a tokenizer are checked."""
SPACES = (" ", "Ġ")
"""A space in the tokens of byte-level tokenizers, without and with their own alphabet."""

_CONTEXT = 1  # the number of the second sequence


def encode_windows(
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    doc_stride: int,
    num_proc: int | None = None,
) -> datasets.Dataset:
    """Tokenize each question with its context, in as many windows of the context as necessary, without padding.

    Questions lose leading white space and are truncated to `MAX_QUESTION_TOKENS`, or to half of the tokens that special
    tokens and `doc_stride` leave if that is less. Offsets of words that start one character late are corrected.

    Args:
        dataset: rows with `question`, `context` and `answers` (`{"text": [...], "answer_start": [...]}`, characters
            from 0; no answers for an unanswerable question).
        tokenizer: a fast tokenizer whose sequences start with [CLS]; the context comes second.
        max_length: the maximum number of tokens per window, question and special tokens included.
        doc_stride: the number of context tokens that neighbouring windows share.
        num_proc: the number of processes that tokenize; this one when None.

    Returns:
        One row per window: `input_ids`, `attention_mask`, `token_type_ids` if the model has them; `start_positions` and
        `end_positions`, the first and the last token of the first answer, both `NULL_POSITION` if the window does not
        hold the whole answer; `row`, the number of the row in `dataset`, and `is_truncated`, whether its question is;
        `span_start` and `span_end`, the first and the last + 1 character of each token in the context, without white
        space around it (`NO_CHARACTER` outside the context; a token of white space alone ends before it starts).
    """
    name = type(tokenizer).__name__
    if not tokenizer.is_fast:
        raise AlignAttnError(f"question answering needs a fast tokenizer, and {name} is slow: choose another model")
    if tokenizer.cls_token_id is None or tokenizer("a", "a")["input_ids"][NULL_POSITION] != tokenizer.cls_token_id:
        raise AlignAttnError(
            f"question answering needs a tokenizer that adds a [CLS] token, and {name} does not: choose another model"
        )
    late_from = _late_from(tokenizer)
    question_tokens = max_question_tokens(tokenizer, max_length, doc_stride)
    number = datasets.Value("int32")
    features: dict[str, Any] = {
        name: datasets.List(datasets.Value(dtype))
        for name, dtype in {"input_ids": "int32", "token_type_ids": "int8", "attention_mask": "int8"}.items()
        if name in tokenizer.model_input_names
    }
    features |= dict.fromkeys(("start_positions", "end_positions", "row"), number)
    features[IS_TRUNCATED] = datasets.Value("bool")
    features |= dict.fromkeys(("span_start", "span_end"), datasets.List(number))
    return map_rows(
        dataset,
        _encode_batch,
        with_indices=True,
        fn_kwargs={
            "tokenizer": tokenizer,
            "max_length": max_length,
            "doc_stride": doc_stride,
            "question_tokens": question_tokens,
            "late_from": late_from,
        },
        remove_columns=dataset.column_names,
        features=datasets.Features(features),
        num_proc=num_proc,
        desc="tokenizing questions and contexts",
    )


def _late_from(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """Return the first context token of a window whose word may start one character late; None if all are in place.

    tokenizers moves the start of a byte-level token behind the space that it begins with, even if the text has no such
    space: RobBERT-2023's tokenizer splits at white space first, and then puts a space before each word. A token that
    begins a window may be an exception.

    Raises:
        AlignAttnError: if the offsets are wrong in another way.
    """
    room = tokenizer.num_special_tokens_to_add(pair=True) + len(plain_tokens(["a"], tokenizer)[0])
    known: list[tuple[str, list[Any]]] = []
    for text in PROBES:
        # As a whole, and each token in a window of its own.
        for size in (len(text), 1):
            encoding = window_encodings(
                tokenizer, ["a"], [text], truncation="only_second", max_length=room + size, doc_stride=0
            )
            kept = iter("".join(tokenizer.batch_decode(encoding["input_ids"])).casefold())
            # A tokenizer of molecules may drop letters, which no token then has to hold.
            if all(character in kept for character in text.casefold() if not character.isspace()):
                known.append((text, encoding.encodings or []))
    for late_from in (None, 1, 0):
        wrong = [text for text, windows in known if not _fits(text, windows, late_from)]
        if not wrong:
            return late_from
    raise AlignAttnError(
        f"question answering needs the place of each token in its text, and {type(tokenizer).__name__} gives wrong "
        f"offsets, such as for {wrong[0]!r}: choose another model"
    )


def _fits(text: str, windows: list[Any], late_from: int | None) -> bool:
    """Return whether the spans of a text's tokens are in order and together hold all of it but white space."""
    parts = [zip(*_context_spans(window, text, late_from), strict=True) for window in windows]
    spans = [(start, end) for start, end in chain.from_iterable(parts) if start != NO_CHARACTER]
    held = {place for start, end in spans for place in range(start, end)}
    is_whole = all(place in held or character.isspace() for place, character in enumerate(text))
    return is_whole and spans == sorted(spans, key=itemgetter(0))


def max_question_tokens(tokenizer: PreTrainedTokenizerBase, max_length: int, doc_stride: int) -> int:
    """Check the lengths and return the maximum number of tokens per question."""
    if doc_stride < 0:
        raise AlignAttnError(f"--doc_stride {doc_stride} is negative: give the number of tokens that windows share")
    if max_length > tokenizer.model_max_length:
        raise AlignAttnError(
            f"--max_length {max_length} is too long: the model takes at most {tokenizer.model_max_length} tokens"
        )
    return min(MAX_QUESTION_TOKENS, fixed_tokens(tokenizer, max_length, doc_stride, num_texts=2))


def _encode_batch(
    batch: dict[str, list[Any]],
    indices: list[int],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    doc_stride: int,
    question_tokens: int,
    late_from: int | None,
) -> dict[str, list[Any]]:
    questions = [question.lstrip() for question in batch["question"]]
    read = truncated_texts(questions, tokenizer, question_tokens)
    encoding = window_encodings(
        tokenizer,
        read,
        batch["context"],
        truncation="only_second",
        max_length=max_length,
        doc_stride=doc_stride,
    )
    samples: Any = encoding.pop("overflow_to_sample_mapping")
    spans = [
        _context_spans(window, batch["context"][sample], late_from)
        for window, sample in zip(encoding.encodings or (), samples, strict=True)
    ]
    positions = [
        _answer_positions(*window, batch["answers"][sample]) for window, sample in zip(spans, samples, strict=True)
    ]
    return {
        **encoding,
        "start_positions": [start for start, _ in positions],
        "end_positions": [end for _, end in positions],
        "row": [indices[sample] for sample in samples],
        IS_TRUNCATED: [read[sample] != questions[sample] for sample in samples],
        "span_start": [starts for starts, _ in spans],
        "span_end": [ends for _, ends in spans],
    }


def _context_spans(window: Any, context: str, late_from: int | None) -> tuple[list[int], list[int]]:
    """First and last + 1 character of each token of a `tokenizers.Encoding`, `NO_CHARACTER` outside the context."""
    starts: list[int] = []
    ends: list[int] = []
    sequences = window.sequence_ids
    tokens = [] if late_from is None or _CONTEXT not in sequences else window.tokens
    first = sequences.index(_CONTEXT) + (late_from or 0) if tokens else len(sequences)
    for position, (sequence, (start, end)) in enumerate(zip(sequences, window.offsets, strict=True)):
        if sequence != _CONTEXT:
            start, end = NO_CHARACTER, NO_CHARACTER
        else:
            if position >= first and tokens[position].startswith(SPACES):
                # Late, if the text has no space where the token begins with one.
                before, character = context[start - 1 : start], context[start : min(start + 1, end)]
                if before != "" and not before.isspace() and not character.isspace():
                    start -= 1
                    if tokens[position] in SPACES:
                        end = start
            # Byte-level tokenizers include the space before a word in its token (RoBERTa's only at the start of a
            # window). Start and end of a token of white space alone cross, so that no answer includes it.
            if context[start : start + 1].isspace() or context[end - 1 : end].isspace():
                while start < len(context) and context[start].isspace():
                    start += 1
                while end > 0 and context[end - 1].isspace():
                    end -= 1
        starts.append(start)
        ends.append(end)
    return starts, ends


def _answer_positions(starts: list[int], ends: list[int], answers: dict[str, list[Any]]) -> tuple[int, int]:
    """First and last token of the first answer in a window whose tokens have these spans."""
    null = (NULL_POSITION, NULL_POSITION)
    if not answers["text"]:
        return null
    text = answers["text"][0]
    # White space belongs to no token, so a window's first token may begin after it.
    answer_start = answers["answer_start"][0] + len(text) - len(text.lstrip())
    answer_end = answer_start + len(text.strip())
    inside = [position for position, start in enumerate(starts) if start != NO_CHARACTER]
    if not inside or starts[inside[0]] > answer_start or ends[inside[-1]] < answer_end:
        return null
    low, high = inside[0], inside[-1] + 1
    first = bisect_right(ends, answer_start, low, high)
    last = bisect_left(starts, answer_end, low, high) - 1
    return (first, last) if first <= last else null
