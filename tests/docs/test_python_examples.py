"""The examples in Python run as they are, and the alignment loss that they print falls."""

import random
import re
import runpy
import sys

import onnxruntime
import pandas as pd
import pytest
import torch
from conftest import WORDS
from documentation import ROOT
from transformers import AutoModelForSequenceClassification

import alignattn
from alignattn.cli import main

EXPORT = ROOT / "docs" / "examples" / "export_onnx.py"
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


@pytest.mark.parametrize(
    ("attention", "name"), [("aa-ct", "rows.csv"), ("soft", "rows.tsv"), ("aa-ct+local", "rows.jsonl")]
)
def test_a_run_is_the_same_in_onnx_for_any_batch_and_length(
    attention, name, tiny_checkpoint, tmp_path, monkeypatch, capsys
):
    assert len(EXPORT.read_text().splitlines()) <= MAX_LINES
    drawn = random.Random(0)
    rows = [(", ".join(drawn.choices(WORDS, k=1 + row % 30)), ("no", "yes")[row % 2]) for row in range(45)]
    table = pd.DataFrame(rows, columns=["text", "label"])
    if name.endswith("jsonl"):
        table.to_json(tmp_path / name, orient="records", lines=True)
    else:
        table.to_csv(tmp_path / name, sep="\t" if name.endswith("tsv") else ",", index=False)
    monkeypatch.chdir(tmp_path)
    words = f"finetune --model {tiny_checkpoint} --attention {attention} --train_file {name} --text_columns text"
    words += " --learning_rate 0.02 --num_train_epochs 4 --output_dir run --max_length 64 --disable_tqdm true"
    assert main(words.split()) == 0
    capsys.readouterr()
    monkeypatch.setattr(sys, "argv", [str(EXPORT), "run", name, "text", "label"])
    runpy.run_path(str(EXPORT))
    exact, quantised = map(float, re.findall(r"largest difference ([\d.e-]+)", capsys.readouterr().out))
    assert exact < 1e-4 < quantised < 1
    session = onnxruntime.InferenceSession("model.onnx", providers=["CPUExecutionProvider"])
    model = alignattn.from_pretrained("run", AutoModelForSequenceClassification)
    for batch, length in ((1, 1), (1, 64), (9, 33)):
        ids = torch.randint(5, 25, (batch, length))
        inputs = {"input_ids": ids, "token_type_ids": torch.zeros_like(ids), "attention_mask": torch.ones_like(ids)}
        inputs["attention_mask"][:, 1 + length // 2 :] = 0
        with torch.inference_mode():
            expected = model(**inputs).logits
        (found,) = session.run(None, {name: values.numpy() for name, values in inputs.items()})
        torch.testing.assert_close(torch.as_tensor(found), expected, rtol=0, atol=1e-4)
