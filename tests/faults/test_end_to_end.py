"""Whole commands on broken files: each succeeds or prints one line, and none ends in a traceback."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from damage import broken_json, broken_parquet, broken_safetensors, broken_table, broken_yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from made import CHECKPOINT, COMMANDS

from alignattn.cli import main

pytestmark = pytest.mark.faults

EXAMPLES = 10
"""Examples per command and file."""

SEVERAL_STEPS = "--max_steps 2"
FINETUNE = (
    "finetune --model tiny --attention aa-ct --train_file train.csv --validation_file validation.csv --text_columns a "
    f"b --label_column same --max_length 24 --disable_tqdm true --use_cpu true --save_strategy no {SEVERAL_STEPS}"
)

Broken = Callable[[bytes], st.SearchStrategy[bytes]]

CASES: dict[str, tuple[str, str, Broken]] = {
    "finetune, rows": (f"{FINETUNE} --output_dir out", "train.csv", broken_table),
    "finetune, the model's config": (f"{FINETUNE} --output_dir out", "tiny/config.json", broken_json),
    "finetune, the tokenizer": (f"{FINETUNE} --output_dir out", "tiny/tokenizer.json", broken_json),
    "finetune, weights": (f"{FINETUNE} --output_dir out", "tiny/model.safetensors", broken_safetensors),
    "finetune, its own folder": ("LINE:unfinished", "unfinished/config.yaml", broken_yaml),
    "finetune, a checkpoint's state": ("LINE:unfinished", f"{CHECKPOINT}/trainer_state.json", broken_json),
    "finetune, a checkpoint's weights": (
        "LINE:unfinished",
        f"{CHECKPOINT}/model.safetensors",
        broken_safetensors,
    ),
    "finetune, results": ("LINE:aa-ct", "finished/aa-ct/results.json", broken_json),
    "calibrate, predictions": (
        "calibrate finished/aa-ct/predictions.parquet --resamples 20 --output_dir out",
        "finished/aa-ct/predictions.parquet",
        broken_parquet,
    ),
    "inspect, texts": (
        "inspect --model tiny --validation_file train.csv --text_columns a --max_length 24 --output_dir out",
        "train.csv",
        broken_table,
    ),
    "inspect, weights": (
        "inspect --model tiny --validation_file train.csv --text_columns a --max_length 24 --output_dir out",
        "tiny/model.safetensors",
        broken_safetensors,
    ),
    "figure, options of a run": (
        "figure tsne --run finished/aa-ct --output_file out.png",
        "finished/aa-ct/config.yaml",
        broken_yaml,
    ),
    "reproduce, a table": ("reproduce own.yaml --dry_run --num_seeds 1 --output_dir table", "own.yaml", broken_yaml),
}

TABLE = """title: t
command: finetune
options: {task: rte, model: tiny}
rows:
- {options: {attention: soft}}
- {options: {attention: aa-ct}}
columns:
- {label: rte, options: {}, measures: [{label: accuracy, path: metrics.validation.accuracy}]}
"""


@pytest.fixture
def here(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(made, tmp_path / "made")
    (tmp_path / "made/own.yaml").write_text(TABLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("case", CASES)
def test_a_command_succeeds_or_is_refused_in_one_line(
    case: str, here: Path, trying: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    line, file, broken = CASES[case]
    words = (COMMANDS[line.removeprefix("LINE:")] if line.startswith("LINE:") else line).split()
    numbers = iter(range(EXAMPLES**3))

    def code_with(content: bytes) -> tuple[int, int]:
        """Return the exit code of the command in a copy of the folder, and the number of lines of alignattn."""
        folder = here / f"try-{next(numbers)}"
        shutil.copytree(here / "made", folder)
        (folder / file).write_bytes(content)
        monkeypatch.chdir(folder)
        code = main(words)
        monkeypatch.chdir(here)
        shutil.rmtree(folder)
        return code, sum(text.startswith("alignattn: ") for text in capsys.readouterr().err.splitlines())

    whole = (here / "made" / file).read_bytes()
    assert code_with(whole) == (0, 0)  # a command that refuses every file would test nothing

    @settings(max_examples=EXAMPLES)
    @given(broken(whole))
    def give(content: bytes) -> None:
        with trying(f"a whole command: {case}"):
            assert code_with(content) in ((0, 0), (2, 1))

    give()
