"""Exact match and F1 of SQuAD: hand-computed cases, torchmetrics as the oracle, thresholds by brute force."""

import numpy as np
import pytest
from torchmetrics.functional.text import squad

from alignattn.tasks.answers.squad_metric import (
    NO_ANSWER_THRESHOLD,
    exact_and_f1,
    final_answers,
    normalize_answer,
    squad_scores,
)
from alignattn.utils.errors import AlignAttnError

WORDS = ["the", "a", "cat", "Cat", "dog", "dogs", "red", "...", "1,000", "1000"]


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The Cat", "cat"),
        ("a cat, an owl and the dog!", "cat owl and dog"),
        ("  two\t words\n", "two words"),
        ("another theatre", "another theatre"),  # articles are whole words only
        ("U.S.A.", "usa"),  # punctuation is removed without leaving a gap
        ("the-cat", "thecat"),  # and is removed before the articles
        ("A.", ""),
        ("1,000", "1000"),
        ("“quoted”", "“quoted”"),  # only ASCII punctuation counts
        ("Straße", "straße"),
        ("", ""),
    ],
)
def test_normalize_answer(text, normal):
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("prediction", "golds", "exact", "overlap"),
    [
        ("the cat", ("Cat.",), 1.0, 1.0),
        ("red cat", ("cat",), 0.0, 2 / 3),  # precision 1/2, recall 1
        ("red cat", ("dog", "big red cat"), 0.0, 0.8),  # the best gold: precision 1, recall 2/3
        ("cat", ("dog", "cat", "cat"), 1.0, 1.0),
        ("cat cat dog", ("cat dog dog",), 0.0, 2 / 3),  # words count as often as both have them
        ("cat", ("dog",), 0.0, 0.0),
        ("", ("cat",), 0.0, 0.0),
        ("the", ("cat",), 0.0, 0.0),
    ],
)
@pytest.mark.parametrize("version", ["1.1", "2.0"])
def test_scores_by_hand(prediction, golds, exact, overlap, version):
    assert exact_and_f1(prediction, golds, version) == (exact, pytest.approx(overlap, abs=1e-12))


@pytest.mark.parametrize(
    ("prediction", "golds", "of_v1", "of_v2"),
    [
        ("", (), (1.0, 0.0), (1.0, 1.0)),
        ("cat", (), (0.0, 0.0), (0.0, 0.0)),
        ("the", (), (1.0, 0.0), (1.0, 1.0)),
        ("the", ("an",), (1.0, 0.0), (1.0, 1.0)),  # v2.0 drops the gold, and none is left
        ("the", ("an", "cat"), (1.0, 0.0), (0.0, 0.0)),  # v2.0 drops the gold, and "cat" is left
        ("cat", ("an", "cat"), (1.0, 1.0), (1.0, 1.0)),
    ],
)
def test_texts_that_normalise_to_nothing(prediction, golds, of_v1, of_v2):
    assert exact_and_f1(prediction, golds, "1.1") == of_v1
    assert exact_and_f1(prediction, golds) == of_v2


def random_texts(generator, size, least=1):
    return [" ".join(generator.choice(WORDS, size=generator.integers(least, 4))) for _ in range(size)]


def test_version_1_against_torchmetrics():
    generator = np.random.default_rng(0)
    # Without texts that normalise to nothing, which torchmetrics scores as version 2.0 does.
    answers = [text for text in random_texts(generator, 300) if normalize_answer(text)]
    golds = [
        [text for text in random_texts(generator, 3) if normalize_answer(text)] or ["cat"] for _ in range(len(answers))
    ]
    expected = squad(
        [{"id": str(row), "prediction_text": answer} for row, answer in enumerate(answers)],
        [
            {"id": str(row), "answers": {"text": texts, "answer_start": [0] * len(texts)}}
            for row, texts in enumerate(golds)
        ],
    )
    scores = squad_scores(answers, golds)
    assert 0.05 < scores.metrics["exact"] < scores.metrics["f1"] < 0.95
    assert {name: 100 * value for name, value in scores.metrics.items()} == pytest.approx(
        {"exact": float(expected["exact_match"]), "f1": float(expected["f1"])}, rel=1e-5
    )
    assert scores.thresholds == {}


