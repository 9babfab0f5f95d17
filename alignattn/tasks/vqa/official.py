"""The official accuracy of visual question answering, and its normalisation of answers.

Antol et al. 2015, "VQA: Visual Question Answering", as in its evaluation code of 2021 (github.com/GT-Vision-Lab/VQA).
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence

ENOUGH = 3
"""Number of people who must agree with an answer for full accuracy."""

PUNCTUATION = ';/[]"{}()=+\\_-><@`,?!'
COMMA_OF_NUMBER = re.compile(r"\d,\d")
PERIOD = re.compile(r"\.(?!\d)")
ARTICLES = frozenset({"a", "an", "the"})
_COUNTED = "zero one two three four five six seven eight nine ten"
NUMBERS: Mapping[str, str] = {
    "none": "0",
    **{word: str(number) for number, word in enumerate(_COUNTED.split(" "))},
}

_ENDINGS = {
    "n't": "ai are ca could did does do had has have is might must need ought sha should was were wo would",
    "'d": "he how it someone something there they where who you",
    "'ll": "how it somebody someone something they what who why you",
    "'ve": "could might must not should they we what where who would you",
    "'re": "there they what why you",
    "'s": "he how somebody someone that there what when where who why",
    "n't've": "could had might should would",
    "'d've": "he it she somebody someone something there they we who you",
}
_FORMS = (
    *(word + ending for ending, words in _ENDINGS.items() for word in words.split()),
    *("ma'am", "o'clock", "'twas", "'ow's'at", "y'all", "y'all'll", "y'all'd've"),
)
CONTRACTIONS: Mapping[str, str] = {
    **{form[:place] + form[place + 1 :]: form for form in _FORMS for place, mark in enumerate(form) if mark == "'"},
    "somebody'd": "somebodyd",  # as in the official list
}
"""Words that lack one of their apostrophes, which is restored."""


def plain_answer(answer: str) -> str:
    """Return an answer in the form for comparison: lower case, without punctuation, articles and number words."""
    text = " ".join(answer.replace("\n", " ").replace("\t", " ").split(" ")).strip()
    is_spaced = COMMA_OF_NUMBER.search(text) is not None
    kept = text
    for mark in PUNCTUATION:
        is_beside_blank = is_spaced or f"{mark} " in text or f" {mark}" in text
        kept = kept.replace(mark, "" if is_beside_blank else " ")
    words = (NUMBERS.get(word, word) for word in PERIOD.sub("", kept).lower().split())
    return " ".join(CONTRACTIONS.get(word, word) for word in words if word not in ARTICLES)


def vqa_accuracy(answer: str, answers: Sequence[str]) -> float:
    """Return the accuracy of an answer: the mean of min(matches / 3, 1) over all leave-one-out sets of people.

    As in the official code, answers are normalised only if the people's answers differ letter by letter.

    Args:
        answer: the prediction.
        answers: the people's answers, ten in VQA-v2.
    """
    given = [text.replace("\n", " ").replace("\t", " ").strip() for text in answers]
    if len(set(given)) > 1:
        given, answer = [plain_answer(text) for text in given], plain_answer(answer)
    return agreement(sum(text == answer for text in given), len(given))


def agreement(matches: int, people: int) -> float:
    """Return the accuracy of an answer that `matches` of `people` give: 0.3, 0.6, 0.9 and 1 for 1 to 4 of ten."""
    of_those, of_others = min((matches - 1) / ENOUGH, 1), min(matches / ENOUGH, 1)
    return (matches * of_those + (people - matches) * of_others) / people if matches else 0.0


def answer_scores(answers: Sequence[str]) -> dict[str, float]:
    """Return the accuracy of each normalised answer of the people, the training target of a model."""
    counts = Counter(map(plain_answer, answers))
    return {answer: agreement(count, len(answers)) for answer, count in counts.items()}
