"""Every progress bar states where it is drawn, so that none fills a log."""

import ast
import os
import subprocess
import sys

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


def test_the_command_line_silences_the_bars_of_libraries_that_it_imports_later():
    code = "from alignattn.cli import main; main(['--version']); from tqdm.auto import tqdm; print(list(tqdm('ab')))"
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "['a', 'b']" in done.stdout
