"""Rows on which an attack fails with an error are counted; an error that would affect every row stops the run."""

from dataclasses import replace

import pytest
from conftest import WORDS
from robustness_helpers import sentence_rows
from toy_attack import NUM_EXAMPLES, SETTINGS, textattack, toy_attack, toy_rows

from alignattn.robustness.loop import AttackJob, attack_rows
from alignattn.robustness.records import read_run
from alignattn.utils.errors import AlignAttnError


def test_strange_rows_are_counted(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    attack.goal_function.query_budget = 50  # one step on 100 words
    texts = ["1234 , 5 !!! ...", "", " ".join(WORDS * 5), "!!", "the cat \x00 \u2028 sees", "the cat sees"]
    labels = attack.goal_function.model(texts).argmax(dim=1).tolist()
    labels[-1] = 5
    rows = sentence_rows(texts, labels)
    path = tmp_path / "toy.jsonl"
    records = attack_rows(attack, AttackJob(rows, path, SETTINGS)).records
    assert [record.index for record in records] == list(range(len(rows)))
    assert [record.original["sentence"] for record in records] == texts
    # Nothing can be swapped in these rows: the model withstands, without an error.
    assert [records[index].outcome for index in (0, 1, 3)] == ["failed"] * 3
    assert [records[index].error for index in range(5)] == [None] * 5
    assert records[2].words == 100
    assert records[2].outcome in ("failed", "succeeded")
    assert records[5].outcome == "skipped"
    assert records[5].error == "label 5 is not one of the model's 2 classes"
    assert read_run(path).records == records


def test_a_text_that_the_tokenizer_cannot_encode_is_counted(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack)
    rows[2] = replace(rows[2], texts={"sentence": "half a pair: \ud83d"})
    records = attack_rows(attack, AttackJob(rows, tmp_path / "toy.jsonl", SETTINGS)).records
    assert records[2].outcome == "skipped"
    assert records[2].error is not None
    assert sum(record.outcome != "skipped" for record in records) == NUM_EXAMPLES


class Raising(textattack.transformations.WordSwap):
    """A part of an attack that raises an error for some texts."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def _get_replacement_words(self, word):
        if word == "broken":
            raise self.error
        return ["dog"]


def _breaking(folder, error):
    attack = toy_attack(folder)
    attack = textattack.Attack(attack.goal_function, [], Raising(error), textattack.search_methods.GreedySearch())
    texts = ["a cat", "a broken cat", "the small bird"]
    labels = attack.goal_function.model(texts).argmax(dim=1).tolist()
    return attack, sentence_rows(texts, labels)


@pytest.mark.parametrize("error", [IndexError("list\nindex"), ZeroDivisionError("by zero"), KeyError("x")])
def test_an_aborted_attack_is_counted_as_skipped(tiny_checkpoint, tmp_path, error):
    attack, rows = _breaking(tiny_checkpoint, error)
    records = attack_rows(attack, AttackJob(rows, tmp_path / "toy.jsonl", SETTINGS)).records
    assert [record.outcome == "skipped" for record in records] == [False, True, False]
    assert records[1].error is not None
    assert records[1].error.startswith(type(error).__name__ + ": ")
    assert "\n" not in records[1].error
    assert records[1].original_prediction == records[1].label


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (LookupError("Resource wordnet not found"), AlignAttnError),
        (OSError("no network"), OSError),
        (AlignAttnError("no flair"), AlignAttnError),
    ],
)
def test_an_error_that_would_affect_every_row_stops_the_run(tiny_checkpoint, tmp_path, error, raised):
    attack, rows = _breaking(tiny_checkpoint, error)
    path = tmp_path / "toy.jsonl"
    with pytest.raises(raised):
        attack_rows(attack, AttackJob(rows, path, SETTINGS))
    assert [record.index for record in read_run(path).records] == [0]
