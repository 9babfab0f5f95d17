"""The functions and files of the package that plain commands walk through: the house cannot grow back unseen."""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from conftest import ROOT, WORDS

# The counts that were reached plus 5 %: (functions, files). When a way becomes shorter, lower its numbers.
MOST = {
    "finetune": {"upper": (298, 43), "lower": (126, 27)},
    "finetune --attention aa-ct": {"upper": (301, 43), "lower": (298, 47)},
    "predict": {"upper": (142, 21), "lower": (41, 15)},
    "patch": {"upper": (4, 3), "lower": (120, 25)},
}

LOWER_ROOMS = {"attention", "models", "patching", "training"}
"""All other rooms, and the files beside the rooms, are upper."""

COMMAND = "from alignattn.cli import main; assert main({words!r}.split()) == 0"
FINETUNE = (
    "finetune --model {model} --train_file rows.csv --validation_file rows.csv --text_columns a b --label_column same "
    "--num_train_epochs 1 --use_cpu true --output_dir run"
)
PATCH = """
from transformers import AutoModel
import alignattn
alignattn.patch(AutoModel.from_pretrained({model!r}), "aa-ct")
"""
ROWS = 32


def counts_of(code: str, folder: Path) -> dict[str, tuple[int, int]]:
    """Run code in a process of its own, and return the functions and files of the package that it calls."""
    out = folder / "called.json"
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "traced.py"), str(out), code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    called = json.loads(out.read_text())
    counts = {}
    for rooms in ("upper", "lower"):
        files = [path for path, *_ in called if (path.split("/")[0] in LOWER_ROOMS) == (rooms == "lower")]
        counts[rooms] = (len(files), len(set(files)))
    return counts


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_checkpoint):
    """A folder with the run of `finetune`, and what the run called."""
    folder, drawn = tmp_path_factory.mktemp("ways"), random.Random(0)
    first, second = ([" ".join(drawn.choices(WORDS, k=6)) for _ in range(ROWS)] for _ in range(2))
    same = ["yes" if "cat" in text.split() else "no" for text in first]
    pd.DataFrame({"a": first, "b": second, "same": same}).to_csv(folder / "rows.csv", index=False)
    return folder, counts_of(COMMAND.format(words=FINETUNE.format(model=tiny_checkpoint)), folder)


@pytest.mark.parametrize("way", MOST)
def test_a_plain_way_through_the_house_is_no_longer_than_it_was(way, run, tiny_checkpoint):
    folder, counts = run
    if way == "finetune --attention aa-ct":
        words = FINETUNE.format(model=tiny_checkpoint).replace("finetune", way, 1)
        counts = counts_of(COMMAND.format(words=f"{words}-ct"), folder)
    elif way == "predict":
        words = ["predict", "--run", "run", "--text", "the cat sees", "a dog"]
        counts = counts_of(f"from alignattn.cli import main; assert main({words}) == 0", folder)
    elif way == "patch":
        counts = counts_of(PATCH.format(model=str(tiny_checkpoint)), folder)
    print(f"{way}: functions and files: {counts}, at most {MOST[way]}")
    assert all(one <= most for rooms in counts for one, most in zip(counts[rooms], MOST[way][rooms], strict=True))
