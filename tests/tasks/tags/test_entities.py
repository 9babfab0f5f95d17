"""Scores of entities, compared with entities found by hand, by the definition of conlleval."""

import random

import pytest

from alignattn.tasks.tags.entities import SCORES, entity_scores, marks_entities, score_parts

TWO_PEOPLE = [("PER", 0, 1), ("PER", 2, 2), ("LOC", 4, 4)]

# "Ann Lee Bob in Rome": two people side by side, then a place.
SCHEMES = {
    "IOB1": ["I-PER", "I-PER", "B-PER", "O", "I-LOC"],
    "IOB2": ["B-PER", "I-PER", "B-PER", "O", "B-LOC"],
    "IOE1": ["I-PER", "E-PER", "I-PER", "O", "I-LOC"],
    "IOE2": ["I-PER", "E-PER", "E-PER", "O", "E-LOC"],
    "BIOES": ["B-PER", "E-PER", "S-PER", "O", "S-LOC"],
    "BILOU": ["B-PER", "L-PER", "U-PER", "O", "U-LOC"],
}

ODD = {
    "I after O": (["O", "I-PER", "I-PER"], [("PER", 1, 2)]),
    "a new type without B": (["B-PER", "I-LOC", "I-LOC"], [("PER", 0, 0), ("LOC", 1, 2)]),
    "E alone": (["O", "E-PER", "E-PER"], [("PER", 1, 1), ("PER", 2, 2)]),
    "I after E": (["B-PER", "E-PER", "I-PER"], [("PER", 0, 1), ("PER", 2, 2)]),
    "I after S": (["S-PER", "I-PER"], [("PER", 0, 0), ("PER", 1, 1)]),
    "E after S": (["S-PER", "E-PER"], [("PER", 0, 0), ("PER", 1, 1)]),
    "S within": (["B-PER", "S-PER", "O"], [("PER", 0, 0), ("PER", 1, 1)]),
    "B without an end": (["B-PER", "B-PER"], [("PER", 0, 0), ("PER", 1, 1)]),
    "a type with a hyphen": (["B-art-book", "I-art-book"], [("art-book", 0, 1)]),
    "prefixes alone": (["B", "I", "O", "I"], [("_", 0, 1), ("_", 3, 3)]),
    "a hyphen and no type": (["B-", "I-"], [("_", 0, 1)]),
    "BILOU side by side": (["B-PER", "L-PER", "B-PER", "I-PER", "L-PER"], [("PER", 0, 1), ("PER", 2, 4)]),
    "BILOU prefixes alone": (["B", "L", "U", "U"], [("_", 0, 1), ("_", 2, 2), ("_", 3, 3)]),
    "BMES": (["B-PER", "M-PER", "E-PER", "B-PER", "E-PER", "S-PER"], [("PER", 0, 2), ("PER", 3, 4), ("PER", 5, 5)]),
    "an underscore": (["B_PER", "I_PER", "B_PER"], [("_PER", 0, 1), ("_PER", 2, 2)]),
    "no entity": (["O", "O"], []),
    "no token": ([], []),
}


def well_formed(length, entities):
    """The tags of a sentence in IOB2, in which entities are unambiguous."""
    tags = ["O"] * length
    for kind, first, last in entities:
        tags[first : last + 1] = [f"B-{kind}", *[f"I-{kind}"] * (last - first)]
    return tags


def check_read(tags, entities):
    gold = well_formed(len(tags), entities)
    assert score_parts("precision", tags, gold) == score_parts("recall", tags, gold) == (len(entities), len(entities))
    assert entity_scores([tags], [gold])["f1"] == float(bool(entities))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_is_read_alike(scheme):
    check_read(SCHEMES[scheme], TWO_PEOPLE)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("case", ODD)
def test_malformed_and_odd_sequences(case):
    check_read(*ODD[case])


