"""The zoo names every system that is here, and tests that there are."""

import re

from documentation import ROOT

from alignattn.attention.config import PRESETS
from alignattn.models import MODELS

ZOO = (ROOT / "docs" / "zoo.md").read_text(encoding="utf-8")


def test_every_preset_and_model_stands_in_it():
    named = set(re.findall(r"`([\w-]+)`", ZOO))
    assert named >= {*PRESETS, *MODELS}


def test_the_tests_that_it_names_are_there():
    tests = re.findall(r"`(tests/[\w/.]+)`", ZOO)
    assert tests
    assert all((ROOT / test).exists() for test in tests)
