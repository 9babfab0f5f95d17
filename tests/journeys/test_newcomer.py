"""The commands of the guide, one after another, as a newcomer types them; `make slow` runs them."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from documentation import NEEDS, ROOT, blocks, command_lines

from alignattn.commands import COMMANDS

PAGES = (
    *("../README", "getting-started", "fine-tuning", "tasks", "slots", "report", "decisions", "predict", "serving"),
    *("compare", "referee"),
    *("alignment", "calibration", "robustness", "reproduce", "images", "texts", "sequences", "graphs", "vqa", "own"),
)
"""Pages for users, in the order in which their commands depend on each other."""
PROGRAMS = ("alignattn", "python", "torchrun", "cut")
MIN_COMMANDS = 60


def journey() -> list[str]:
    """The commands of the pages that need nothing else; a reader of several pages types some of them twice."""
    lines = []
    for name in PAGES:
        page = ROOT / "docs" / f"{name}.md"
        if name == "images":  # whose commands read the model that its program makes
            lines.append(f"python -c {shlex.quote(next(iter(blocks('python', page))))}")
        lines += [" ".join(line.split()) for line in command_lines(page)]
    return [line for line in lines if line.split(" ")[0] in PROGRAMS and NEEDS not in line]


@pytest.mark.parametrize("name", PAGES)
def test_a_line_that_no_test_runs_says_what_it_needs(name: str) -> None:
    """Of a page for users, all else is a command of `PROGRAMS`, or sets up the environment."""
    for line in command_lines(ROOT / "docs" / f"{name}.md"):
        is_run = line.split(" ")[0] in PROGRAMS
        assert is_run or NEEDS in line or line.startswith(("pip install", "python3 -m venv", "rsync", "make ")), line
        assert "../shared" not in line


def test_the_guide_has_enough_commands() -> None:
    assert len(journey()) >= MIN_COMMANDS
    named = {shlex.split(line)[1] for line in journey() if line.startswith("alignattn ")}
    assert named == COMMANDS.keys() - {"serve"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A newcomer's folder: the repository's examples, configs and studies."""
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copytree(ROOT / "configs", folder / "configs")
    return folder


@pytest.mark.slow
def test_the_documented_commands_work_one_after_the_other(clone: Path, minilm: str) -> None:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "TRANSFORMERS_VERBOSITY": "error"}
    failed = []
    for line in journey():
        started = time.perf_counter()
        done = subprocess.run(["bash", "-c", line], cwd=clone, env=environment, capture_output=True, text=True)
        print(f"{time.perf_counter() - started:6.1f} s  {done.returncode}  {line}", flush=True)
        if done.returncode or "Traceback" in done.stderr:
            failed.append(f"{line}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
            print(failed[-1], flush=True)
    assert failed == []
