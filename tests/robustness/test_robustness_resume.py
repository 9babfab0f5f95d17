"""Resumed runs of attacks: a killed or torn run ends with the same bytes, and foreign files do not change."""

import json
import signal
from dataclasses import replace

import pytest
from conftest import ROOT
from processes import run_python
from toy_attack import NUM_EXAMPLES, NUM_ROWS, SETTINGS, copy_run, run, run_bytes, toy_attack, toy_rows

from alignattn.robustness.loop import AttackJob, attack_rows
from alignattn.robustness.records import header_path, read_run
from alignattn.robustness.summary import summarise_attacks, tabulate
from alignattn.utils.errors import AlignAttnError

pytest_plugins = ["robustness_fixtures"]


def test_a_killed_run_ends_with_the_bytes_of_an_uninterrupted_one(whole, tiny_checkpoint, tmp_path):
    path = tmp_path / "toy.jsonl"
    script = ROOT / "tests" / "robustness" / "attack_and_die.py"
    killed = run_python(script, tiny_checkpoint, path, 60)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert 0 < len(read_run(path).records) < len(whole.records)
    resumed = run(tiny_checkpoint, path)
    assert resumed.records == whole.records
    assert run_bytes(path) == run_bytes(whole.path)
    [table], [uninterrupted] = (tabulate([summarise_attacks(one)]) for one in (resumed, whole))
    assert table.render() == uninterrupted.render()


@pytest.mark.parametrize("missing", [1, 2, 100, 400, 10**9], ids=lambda missing: f"{missing} bytes")
@pytest.mark.parametrize("end", [b"", b"\0\0\0", b"\0\0\n"])
def test_the_row_of_a_damaged_last_line_is_attacked_again(whole, tiny_checkpoint, tmp_path, missing, end):
    content, _ = run_bytes(whole.path)
    path = copy_run(whole, tmp_path, content[: max(0, len(content) - missing)] + end)
    assert run(tiny_checkpoint, path).records == whole.records
    assert run_bytes(path) == run_bytes(whole.path)


def test_a_finished_run_attacks_nothing(whole, tiny_checkpoint, tmp_path):
    path = copy_run(whole, tmp_path)
    assert run(tiny_checkpoint, path, kill_at=1).records == whole.records


def test_more_examples_continue_the_recorded_ones(tiny_checkpoint, tmp_path):
    few, many = replace(SETTINGS, num_examples=3), replace(SETTINGS, num_examples=NUM_EXAMPLES)
    path, at_once = tmp_path / "later.jsonl", tmp_path / "at_once.jsonl"
    before = run(tiny_checkpoint, path, few).records
    run(tiny_checkpoint, path, many)
    run(tiny_checkpoint, at_once, many)
    assert run_bytes(path) == run_bytes(at_once)
    assert 0 < len(before) < len(read_run(path).records)
    with pytest.raises(AlignAttnError, match=f"has {NUM_EXAMPLES} examples, more than"):
        run(tiny_checkpoint, path, few)


def test_a_header_without_records_is_replaced(whole, tiny_checkpoint, tmp_path):
    path = tmp_path / "toy.jsonl"
    run(tiny_checkpoint, path, settings=replace(SETTINGS, seed=9))
    path.write_bytes(b"")
    assert run(tiny_checkpoint, path).records == whole.records
    assert run_bytes(path) == run_bytes(whole.path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 8}, "seed 7 and 8"),
        ({"recipe": "bae"}, "recipe 'toy' and 'bae'"),
        ({"resources": {"words": "ten"}}, "resources"),
        ({"run": "another", "model": "34cd"}, "run 'toy' and 'another'; give both runs to one call"),
    ],
)
def test_a_run_of_other_settings_is_not_continued(whole, tiny_checkpoint, tmp_path, change, message):
    path = copy_run(whole, tmp_path)
    with pytest.raises(AlignAttnError, match=message) as raised:
        run(tiny_checkpoint, path, settings=replace(SETTINGS, **change))
    assert "\n" not in str(raised.value)
    assert run_bytes(path) == run_bytes(whole.path)


def test_other_rows_and_foreign_files_are_refused(whole, tiny_checkpoint, tmp_path):
    path = copy_run(whole, tmp_path)
    attack = toy_attack(tiny_checkpoint)
    rows = toy_rows(attack)
    with pytest.raises(AlignAttnError, match=f"rows available {NUM_ROWS} and {NUM_ROWS - 1}"):
        attack_rows(attack, AttackJob(rows[:-1], path, SETTINGS))
    rows[2] = replace(rows[2], texts={"sentence": "a cat"})
    with pytest.raises(AlignAttnError, match="SHA-256 of the rows"):
        attack_rows(attack, AttackJob(rows, path, SETTINGS))
    path.write_text("{}\n" + path.read_text())
    with pytest.raises(AlignAttnError, match=r"line 1 is not an attacked example"):
        run(tiny_checkpoint, path)
    path.write_text("a file of something else, without a line end")
    header_path(path).unlink()
    with pytest.raises(AlignAttnError, match="the header of"):
        run(tiny_checkpoint, path)
    assert path.read_text().startswith("a file of")


@pytest.mark.parametrize(
    "change", [{"left_out": [None]}, {"versions": ["2.0"]}, {"settings": {"seed": 3}}, {"rows_digest": 3}]
)
def test_a_damaged_header_is_refused(whole, tmp_path, change):
    path = copy_run(whole, tmp_path)
    header_path(path).write_text(json.dumps(json.loads(header_path(path).read_text()) | change))
    with pytest.raises(AlignAttnError, match="is damaged or of another version") as raised:
        read_run(path)
    assert "\n" not in str(raised.value)