def test_scores_of_a_worked_example():
    gold = [["B-PER", "I-PER", "O", "B-LOC"], ["B-ORG", "O"]]
    # Right: the place. Wrong: the person ends too soon; an organisation is predicted as a place.
    predicted = [["B-PER", "O", "O", "B-LOC"], ["B-LOC", "O"]]
    assert entity_scores(predicted, gold) == pytest.approx(
        {"precision": 1 / 3, "recall": 1 / 3, "f1": 1 / 3, "token_accuracy": 4 / 6}
    )


def test_f1_is_the_harmonic_mean():
    gold = [["B-PER", "O", "B-PER", "O", "B-PER", "B-PER"]]
    predicted = [["B-PER", "O", "O", "B-LOC", "O", "O"]]
    scores = entity_scores(predicted, gold)
    assert (scores["precision"], scores["recall"]) == (1 / 2, 1 / 4)
    assert scores["f1"] == pytest.approx(2 / (2 + 4))


def test_another_scheme_for_the_same_entities_lowers_only_token_accuracy():
    scores = entity_scores([SCHEMES["IOE2"]], [SCHEMES["BIOES"]])
    assert (scores["f1"], scores["token_accuracy"]) == (1.0, 2 / 5)


def test_an_entity_counts_in_its_own_sentence_only():
    scores = entity_scores([["B-PER"], ["O"]], [["O"], ["B-PER"]])
    assert (scores["f1"], scores["token_accuracy"]) == (0.0, 0.0)


def test_an_entity_ends_with_its_sentence():
    assert entity_scores([["B-PER"], ["I-PER"]], [["B-PER"], ["B-PER"]])["f1"] == 1.0


@pytest.mark.parametrize("sentences", [[], [[]], [["O", "O"]]])
def test_scores_are_zero_where_undefined(sentences):
    scores = entity_scores(sentences, sentences)
    assert (scores["precision"], scores["recall"], scores["f1"]) == (0.0, 0.0, 0.0)
    assert scores["token_accuracy"] == float(any(sentences))


@pytest.mark.parametrize("predicted", [[["O"]], [["O"], ["O", "O"]]])
def test_scores_refuse_other_shapes(predicted):
    with pytest.raises(ValueError, match="inconsistent numbers"):
        entity_scores(predicted, [["O"], ["O"]])


TAG_SETS = {
    "prefixed": ["O", *(f"{prefix}-{kind}" for prefix in "BIES" for kind in ("PER", "LOC", "art-book"))],
    "prefixes alone": list("OBIES"),
    "BILOU": ["O", *(f"{prefix}-{kind}" for prefix in "BILU" for kind in ("PER", "LOC"))],
    "all": ["O", "B", "I", "B-PER", "I-PER", "E-PER", "S-LOC", "L-LOC", "U-PER", "B-", "I-"],
}


@pytest.mark.parametrize("name", TAG_SETS)
def test_scores_are_ratios_of_the_sums_of_their_parts(name):
    draw = random.Random(0)
    gold = [draw.choices(TAG_SETS[name], k=draw.randint(1, 9)) for _ in range(300)]
    predicted = [[tag if draw.random() < 0.7 else draw.choice(TAG_SETS[name]) for tag in tags] for tags in gold]
    scores = entity_scores(predicted, gold)
    assert 0 < scores["f1"] < 1
    for score in SCORES:
        parts, wholes = zip(*(score_parts(score, *tags) for tags in zip(predicted, gold, strict=True)), strict=True)
        assert scores[score] == pytest.approx(sum(parts) / sum(wholes))


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        *((tags, True) for tags in SCHEMES.values()),
        *((tags, True) for tags, _ in ODD.values() if tags),
        (["DT", "NN", "IN", "VB"], False),
        (["O", "PER", "LOC", "ORG"], False),
        (["O", "PER-B", "PER-I"], False),
        (["0", "1"], False),
        (["o", "B-PER"], False),
    ],
)
def test_only_prefixes_mark_entities(tags, expected):
    assert marks_entities(tags) == expected
