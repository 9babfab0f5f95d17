"""The zoo names every system that is here, and tests that there are."""

import re

import pytest
from documentation import ROOT

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.models import MODELS

ZOO = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


def test_every_preset_and_model_stands_in_it():
    named = set(re.findall(r"`([\w-]+)`", ZOO))
    assert named >= {*PRESETS, *MODELS}


@pytest.mark.parametrize("slot", SLOTS)
def test_every_choice_of_a_slot_stands_in_a_row_of_it(slot):
    rows = "".join(line for line in ZOO.splitlines() if line.startswith("| "))
    named = set(re.findall(r"`([\w-]+)`", rows))
    # An alignment goes by the name of its preset.
    missing = [choice for choice in SLOTS[slot] if not named & {choice, f"aa-{choice}"}]
    assert not missing, f"docs/zoo.md has no row that names {', '.join(missing)}"


def test_the_tests_that_it_names_are_there():
    tests = re.findall(r"`(tests/[\w/.]+)`", ZOO)
    assert tests
    assert all((ROOT / test).exists() for test in tests)
