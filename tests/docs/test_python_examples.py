"""The examples in Python run as they are, and the alignment loss that they print falls."""

import re
import runpy

import pytest
from documentation import ROOT

EXAMPLES = [ROOT / "docs" / "examples" / name for name in ("audio.py", "qwen_lora_sft.py", "vit_digits.py")]
"""The examples that print an alignment loss; the others have tests of their own."""
MAX_LINES = 60


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs_and_its_alignment_loss_falls(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(path.read_text().splitlines()) <= MAX_LINES
    runpy.run_path(str(path))
    losses = [float(found) for found in re.findall(r"alignment loss (\d\.\d+)", capsys.readouterr().out)]
    assert len(losses) > 2
    assert losses[-1] < losses[0]
