"""What the terminal shows: progress in a terminal and in a log, and every use of the console."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from documentation import ROOT
from huggingface_hub import constants
from transformers import AutoModel

import alignattn
from alignattn.patching.checkpoints import load_pretrained, loading
from alignattn.utils import console
from alignattn.utils.console import counted, progress
from alignattn.utils.errors import AlignAttnError


def work(steps: int = 4) -> None:
    with progress("attack", 10, "row", initial=2) as bar:
        for step in range(steps):
            bar.set_postfix_str(f"{step} failed", refresh=False)
            bar.update()


def test_a_terminal_has_a_bar(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "in_terminal", lambda: True)
    work()
    out, err = capsys.readouterr()
    assert out == ""
    assert "6/10" in re.split(r"[\r\n]+", err.strip())[-1]


def test_a_log_has_occasional_lines(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "LOG_SECONDS", 0.0)
    work(2)
    assert capsys.readouterr() == ("", "attack: 3 of 10 rows, 0 failed\nattack: 4 of 10 rows, 1 failed\n")


def test_quick_work_logs_nothing(capsys):
    work()
    assert list(counted("abc", "letters", 3, "letter")) == ["a", "b", "c"]
    assert capsys.readouterr() == ("", "")


def test_bytes_are_shown_with_si_prefixes(capsys, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(console, "LOG_SECONDS", 0.0)
    with progress("vectors.txt", 2_500_000, "byte", scaled=True) as bar:
        bar.update(1_200_000)
    assert capsys.readouterr().err == "vectors.txt: 1.20M of 2.50M bytes\n"


def test_only_one_file_draws_bars_and_none_fills_a_log():
    calls = {
        path.name: {keyword.arg for keyword in call.keywords}
        for path in Path(alignattn.__file__).parent.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "tqdm"
    }
    # Without `disable`, tqdm draws in logs too.
    assert calls.keys() == {"console.py"}
    assert "disable" in calls["console.py"]


@pytest.fixture
def online(monkeypatch):
    console.announce.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://localhost")
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    console.is_known.cache_clear()
    yield
    console.announce.cache_clear()
    console.is_known.cache_clear()


def test_the_request_for_a_hub_model_is_logged_once(online, capsys):
    for _ in range(2):
        with loading("someone/encoder"):
            pass
    assert capsys.readouterr().err == "asking http://localhost for the model someone/encoder\n"
    assert not constants.HF_HUB_OFFLINE


def test_a_hub_that_is_out_of_reach_is_not_tried_and_stays_open_to_others(online, monkeypatch, capsys):
    # A host name that never resolves (RFC 6761).
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    for _ in range(2):
        with pytest.raises(AlignAttnError, match="there is no such folder here"):
            load_pretrained("someone/encoder", AutoModel)
    with loading("someone/encoder"):
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
    out_of_reach = "https://hub.invalid is out of reach: the model someone/encoder must be on this machine already\n"
    assert capsys.readouterr().err == out_of_reach


def test_behind_a_proxy_the_hub_is_asked(online, monkeypatch, capsys):
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.invalid")
    monkeypatch.setenv("https_proxy", "http://localhost:1")
    with loading("someone/encoder"):
        pass
    assert capsys.readouterr().err == "asking https://hub.invalid for the model someone/encoder\n"


def test_loading_a_folder_logs_no_request(online, tmp_path, capsys):
    with loading(str(tmp_path)):
        pass
    assert capsys.readouterr().err == ""


def test_the_command_line_silences_the_bars_of_libraries_that_it_imports_later():
    code = "from alignattn.cli import main; main(['--version']); from tqdm.auto import tqdm; print(list(tqdm('ab')))"
    environment = {name: value for name, value in os.environ.items() if name != "TQDM_DISABLE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    assert "['a', 'b']" in done.stdout
