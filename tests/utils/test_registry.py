"""Registries, which import an entry only when it is loaded, and the papers that they cite."""

import sys

from alignattn.attention.choices import SLOTS
from alignattn.models import MODELS
from alignattn.utils.registry import Entry, Registry, references

REGISTRY = Registry(
    "case", {"upper": Entry("string:ascii_uppercase", "A to Z"), "late": Entry(".tool:main", "")}, package="json"
)


def test_an_entry_is_imported_only_when_it_is_loaded(monkeypatch):
    monkeypatch.delitem(sys.modules, "json.tool", raising=False)
    assert list(REGISTRY) == ["upper", "late"]
    assert REGISTRY["upper"].description == "A to Z"
    assert "json.tool" not in sys.modules
    assert REGISTRY.load("late") is sys.modules["json.tool"].main


def test_the_bibliography_holds_what_is_cited():
    entries = [entry for registry in (*SLOTS.values(), MODELS) for entry in registry.values()]
    assert {entry.work for entry in entries} - {None} == set(references())
