"""The commands of the guide, one after another, as a newcomer types them; `make slow` runs them."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from documentation import ROOT, command_lines
from needs import SHARED, skip_without

PAGES = (
    "../README",
    "getting-started",
    "slots",
    "tasks",
    "fine-tuning",
    "alignment",
    "calibration",
    "robustness",
    "compare",
    "reproduce",
    "own",
)
"""The pages of the guide, in the order in which their commands depend on each other."""
MIN_COMMANDS = 30
NEEDS_MORE = (
    *("albert-", "bert-base-", "bae", "reproduce lambda", "reproduce qvi", "--bf16", "--device cuda"),  # the Hub, a GPU
    "study-small",  # takes a night
    *("pairs.csv", "reviews/", "reviews.tsv", "letters.tsv", "comments.tsv", "photos.csv"),  # a user's files
    *("train.conll", "tags.jsonl", "questions.jsonl"),
    *("FOLDER", "mine.yaml"),
)
"""Parts of documented commands that need more than a clone and `../shared`."""


def journey() -> list[str]:
    """The commands of the guide that a clone can run, each once."""
    lines = (" ".join(line.split()) for name in PAGES for line in command_lines(ROOT / "docs" / f"{name}.md"))
    commands = [line for line in lines if "alignattn " in line and not any(word in line for word in NEEDS_MORE)]
    return list(dict.fromkeys(commands))


def test_the_guide_has_enough_commands() -> None:
    assert len(journey()) >= MIN_COMMANDS
    assert {shlex.split(line)[1] for line in journey()} >= {"finetune", "figure", "inspect", "calibrate", "reproduce"}


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A newcomer's folder: the repository's examples and configs, and `../shared` beside it."""
    skip_without(SHARED / "data", SHARED / "resources")
    folder = tmp_path / "clone"
    shutil.copytree(ROOT / "docs" / "examples", folder / "docs" / "examples")
    shutil.copytree(ROOT / "configs", folder / "configs")
    (tmp_path / "shared").symlink_to(SHARED)
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
