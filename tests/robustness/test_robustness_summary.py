"""Counts, shares, intervals and tables of attacks, against values computed by hand."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest

from alignattn.evaluation.statistics.intervals import wilson_interval
from alignattn.robustness.records import AttackHeader, AttackRecord, AttackRun, AttackSettings
from alignattn.robustness.summary import summarise_attacks, tabulate, write_attack_tables

LOCAL = {"words": "counterfitted_neighbors.parquet (sha256 12ab)", "sentence encoder": "minilm (sha256 34cd)"}
ORIGINAL = {"words": "counter-fitted vectors", "sentence encoder": "USE"}


def _settings(**fields):
    given = {
        "run": "runs/a",
        "model": "a",
        "task": "sst2",
        "split": "validation",
        "attention": "soft",
        "recipe": "textfooler",
    }
    given |= {"attack_columns": ("sentence",), "max_length": 512, "seed": 1, "num_examples": 10, "precision": "float32"}
    given |= {"resources": LOCAL}
    return AttackSettings(**given | fields)


def _record(outcome, queries=1, words=10, changed=0, error=None):
    return AttackRecord(
        index=0,
        recipe="textfooler",
        outcome=outcome,
        label=0,
        original={"sentence": "a"},
        perturbed=None if outcome == "skipped" else {"sentence": "b"},
        original_scores=[0.9, 0.1],
        perturbed_scores=None if outcome == "skipped" else [0.6, 0.4],
        queries=queries,
        words=words,
        words_changed=changed,
        seed=1,
        error=error,
    )


def _run(*records, **fields):
    versions = {"textattack": "0.3.11"}
    header = AttackHeader(_settings(**fields), 872, (3, 5), "12ab", versions, ())
    return AttackRun(Path("a.jsonl"), header, tuple(records))


MIXED = (
    _record("failed", queries=30, changed=9),
    _record("failed", queries=50, changed=9),
    _record("failed", queries=40, changed=9),
    _record("succeeded", queries=20, words=10, changed=1),
    _record("succeeded", queries=10, words=4, changed=2),
    _record("skipped"),
    _record("skipped"),
    _record("skipped", error="IndexError: list index"),
)


def test_recipes_with_different_parts_share_a_table_whose_caption_names_all():
    swaps = {"word_swaps": "lists", "sentence_encoder": "minilm"}
    language_model = {"sentence_encoder": "minilm", "masked_language_model": "bert"}
    runs = [_run(*MIXED, recipe="textbugger", resources=swaps), _run(*MIXED, recipe="bae", resources=language_model)]
    (table,) = tabulate([summarise_attacks(run) for run in runs])
    assert table.caption == (
        "Attacks on up to 10 examples, 512 tokens at most, float32, seed 1, made with "
        "word_swaps: lists; sentence_encoder: minilm; masked_language_model: bert"
    )
    other = summarise_attacks(_run(*MIXED, recipe="bae", resources=language_model | {"sentence_encoder": "use"}))
    assert [len(table.summaries) for table in tabulate([*table.summaries, other])] == [2, 1]


@pytest.mark.parametrize("change", [{"max_length": 64}, {"seed": 7}, {"num_examples": 20}, {"precision": "float16"}])
def test_attacks_made_differently_are_never_in_one_table(change):
    tables = tabulate(
        [summarise_attacks(run) for run in (_run(*MIXED), _run(*MIXED, **change), _run(*MIXED, task="rte"))]
    )
    assert [len(table.summaries) for table in tables] == [2, 1]
    assert str(*change.values()) in tables[1].caption
    assert tables[0].caption != tables[1].caption


def test_counts_and_shares_of_hand_made_records():
    summary = summarise_attacks(_run(*MIXED))
    assert (summary.failed, summary.succeeded, summary.skipped, summary.errors) == (3, 2, 3, 1)
    assert summary.failed_share == pytest.approx(3 / 5)
    assert summary.failed_share_of_all == pytest.approx(3 / 8)
    # 7 rows have no error.
    assert summary.accuracy_before == pytest.approx(5 / 7)
    assert summary.accuracy_under_attack == pytest.approx(3 / 7)
    assert summary.mean_queries == pytest.approx(150 / 5)
    # The mean of the two that succeeded: 1/10 and 2/4.
    assert summary.words_changed_share == pytest.approx(0.3)


@pytest.mark.parametrize("errors", [0, 2])
def test_shares_of_nothing_are_none(errors):
    skipped = [_record("skipped", error="x" if number < errors else None) for number in range(2)]
    summary = summarise_attacks(_run(*skipped))
    assert (summary.failed, summary.succeeded, summary.skipped, summary.errors) == (0, 0, 2, errors)
    nothing = (summary.failed_share, summary.interval, summary.mean_queries, summary.words_changed_share)
    assert nothing == (None,) * 4
    assert summary.failed_share_of_all == 0
    assert (summary.accuracy_before, summary.accuracy_under_attack) == ((None, None) if errors else (0, 0))
    [table] = tabulate([summary])
    assert table.render().splitlines()[3].split()[4] == "-"


def test_a_run_without_records_has_no_shares():
    summary = summarise_attacks(_run())
    assert (summary.failed, summary.failed_share_of_all, summary.accuracy_before) == (0, None, None)


def test_shares_are_one_if_all_attacks_fail_and_zero_if_all_succeed():
    failed, succeeded = (summarise_attacks(_run(*[_record(outcome)] * 4)) for outcome in ("failed", "succeeded"))
    assert (failed.failed_share, failed.accuracy_under_attack, failed.words_changed_share) == (1, 1, None)
    assert (succeeded.failed_share, succeeded.accuracy_under_attack, succeeded.words_changed_share) == (0, 0, 0)
    # Wilson's interval of 4 of 4 ends at 1 and begins at n / (n + z²).
    z = 1.959963984540054
    assert failed.interval is not None
    assert failed.interval.high == pytest.approx(1)
    assert failed.interval.low == pytest.approx(4 / (4 + z * z))


def test_a_text_without_words_has_no_share_of_them():
    summary = summarise_attacks(
        _run(_record("succeeded", words=0, changed=0), _record("succeeded", words=5, changed=1))
    )
    assert summary.words_changed_share == pytest.approx(0.2)


def test_the_interval_equals_a_published_example():
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3: 81 of 263 gives 0.2553 to 0.3662.
    interval = wilson_interval(81, 263)
    assert interval is not None
    assert (round(interval.low, 4), round(interval.high, 4)) == (0.2553, 0.3662)


def _summaries():
    cells = [("bae", "mrpc", "soft"), ("textfooler", "sst2", "aa-ct"), ("bae", "sst2", "soft")]
    cells += [("textfooler", "sst2", "soft"), ("bae", "mrpc", "aa-ct")]
    return [
        summarise_attacks(_run(*MIXED, recipe=recipe, task=task, attention=attention))
        for recipe, task, attention in cells
    ]


def test_a_table_is_sorted_by_recipe_task_and_attention():
    [table] = tabulate(_summaries())
    cells = [(s.settings.recipe, s.settings.task, s.settings.attention) for s in table.summaries]
    assert cells == [
        ("bae", "mrpc", "soft"),
        ("bae", "mrpc", "aa-ct"),
        ("bae", "sst2", "soft"),
        ("textfooler", "sst2", "soft"),
        ("textfooler", "sst2", "aa-ct"),
    ]


def test_the_text_shows_the_resources_and_the_figures():
    [table] = tabulate(_summaries()[:1])
    caption, header, _, line, _, other_header, _, other_line = table.render().splitlines()
    assert all(value in caption for value in LOCAL.values())
    assert max(map(len, (header, line, other_header, other_line))) < 100
    keys, values = ["recipe", "task", "attention"], ["bae", "mrpc", "soft"]
    assert (header.split()[:3], other_header.split()[:3]) == (keys, keys)
    # 3 of 5: Wilson's interval is 23.1 to 88.2.
    cells = [*values, "sentence", "60.0", "23.1", "to", "88.2", "3", "2", "3", "1"]
    assert [*line.split(), *other_line.split()[3:]] == [*cells, "37.5", "71.4", "42.9", "30.0", "30.0", "runs/a"]
    assert other_line.split()[:3] == values


def test_different_resources_are_never_in_one_table(tmp_path):
    local, original = summarise_attacks(_run(*MIXED)), summarise_attacks(_run(*MIXED, resources=ORIGINAL))
    turned = summarise_attacks(_run(*MIXED, resources=dict(reversed(LOCAL.items()))))
    tables = tabulate([local, original, turned])
    assert [table.resources for table in tables] == [LOCAL, ORIGINAL]
    assert [len(table.summaries) for table in tables] == [2, 1]
    written = write_attack_tables(tmp_path, tables)
    assert [path.name for path in written] == ["robustness.txt", "robustness.json", "robustness.csv"]
    text = (tmp_path / "robustness.txt").read_text()
    assert text.count("Attacks on up to 10 examples") == 2
    content = json.loads((tmp_path / "robustness.json").read_text())
    assert [table["resources"] for table in content["tables"]] == [LOCAL, ORIGINAL]
    with (tmp_path / "robustness.csv").open(newline="") as file:
        captions = [line["resources"] for line in csv.DictReader(file)]
    assert captions == [tables[0].caption] * 2 + [tables[1].caption]


def test_csv_and_json_hold_the_figures(tmp_path):
    pair = summarise_attacks(_run(*MIXED, attack_columns=("sentence1", "sentence2")))
    nothing = summarise_attacks(_run(_record("skipped"), attention="aa-ct"))
    write_attack_tables(tmp_path, tabulate([pair, nothing]))
    with (tmp_path / "robustness.csv").open(newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["attack_columns"], first["failed"], first["failed_share"]) == ("sentence1+sentence2", "3", "0.6")
    assert float(first["interval_low"]) == pytest.approx(0.2307, abs=1e-4)
    assert (first["rows_left_out"], first["precision"]) == ("2", "float32")
    assert (second["failed_share"], second["interval_low"], second["mean_queries"]) == ("", "", "")
    [table] = json.loads((tmp_path / "robustness.json").read_text())["tables"]
    assert table["summaries"][0]["settings"]["attack_columns"] == ["sentence1", "sentence2"]
    assert table["summaries"][0]["mean_queries"] == 30
    assert table["summaries"][1]["interval"] is None
    assert table["summaries"][0]["versions"] == {"textattack": "0.3.11"}


def test_runs_of_one_cell_have_separate_lines():
    twice = [summarise_attacks(_run(*MIXED)), summarise_attacks(replace(_run(*MIXED, run="runs/b", model="b")))]
    [table] = tabulate(twice)
    assert [line.split()[-1] for line in table.render().splitlines()[-2:]] == ["runs/a", "runs/b"]


def test_a_constant_model_is_reported():
    one_class = [replace(_record("failed"), label=0), replace(_record("skipped"), label=1)]
    summary = summarise_attacks(_run(*one_class))
    assert (summary.failed_share, summary.constant_prediction) == (1, "class 0")
    [table] = tabulate([summary])
    assert "runs/a predicts class 0 for every row of sst2" in table.render()
    run = _run(*one_class)
    named = replace(run, header=replace(run.header, labels=("negative", "positive")))
    assert summarise_attacks(named).constant_prediction == "class 'negative'"
    two = [one_class[0], replace(one_class[1], original_scores=[0.2, 0.8])]
    for records in (two, [replace(record, label=0) for record in one_class]):
        summary = summarise_attacks(_run(*records))
        assert summary.constant_prediction is None
        assert "for every row" not in tabulate([summary])[0].render()
