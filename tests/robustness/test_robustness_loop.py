"""The loop over attacks: its records describe what happened to each row, and equal TextAttack's own results."""

import json
import random
import re
from collections import Counter, OrderedDict
from dataclasses import replace

import numpy as np
import pytest
import torch
from conftest import WORDS
from toy_attack import NUM_EXAMPLES, NUM_ROWS, SETTINGS, run, textattack, toy_attack, toy_rows

from alignattn.robustness.loop import AttackJob, attack_rows
from alignattn.robustness.records import header_path
from alignattn.utils import console
from alignattn.utils.errors import AlignAttnError

pytest_plugins = ["robustness_fixtures"]


def test_records_describe_what_happened(whole, tiny_checkpoint):
    outcomes = Counter(record.outcome for record in whole.records)
    assert set(outcomes) == {"failed", "succeeded", "skipped"}
    assert outcomes["failed"] + outcomes["succeeded"] == NUM_EXAMPLES
    assert [record.index for record in whole.records] == list(range(len(whole.records)))
    assert whole.records[-1].outcome != "skipped"
    assert whole.is_finished
    scores = toy_attack(tiny_checkpoint).goal_function.model
    for record in whole.records:
        text = record.original["sentence"]
        assert record.words == len(text.split())
        assert record.original_scores == pytest.approx(scores([text])[0].tolist(), abs=1e-6)
        assert (record.original_prediction == record.label) == (record.outcome != "skipped")
        if record.outcome == "skipped":
            assert (record.perturbed, record.perturbed_scores, record.queries) == (None, None, 1)
            continue
        after = record.perturbed["sentence"]
        assert record.perturbed_scores == pytest.approx(scores([after])[0].tolist(), abs=1e-6)
        assert (np.argmax(record.perturbed_scores) == record.label) == (record.outcome == "failed")
        # Every change is a swap, of a quarter of the words at most.
        changed = sum(before != now for before, now in zip(text.split(), after.split(), strict=True))
        assert record.words_changed == changed <= record.words / 4 + 1
        assert record.queries > 1


def test_the_header_names_what_was_attacked(whole):
    header = json.loads(header_path(whole.path).read_text())
    assert header["settings"]["recipe"] == "toy"
    assert header["settings"]["resources"] == {"words": "twenty"}
    assert header["rows_available"] == NUM_ROWS


def test_outcomes_equal_those_of_textattack(whole, tiny_checkpoint):
    attack = toy_attack(tiny_checkpoint)
    named = {"SuccessfulAttackResult": "succeeded", "FailedAttackResult": "failed", "SkippedAttackResult": "skipped"}
    for record in whole.records:
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(SETTINGS.seed + record.index)
        result = attack.attack(OrderedDict(record.original), record.label)
        assert named[type(result).__name__] == record.outcome
        assert result.num_queries == record.queries
        if record.perturbed is not None:
            assert result.perturbed_text() == record.perturbed["sentence"]


def test_another_seed_is_another_attack(whole, tiny_checkpoint, tmp_path):
    other = run(tiny_checkpoint, tmp_path / "toy.jsonl", settings=replace(SETTINGS, seed=8))
    assert [record.perturbed for record in other.records] != [record.perturbed for record in whole.records]


def test_all_rows_are_used_if_there_are_fewer_than_examples(tiny_checkpoint, tmp_path):
    done = run(tiny_checkpoint, tmp_path / "toy.jsonl", settings=replace(SETTINGS, num_examples=1000))
    assert done.is_finished
    assert len(done.records) == done.header.rows_available == NUM_ROWS


def test_nothing_to_attack_is_refused(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    with pytest.raises(AlignAttnError, match="0 rows"):
        attack_rows(attack, AttackJob([], tmp_path / "toy.jsonl", SETTINGS))
    with pytest.raises(AlignAttnError, match="--num_examples 0"):
        attack_rows(attack, AttackJob(toy_rows(attack), tmp_path / "toy.jsonl", replace(SETTINGS, num_examples=0)))
    assert not list(tmp_path.iterdir())


def test_pairs_keep_their_columns(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack, ("sentence1", "sentence2"))
    records = attack_rows(attack, AttackJob(rows, tmp_path / "toy.jsonl", SETTINGS)).records
    assert {record.outcome for record in records} == {"failed", "succeeded", "skipped"}
    for record, row in zip(records, rows, strict=False):
        assert record.original == row.texts
        assert record.words == sum(len(text.split()) for text in row.texts.values())
        if record.perturbed is not None:
            assert list(record.perturbed) == ["sentence1", "sentence2"]
            both = [" ".join(texts.values()).split() for texts in (record.original, record.perturbed)]
            assert record.words_changed == sum(before != now for before, now in zip(*both, strict=True))


def test_the_bar_shows_the_running_rate(whole, tiny_checkpoint, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(console, "in_terminal", lambda: True)
    attack = toy_attack(tiny_checkpoint)
    attack_rows(attack, AttackJob(toy_rows(attack), tmp_path / "toy.jsonl", SETTINGS))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "toy sst2 soft" in printed.err
    failed = sum(record.outcome == "failed" for record in whole.records)
    shown = re.findall(r"([\d.]+) % of (\d+) failed", printed.err)[-1]
    assert shown == (f"{100 * failed / NUM_EXAMPLES:.1f}", str(NUM_EXAMPLES))


class Unknown(textattack.transformations.WordSwap):
    """Swaps with the same input ids: the tokenizer of the toy model knows none of these words."""

    def _get_replacement_words(self, word):
        return ["quokka", "gnu", "zebra"] if word in WORDS else []


def test_the_first_of_candidates_with_the_same_input_wins(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack)
    search = textattack.search_methods.GreedyWordSwapWIR("delete")  # that of the recipes
    attack = textattack.Attack(attack.goal_function, attack.pre_transformation_constraints, Unknown(), search)
    records = attack_rows(attack, AttackJob(rows, tmp_path / "toy.jsonl", SETTINGS)).records
    new = [set(record.perturbed["sentence"].split()) - set(WORDS) for record in records if record.perturbed]
    assert len(new) == NUM_EXAMPLES
    assert set().union(*new) == {"gnu"}  # TextAttack sorts the texts of a step


def test_goals_pass_all_texts_of_a_step_at_once(tiny_checkpoint, tmp_path):
    attack = toy_attack(tiny_checkpoint)
    attack.goal_function.batch_size = 1
    calls: list[int] = []
    score = attack.goal_function.model._score
    attack.goal_function.model._score = lambda inputs, rows: (calls.append(len(rows)), score(inputs, rows))[1]
    attack_rows(attack, AttackJob(toy_rows(attack), tmp_path / "toy.jsonl", SETTINGS))
    assert max(calls) > 4  # a step of the search scores all its candidates
