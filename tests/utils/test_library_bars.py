"""Bars are for terminals: a log is not filled with them."""

import ast

import pytest
from documentation import ROOT

BARS = [
    (path.relative_to(ROOT).as_posix(), call)
    for path in sorted((ROOT / "alignattn").rglob("*.py"))
    for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
    if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "tqdm"
]


@pytest.mark.parametrize(("path", "call"), BARS, ids=[f"{path}:{call.lineno}" for path, call in BARS])
def test_whether_a_bar_is_drawn_is_decided(path: str, call: ast.Call) -> None:
    """`disable=None` leaves it out where no terminal is."""
    assert "disable" in {keyword.arg for keyword in call.keywords}
