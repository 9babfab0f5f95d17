"""Commands that are killed at their own writes and run again end as if they had not been killed."""

import json
from pathlib import Path

import pytest
from conftest import ROOT
from processes import run_python

HARNESS = ROOT / "tests" / "faults" / "forked.py"
COMMANDS = (
    *("finetune", "figure", "seeds", "domain-shift", "inspect", "calibrate", "uncertainty", "reproduce"),
    "robustness",
)


def tries(folder: Path, *names: str) -> list[dict[str, object]]:
    done = run_python(HARNESS, folder, *names)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def check(lines: list[dict[str, object]], names: tuple[str, ...]) -> None:
    assert {line["command"] for line in lines} == set(names)
    assert [line for line in lines if not line["survived"]] == []


def test_a_command_that_is_killed_at_its_writes_resumes(tmp_path):
    lines = tries(tmp_path, "--renames", "finetune", "figure")
    check(lines, ("finetune", "figure"))
    # Its options, predictions, card and results.
    assert sum(line["command"] == "finetune" for line in lines) >= 4


@pytest.mark.faults
@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_that_is_killed_at_any_of_its_writes_resumes(name, tmp_path):
    lines = tries(tmp_path, name)
    check(lines, (name,))
    # Each of its files is flushed to the disk and renamed.
    assert name != "finetune" or len(lines) >= 8


@pytest.mark.faults
def test_a_run_that_is_killed_at_any_moment_of_a_save_resumes(tmp_path):
    """Ten moments are spread over the writes of safetensors, torch.save and transformers."""
    names = tuple(f"saves-{tenth}" for tenth in range(10))
    lines = tries(tmp_path, *names)
    check(lines, names)
    # A late kill may find a finished run; the first comes as the save begins.
    assert lines[0]["killed"]


@pytest.mark.faults
def test_of_two_commands_on_one_folder_one_makes_the_run(tmp_path):
    names = tuple(f"pair-{tenths}" for tenths in range(12))
    check(tries(tmp_path, *names), names)
