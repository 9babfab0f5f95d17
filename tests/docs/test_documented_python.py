"""Every Python block of the documentation runs as it is."""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from conftest import WORDS, tiny_batch, tiny_model
from documentation import PAGES, ROOT, blocks
from torch.utils.data import DataLoader

import alignattn
from alignattn.commands import get_command
from alignattn.evaluation.calibration.decisions import Calibration, LabelledRows
from alignattn.finetuning.decisions import write_run_calibration

DOCS = ROOT / "docs"
MEASUREMENTS = DOCS / "measurements"
"""Pages whose blocks take minutes and need data that a clone does not have."""
TESTED_ELSEWHERE = ("SentenceTransformerTrainer", "SFTTrainer", "get_peft_model", "accelerate")
"""Tested by `test_sentence_transformers.py`, `test_trl.py`, `test_adapters.py` and `test_own_loops.py`."""

BLOCKS = [
    pytest.param(block, id=f"{page.relative_to(ROOT)}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks("python", page))
    if page.parent != MEASUREMENTS and not any(word in block for word in TESTED_ELSEWHERE)
]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to a folder with small models under the Hub names that the pages use."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]))
    tokenizer = transformers.BertTokenizer(str(tmp_path / "vocab.txt"), model_max_length=64)
    for name, family in (("albert-base-v2", "albert"), ("bert-base-uncased", "bert")):
        tiny_model(family).base_model.save_pretrained(tmp_path / name)
        tokenizer.save_pretrained(tmp_path / name)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def names():
    """The variables that a page assumes."""
    batch = tiny_batch() | {"labels": torch.tensor([0, 1, 1, 0])}
    rows = [{name: values[row].tolist() for name, values in batch.items()} for row in range(4)]
    features = {name: torch.randn(2, 3, 5, 64) for name in ("query", "key")}
    loader = DataLoader([{name: torch.tensor(value) for name, value in row.items()} for row in rows], batch_size=2)
    model = tiny_model("bert", num_labels=2)
    mask = torch.ones(2, 5, dtype=torch.bool)
    return {"model": model, "batch": batch, "dataset": rows, "loader": loader, "mask": mask, **features}


@pytest.fixture
def run(here, tiny_checkpoint):
    """The finished run of the pages, on rows like MRPC's."""
    rows = "sentence1,sentence2,label\na cat,the cat,1\na dog,some bird,0\n"
    for name in ("train", "validation"):
        Path(f"{name}.csv").write_text(rows)
    words = f"--model {tiny_checkpoint} --train_file train.csv --validation_file validation.csv --output_dir runs/mrpc"
    words += " --text_columns sentence1 sentence2 --max_steps 1 --max_length 32 --save_strategy no --report_to none"
    get_command("finetune").execute(get_command("finetune").parse(words.split()))
    # As `alignattn calibrate --run runs/mrpc` computes it from more rows.
    shares = np.random.default_rng(0).dirichlet([1, 1], 100)
    rows = LabelledRows(shares, shares.argmax(axis=1), shares[:, 0])
    Path("runs/mrpc/calibration").mkdir()
    write_run_calibration(Path("runs/mrpc/calibration"), Calibration(1.3, rows, rows))
    return "runs/mrpc"


@pytest.fixture
def messages(here, tiny_checkpoint):
    """The finished and calibrated run of getting started, on fewer rows."""
    words = f"--model {tiny_checkpoint} --task {DOCS}/examples/messages.yaml --output_dir runs/messages --max_steps 1"
    words += " --max_train_samples 30 --max_length 32 --save_strategy no --report_to none"
    get_command("finetune").execute(get_command("finetune").parse(words.split()))
    get_command("calibrate").execute(get_command("calibrate").parse(["--run", "runs/messages"]))
    return "runs/messages"


@pytest.mark.parametrize("block", BLOCKS)
def test_it_runs(block, here, names, request):
    if "docs/examples" in block:
        Path("docs").symlink_to(DOCS)
    block = block.replace("n_trials=10", "n_trials=2")
    if "save_pretrained" in block or "optuna" in block:
        block = block.replace('"minilm"', '"bert-base-uncased"')  # here a small model
    if "messages-onnx" in block:
        command = get_command("export")
        command.execute(command.resolve({"run": request.getfixturevalue("run"), "output_dir": "messages-onnx"}))
    if "runs/messages" in block:
        request.getfixturevalue("messages")
    elif "predictor" in block or "load_run" in block:
        names["predictor"] = alignattn.load_run(request.getfixturevalue("run"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        warnings.filterwarnings("ignore", message=".*pin_memory")
        exec(block, names)


def cells(text):
    """The texts and the code of a notebook in the percent format, without its header."""
    _, *found = text.split("\n# %%")
    for cell in found:
        kind, _, source = cell.partition("\n")
        lines = source.strip("\n").splitlines()
        is_text = kind.strip() == "[markdown]"
        yield is_text, "\n".join(line.removeprefix("#").removeprefix(" ") if is_text else line for line in lines)


def test_the_notebook_is_the_tutorial_as_it_ran():
    """`make notebook` writes it."""
    notebook = json.loads((DOCS / "tutorial.ipynb").read_text())
    written = [(cell["cell_type"] == "markdown", "".join(cell["source"])) for cell in notebook["cells"]]
    assert written == list(cells((DOCS / "tutorial.py").read_text()))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in code] == list(range(1, len(code) + 1))
    outputs = [output for cell in code for output in cell["outputs"]]
    assert {output["output_type"] for output in outputs} == {"stream", "display_data"}
    assert str(ROOT.parent) not in json.dumps(notebook)


def test_the_tutorial_runs(minilm, tmp_path, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").mkdir()
    with (DOCS / "examples" / "messages.tsv").open() as file:
        rows = list(file)
    with (tmp_path / "examples" / "messages.tsv").open("w") as file:
        file.writelines(rows[:25])
    names = {"__name__": "tutorial"}
    for is_text, source in cells((DOCS / "tutorial.py").read_text()):
        if not is_text:
            exec(source, names)
    assert names["history"][0][0] > names["history"][-1][0]
    assert all(align > 0 for _, align in names["history"])
    assert len(names["figure"].axes) == 2
    with torch.no_grad():
        logits = [model.eval()(**names["new"]).logits for model in (names["model"], names["again"])]
    torch.testing.assert_close(*logits)
