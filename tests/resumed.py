"""A run that stopped after its first checkpoint and is resumed."""

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from alignattn.cli import main

KEEPS_ALL = ["--save_total_limit", "5", "--keep_checkpoints", "true", "--disable_tqdm", "true", "--use_cpu", "true"]
"""Keep all checkpoints: the last one alone would leave nothing to train."""


def finetune(words: list[str], folder: Path) -> None:
    """Train with options, and keep all checkpoints."""
    assert main(["finetune", *words, *KEEPS_ALL, "--output_dir", str(folder)]) == 0


def assert_goes_on(words: list[str], folder: Path, capsys: Any) -> None:
    """Remove what `finetune` wrote after the first checkpoint; assert that the resumed run has the same weights."""
    whole = load_file(folder / "model.safetensors")
    for written_last in ("results.json", "model.safetensors"):
        (folder / written_last).unlink()
    first, *later = sorted(folder.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert later
    for checkpoint in later:
        shutil.rmtree(checkpoint)
    capsys.readouterr()
    finetune(words, folder)
    assert f"resuming from {first}\n" in capsys.readouterr().out
    resumed = load_file(folder / "model.safetensors")
    assert resumed.keys() == whole.keys()
    for name, tensor in whole.items():
        assert torch.equal(resumed[name], tensor), name
