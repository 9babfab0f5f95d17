"""The official accuracy on hand-made answers."""

import pytest

from alignattn.tasks.vqa.official import CONTRACTIONS, answer_scores, plain_answer, vqa_accuracy


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        ("Yes.", "yes"),
        ("the cat", "cat"),
        ("Two dogs", "2 dogs"),
        ("none", "0"),
        ("dont know", "don't know"),
        ("red/white", "red white"),
        ("red / white", "red white"),
        ("1,000", "1000"),
        ("2.5 m", "2.5 m"),
        ("St. Louis", "st louis"),
        (" a\tbig\nbus ", "big bus"),
        ("it's", "it's"),
        ("its", "its"),
        ("he's at 7:30", "he's at 7:30"),
        ("t-shirt", "t shirt"),
        ("yes!", "yes"),
        ("no !", "no"),
        ("{red}", "red"),
        ("couldnt've", "couldn't've"),
        ("couldn'tve", "couldn't've"),
        ("yall'd've", "y'all'd've"),
        ("somebody'd", "somebodyd"),
    ],
)
def test_plain_answer_normalises_an_answer(given, plain):
    assert plain_answer(given) == plain


def test_contractions_are_those_of_the_official_list():
    assert len(CONTRACTIONS) == 114  # of 120; the others have capitals, or are unchanged
    assert {"aint", "oclock", "yall", "somebodys", "therere"} <= CONTRACTIONS.keys()


@pytest.mark.parametrize(("matches", "accuracy"), [(0, 0), (1, 0.3), (2, 0.6), (3, 0.9), (4, 1), (10, 1)])
def test_accuracy_is_the_mean_over_all_leave_one_out_sets(matches, accuracy):
    answers = ["Red."] * matches + [f"other {index}" for index in range(10 - matches)]
    by_loop = sum(
        min(sum(plain_answer(text) == "red" for other, text in enumerate(answers) if other != left_out) / 3, 1)
        for left_out in range(10)
    )
    # Ten answers that agree letter by letter are not normalised.
    assert vqa_accuracy("red", answers) == pytest.approx(accuracy if matches < 10 else 0)
    assert by_loop / 10 == pytest.approx(accuracy)


def test_answers_that_agree_letter_by_letter_are_not_normalised():
    assert vqa_accuracy("red", ["red"] * 10) == 1
    assert vqa_accuracy("red", ["Red"] * 10) == 0
    assert vqa_accuracy("red", ["Red"] * 9 + ["red"]) == 1


def test_scores_of_answers_are_their_accuracies():
    answers = ["red"] * 3 + ["the Red", "dark red", "dark red", "a b", "c", "d", "e"]
    assert answer_scores(answers) == pytest.approx({"red": 1, "dark red": 0.6, "b": 0.3, "c": 0.3, "d": 0.3, "e": 0.3})
    assert all(vqa_accuracy(text, answers) == pytest.approx(score) for text, score in answer_scores(answers).items())
