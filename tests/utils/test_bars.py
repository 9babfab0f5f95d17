"""Progress in a terminal and in a log."""

import re
from pathlib import Path

import pytest

import alignattn
from alignattn.utils import progress as progress_module
from alignattn.utils.progress import counted, progress


def work(steps: int = 4) -> None:
    with progress("attack", 10, "row", initial=2) as bar:
        for step in range(steps):
            bar.set_postfix_str(f"{step} failed", refresh=False)
            bar.update()


def test_a_terminal_has_a_bar(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "in_terminal", lambda: True)
    work()
    out, err = capsys.readouterr()
    assert out == ""
    assert "6/10" in re.split(r"[\r\n]+", err.strip())[-1]


def test_a_log_has_occasional_lines(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    work(2)
    assert capsys.readouterr() == ("", "attack: 3 of 10 rows, 0 failed\nattack: 4 of 10 rows, 1 failed\n")


def test_quick_work_logs_nothing(capsys):
    work()
    assert list(counted("abc", "letters", 3, "letter")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_bytes_are_shown_with_si_prefixes(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(progress_module, "LOG_SECONDS", 0.0)
    with progress("vectors.txt", 2_500_000, "byte", scaled=True) as bar:
        bar.update(1_200_000)
    assert capsys.readouterr().err == "vectors.txt: 1.20M of 2.50M bytes\n"


def test_only_progress_calls_tqdm():
    modules = Path(alignattn.__file__).parent.rglob("*.py")
    drawing = {path.name for path in modules if re.search(r"\btqdm\(", path.read_text(encoding="utf-8"))}
    assert drawing == {"progress.py"}
