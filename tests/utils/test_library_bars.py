"""Every progress bar states where it is drawn, so that none fills a log."""

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
def test_every_tqdm_call_sets_disable(path: str, call: ast.Call) -> None:
    """Without `disable`, tqdm draws in logs too."""
    assert "disable" in {keyword.arg for keyword in call.keywords}
