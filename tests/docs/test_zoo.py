"""The zoo names every system of the package, and tests that exist."""

import re

import pytest
from documentation import ROOT

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.models import MODELS

ZOO = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


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


def test_the_tests_named_in_the_zoo_exist():
    tests = re.findall(r"`(tests/[\w/.]+)`", ZOO)
    assert tests
    assert all((ROOT / test).exists() for test in tests)
