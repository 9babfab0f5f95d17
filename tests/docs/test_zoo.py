"""The zoo names every system of the package, and its commands train what their scores are of."""

import re
import shlex

import pytest
from documentation import ROOT

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.commands import get_command
from alignattn.models import MODELS

ZOO = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")
COMMANDS = {
    command: score
    for row in ZOO.splitlines()
    for command, score in re.findall(r"^\|.*\| `finetune (--model [^`]+)`[^|]*\| (.*) \|$", row)
}
"""The options of each complete command of the table, and the cell with its scores."""


def test_the_zoo_names_every_preset_and_model():
    named = set(re.findall(r"`([\w-]+)`", ZOO))
    assert named >= {*PRESETS, *MODELS}


@pytest.mark.parametrize("slot", SLOTS)
def test_the_zoo_has_a_row_for_every_choice_of_a_slot(slot):
    rows = "".join(line for line in ZOO.splitlines() if line.startswith("| "))
    named = set(re.findall(r"`([\w-]+)`", rows))
    # An alignment is listed by the name of its preset.
    missing = [choice for choice in SLOTS[slot] if not named & {choice, f"aa-{choice}"}]
    assert not missing, f"docs/zoo.md has no row that names {', '.join(missing)}"


@pytest.mark.parametrize("options", COMMANDS)
def test_a_command_trains_the_attention_that_its_score_names(options, tmp_path):
    """A command without options of attention trains that of the first score, and any other that of one of them."""
    words = shlex.split(options)
    attention = get_command("finetune").parse([*words, "--output_dir", str(tmp_path / "run")]).attention
    labels = re.findall(r"\(`([\w-]+)`", COMMANDS[options])
    if not {f"--{name}" for name in ("attention", *SLOTS)} & set(words):
        labels = labels[:1] or ["soft"]
    elif not labels:
        labels = re.findall(r"`([\w-]+)`", COMMANDS[options]) or ["soft"]
    assert {attention.name, *(getattr(attention, slot) for slot in SLOTS)} & set(labels)


def test_the_complete_commands_are_found():
    assert len(COMMANDS) == ZOO.count("| `finetune --model ")
    assert len(COMMANDS) > len(MODELS) / 2
