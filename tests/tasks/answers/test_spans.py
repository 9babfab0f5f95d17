"""Answers from logits, compared with a double loop over tokens, and from logits that point at known tokens."""

from itertools import product

import datasets
import numpy as np
import pytest
import transformers

from alignattn.tasks.answers.spans import AnswerCandidates, best_answers
from alignattn.tasks.answers.windows import NO_CHARACTER, encode_windows
from alignattn.utils.errors import AlignAttnError

TEXT = "abcdefghijklmnopqrstuvwxyz"
QUESTION = 3  # tokens of [CLS] and the question in `letters`


def letters(first, size):
    """The spans of a window of [CLS], two question tokens, `size` tokens of one letter each and [SEP]."""
    outside = [NO_CHARACTER] * QUESTION
    return (
        [*outside, *range(first, first + size), NO_CHARACTER],
        [*outside, *range(first + 1, first + size + 1), NO_CHARACTER],
    )


# Two contexts of 26 letters in three and two windows, which are not in order.
LAYOUT = ((0, 0, 12), (1, 0, 14), (0, 7, 12), (1, 10, 16), (0, 14, 12))
ROWS = [row for row, _, _ in LAYOUT]
STARTS, ENDS = (list(spans) for spans in zip(*(letters(first, size) for _, first, size in LAYOUT), strict=True))
WIDTH = 20


def random_logits(seed, width=WIDTH):
    generator = np.random.default_rng(seed)
    starts, ends = generator.normal(size=(2, len(ROWS), width)).astype(np.float32)
    return starts, ends


def brute_force(row, starts, ends, n_best, max_answer_length):
    """The best score of each possible span of a context, by a double loop over the tokens of its windows."""
    spans: dict[tuple[int, int], float] = {}
    for window in (number for number, owner in enumerate(ROWS) if owner == row):
        tokens = [position for position, start in enumerate(STARTS[window]) if start != NO_CHARACTER]
        best_firsts = sorted(tokens, key=lambda token: -starts[window, token])[:n_best]
        best_lasts = sorted(tokens, key=lambda token: -ends[window, token])[:n_best]
        for first, last in product(best_firsts, best_lasts):
            if first <= last < first + max_answer_length:
                span = (STARTS[window][first], ENDS[window][last])
                score = float(starts[window, first]) + float(ends[window, last])
                spans[span] = max(score, spans.get(span, -np.inf))
    return spans


@pytest.mark.parametrize("n_best", [1, 3, 1000])
@pytest.mark.parametrize(("max_answer_length", "seed"), [(1, 0), (4, 1), (30, 2)])
def test_against_brute_force(n_best, max_answer_length, seed):
    starts, ends = random_logits(seed)
    answers = best_answers(
        ROWS, STARTS, ENDS, starts, ends, [TEXT, TEXT], n_best=n_best, max_answer_length=max_answer_length
    )
    assert len(answers) == 2
    for row, answer in enumerate(answers):
        spans = brute_force(row, starts, ends, n_best, max_answer_length)
        null = min(
            float(starts[window, 0]) + float(ends[window, 0]) for window, owner in enumerate(ROWS) if owner == row
        )
        if not spans:
            assert answer == AnswerCandidates(("",), (0.0,), (0,), null, (1.0,))
            continue
        expected = sorted(spans.items(), key=lambda item: -item[1])[:n_best]
        assert answer.texts == tuple(TEXT[start:end] for (start, end), _ in expected)
        assert answer.starts == tuple(start for (start, _), _ in expected)
        assert answer.scores == tuple(score for _, score in expected)
        assert answer.no_answer_score == null - expected[0][1]
        weights = np.exp(np.array(answer.scores))
        assert answer.probabilities == pytest.approx(weights / weights.sum(), rel=1e-12)


def test_processing_windows_in_several_parts_changes_nothing(monkeypatch):
    starts, ends = random_logits(3)
    whole = best_answers(ROWS, STARTS, ENDS, starts, ends, [TEXT, TEXT])
    monkeypatch.setattr("alignattn.tasks.answers.spans._WINDOWS_AT_ONCE", 2)
    assert best_answers(ROWS, STARTS, ENDS, starts, ends, [TEXT, TEXT]) == whole


