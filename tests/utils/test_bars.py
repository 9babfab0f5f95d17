"""How far a work is, in a terminal and in a log."""

import re
from pathlib import Path

import pytest

import alignattn
from alignattn.utils import progress as door
from alignattn.utils.progress import counted, progress


def work(steps: int = 4) -> None:
    with progress("attack", 10, "row", initial=2) as bar:
        for step in range(steps):
            bar.set_postfix_str(f"{step} failed", refresh=False)
            bar.update()


def test_a_terminal_has_a_bar(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door, "in_terminal", lambda: True)
    work()
    out, err = capsys.readouterr()
    assert out == ""
    assert "6/10" in re.split(r"[\r\n]+", err.strip())[-1]


def test_a_log_has_a_line_now_and_then(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door, "LOG_SECONDS", 0.0)
    work(2)
    assert capsys.readouterr() == ("", "attack: 3 of 10 rows, 0 failed\nattack: 4 of 10 rows, 1 failed\n")


def test_a_log_says_nothing_of_what_is_quick(capsys):
    work()
    assert list(counted("abc", "letters", 3, "letter")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_bytes_are_told_in_thousands(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(door, "LOG_SECONDS", 0.0)
    with progress("vectors.txt", 2_500_000, "byte", scaled=True) as bar:
        bar.update(1_200_000)
    assert capsys.readouterr().err == "vectors.txt: 1.20M of 2.50M bytes\n"


def test_there_is_one_door():
    rooms = Path(alignattn.__file__).parent.rglob("*.py")
    drawing = {path.name for path in rooms if re.search(r"\btqdm\(", path.read_text(encoding="utf-8"))}
    assert drawing == {"progress.py"}