def test_version_2_by_hand():
    answers = ["the cat", "red dog", "bird", "bird"]
    golds = [("cat",), ("dog",), (), ()]
    scores = squad_scores(answers, golds, [-3.0, 1.0, -2.0, 2.0])
    # Answered as given: "the cat" (right), "" (wrong), "bird" (wrong), "" (right).
    # Thresholds: 2 of 4 right with nothing answered; up to -3: 3; up to -2: 2; up to 1: 2, F1 2 + 2/3; up to 2: 1.
    assert scores.metrics == pytest.approx(
        {
            "exact": 0.5,
            "f1": 0.5,
            "has_answer_exact": 0.5,
            "has_answer_f1": 0.5,
            "no_answer_exact": 0.5,
            "no_answer_f1": 0.5,
            "best_exact": 0.75,
            "best_f1": 0.75,
        },
        abs=1e-12,
    )
    assert scores.thresholds == {"best_exact": -3.0, "best_f1": -3.0}


def test_the_two_thresholds_are_tuned_separately():
    scores = squad_scores(["cat", "red dog"], [("cat",), ("dog",)], [1.0, 5.0])
    assert scores.metrics["exact"] == scores.metrics["f1"] == 0.0  # both are above the threshold as given
    assert (scores.metrics["best_exact"], scores.thresholds["best_exact"]) == (0.5, 1.0)
    assert (scores.metrics["best_f1"], scores.thresholds["best_f1"]) == (pytest.approx(5 / 6), 5.0)


@pytest.mark.parametrize(("golds", "left_out"), [((), "has_answer"), (("cat",), "no_answer")])
def test_a_group_without_rows_is_left_out(golds, left_out):
    metrics = squad_scores(["cat"], [golds], [-1.0]).metrics
    assert not [name for name in metrics if name.startswith(left_out)]
    assert len(metrics) == 6


def test_the_threshold_is_0_where_answering_nothing_is_best():
    scores = squad_scores(["cat", "dog"], [(), ()], [-1.0, -2.0])
    assert (scores.metrics["exact"], scores.metrics["best_exact"]) == (0.0, 1.0)
    assert scores.thresholds == {"best_exact": 0.0, "best_f1": 0.0}


def test_final_answers_are_empty_above_the_threshold_only():
    assert final_answers(["a", "b", "c"], [NO_ANSWER_THRESHOLD - 1, NO_ANSWER_THRESHOLD, 1e-9]) == ["a", "b", ""]


def brute_force_best(score, answers, golds, no_answer_scores):
    def mean_at(threshold):
        finals = [answer if null <= threshold else "" for answer, null in zip(answers, no_answer_scores, strict=True)]
        # Rounded, because sums in another order may differ in the last bit: of equals, the lowest threshold counts.
        return round(np.mean([score(final, texts) for final, texts in zip(finals, golds, strict=True)]), 12)

    return max((mean_at(threshold), -threshold) for threshold in [-np.inf, *no_answer_scores])


@pytest.mark.parametrize("seed", range(10))
def test_best_thresholds_against_brute_force(seed):
    generator = np.random.default_rng(seed)
    size = 80
    golds = [random_texts(generator, 3) if generator.random() < 0.6 else [] for _ in range(size)]
    # Without texts that normalise to nothing: for them, the sums of the official script differ from the scores.
    golds = [[text for text in texts if normalize_answer(text)] for texts in golds]
    answers = [text if normalize_answer(text) else "cat" for text in random_texts(generator, size)]
    nulls = generator.normal(size=size) + np.array([0.0 if texts else 1.0 for texts in golds])
    scores = squad_scores(answers, golds, nulls.tolist())
    for place, name in enumerate(("best_exact", "best_f1")):
        best, minus_threshold = brute_force_best(
            lambda answer, texts, place=place: exact_and_f1(answer, texts)[place], answers, golds, nulls.tolist()
        )
        assert scores.metrics[name] == pytest.approx(best, abs=1e-12)
        assert scores.thresholds[name] == (-minus_threshold if np.isfinite(minus_threshold) else 0.0)


def test_no_rows_raise():
    with pytest.raises(AlignAttnError, match="at least 1 row"):
        squad_scores([], [])


@pytest.mark.parametrize(("golds", "nulls"), [([()], None), ([()], [0.0]), ([(), ()], [0.0])])
def test_lengths_that_differ_raise(golds, nulls):
    with pytest.raises(ValueError, match=r"shorter|longer"):
        squad_scores(["cat", "dog"], golds, nulls)