@pytest.mark.parametrize("fill", [-100.0, 1e4, np.nan, np.inf])
def test_padding_changes_nothing(fill):
    starts, ends = random_logits(4)
    padded = [np.full((len(ROWS), WIDTH + 7), fill, dtype=np.float32) for _ in range(2)]
    for window, spans in enumerate(STARTS):
        padded[0][window, : len(spans)] = starts[window, : len(spans)]
        padded[1][window, : len(spans)] = ends[window, : len(spans)]
    expected = best_answers(ROWS, STARTS, ENDS, starts, ends, [TEXT, TEXT])
    assert best_answers(ROWS, STARTS, ENDS, *padded, [TEXT, TEXT]) == expected


def test_a_span_in_two_windows_is_kept_once_with_its_best_score():
    starts, ends = (np.full((2, 6), -5.0) for _ in range(2))
    spans = [[*letters(0, 2)], [*letters(1, 2)]]  # windows "ab" and "bc"
    starts[0, QUESTION + 1] = ends[0, QUESTION + 1] = 2.0  # "b"
    starts[1, QUESTION] = ends[1, QUESTION] = 3.0  # "b" again
    (answer,) = best_answers([0, 0], [spans[0][0], spans[1][0]], [spans[0][1], spans[1][1]], starts, ends, ["abc"])
    assert answer.texts.count("b") == 1
    assert (answer.texts[0], answer.scores[0], answer.starts[0]) == ("b", 6.0, 1)


def test_the_null_score_is_the_minimum_over_the_windows():
    starts, ends = (np.zeros((2, 6)) for _ in range(2))
    starts[:, 0], ends[:, 0] = [7.0, 1.0], [1.0, 2.0]
    first, last = letters(0, 2)
    (answer,) = best_answers([0, 0], [first, first], [last, last], starts, ends, ["ab"])
    assert answer.no_answer_score == 3.0


def test_white_space_alone_is_no_answer():
    logits = np.array([[0.0, 1.0, 9.0, 1.0, 0.0]])
    # Tokens "a", " " and "b"; the ends of the second cross.
    (answer,) = best_answers(
        [0], [[NO_CHARACTER, 0, 2, 2, NO_CHARACTER]], [[NO_CHARACTER, 1, 1, 3, NO_CHARACTER]], logits, logits, ["a b"]
    )
    assert dict(zip(answer.texts, answer.scores, strict=True)) == {"a": 10.0, "b": 10.0, "a b": 2.0}


def test_tokens_of_the_question_are_never_an_answer():
    starts, ends = (np.zeros((1, 6)) for _ in range(2))
    starts[0, 1] = ends[0, 2] = 50.0
    first, last = letters(0, 2)
    (answer,) = best_answers([0], [first], [last], starts, ends, ["ab"])
    assert set(answer.texts) == {"a", "b", "ab"}
    assert max(answer.scores) == 0.0


@pytest.mark.parametrize(
    ("wrong", "position", "side"), [(np.nan, 0, 0), (np.inf, 2, 1), (-np.inf, 5, 0), (np.nan, 5, 1)]
)
def test_logits_that_are_not_finite_raise(wrong, position, side):
    logits = random_logits(5)
    logits[side][1, position] = wrong
    with pytest.raises(AlignAttnError, match="hold NaN or infinity: the training diverged"):
        best_answers(ROWS, STARTS, ENDS, *logits, [TEXT, TEXT])


@pytest.mark.parametrize(
    ("rows", "width", "contexts", "message"),
    [
        (ROWS, WIDTH - 1, 2, "20 tokens has logits for 19"),
        (ROWS[1:], WIDTH, 2, "4 rows"),
        (ROWS, WIDTH, 1, "rows 0 to 1"),
        (ROWS, WIDTH, 3, "context 2 has no window"),
    ],
)
def test_shapes_that_do_not_fit_raise(rows, width, contexts, message):
    with pytest.raises(ValueError, match=message):
        best_answers(rows, STARTS, ENDS, *random_logits(0, width), [TEXT] * contexts)


def test_no_rows_have_no_answers():
    assert best_answers([], [], [], np.zeros((0, 4)), np.zeros((0, 4)), []) == []


def pointing_logits(windows, golds):
    """The logits of a perfect model: 10 where a token starts or ends the answer of its row, 5 at [CLS], 0 elsewhere."""
    width = max(map(len, windows["input_ids"]))
    starts, ends = (np.full((len(windows), width), 0.0, dtype=np.float32) for _ in range(2))
    for number, window in enumerate(windows):
        first, last = golds[window["row"]]
        for position, (start, end) in enumerate(zip(window["span_start"], window["span_end"], strict=True)):
            starts[number, position] = 10 * (start == first)
            ends[number, position] = 10 * (end == last)
        starts[number, 0] = ends[number, 0] = 5
    return starts, ends


def encoded(contexts, tokenizer):
    size = len(contexts)
    rows = {"question": ["which one?"] * size, "context": contexts}
    rows["answers"] = [{"text": [], "answer_start": []}] * size
    return encode_windows(datasets.Dataset.from_dict(rows), tokenizer, max_length=32, doc_stride=12)


def test_a_model_that_points_at_tokens_gives_exact_substrings(minilm):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    pairs = [
        ("北京是中华人民共和国的首都，面积约一万六千平方公里。" * 2 + "上海在东海边。", "上海"),
        ("We ate 🍣 in Köln and saw the  Élysée Palace 🎉 at noon. " * 3 + "Then 👍 home.", "👍 home"),
        ("İstanbul’da ﬁve cafés opened; “naïve” people sat in the Straßenbahn all day long, I am told.", "Straßenbahn"),
        ("Short.", "Short"),
    ]
    contexts = [context for context, _ in pairs]
    golds = [(context.index(answer), context.index(answer) + len(answer)) for context, answer in pairs]
    windows = encoded(contexts, tokenizer)
    assert len(windows) >= 8
    answers = best_answers(
        windows["row"],
        windows["span_start"],
        windows["span_end"],
        *pointing_logits(windows, golds),
        contexts,
    )
    for (context, gold), (start, _), answer in zip(pairs, golds, answers, strict=True):
        assert (answer.texts[0], answer.starts[0], answer.scores[0]) == (gold, start, 20.0)
        assert answer.no_answer_score == -10.0
        assert all(context.startswith(text, at) and text for text, at in zip(answer.texts, answer.starts, strict=True))


def test_a_context_without_tokens_has_an_empty_answer(minilm):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    windows = encoded([" ", "Rome"], tokenizer)
    logits = np.full((2, max(map(len, windows["input_ids"]))), 0.25)
    answers = best_answers(windows["row"], windows["span_start"], windows["span_end"], logits, logits, [" ", "Rome"])
    assert answers[0] == AnswerCandidates(("",), (0.0,), (0,), 0.5, (1.0,))
    assert answers[1].texts == ("Rome",)


def test_real_rows(shared_data, minilm):
    tokenizer = transformers.AutoTokenizer.from_pretrained(minilm)
    dataset = datasets.Dataset.from_parquet(str(shared_data / "squad" / "validation.parquet"), keep_in_memory=True)
    dataset = dataset.select(range(200))
    windows = encode_windows(dataset, tokenizer, max_length=128, doc_stride=64)
    golds = [
        (answers["answer_start"][0], answers["answer_start"][0] + len(answers["text"][0]))
        for answers in dataset["answers"]
    ]
    answers = best_answers(
        windows["row"],
        windows["span_start"],
        windows["span_end"],
        *pointing_logits(windows, golds),
        dataset["context"],
        max_answer_length=60,
    )
    right = [answer.texts[0] == golds["text"][0] for answer, golds in zip(answers, dataset["answers"], strict=True)]
    # A published answer may end within a token.
    assert sum(right) >= 0.97 * len(right)
