"""`alignattn balance`: the balanced model computes the same function, and mistakes are one line."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from conftest import WORDS, tiny_model
from datasets import Dataset
from safetensors.torch import load_file, save_file
from task_rows import make_rows
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.cli import main
from alignattn.finetuning.callbacks import split_rows
from alignattn.models import MODELS
from alignattn.models.build import BuildContext
from alignattn.models.taggers.crf import CRF_FIELD, tagger_with_crf
from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.tags.entities import BIO
from alignattn.tasks.task import TaskOptions


def texts(count=40):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(WORDS, rng.integers(4, 12))) for _ in range(count)]


@pytest.fixture
def texts_file(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(texts()), encoding="utf-8")
    return path


def run(model, folder, *words):
    return main(["balance", "--model", str(model), "--output_dir", str(folder), *map(str, words)])


def states_of(model, folder):
    batch = AutoTokenizer.from_pretrained(folder)(texts(), padding=True, return_tensors="pt")
    with torch.no_grad():
        outputs = model.eval()(**batch)
    return outputs["logits"] if "logits" in outputs else outputs["last_hidden_state"]


@pytest.mark.parametrize("centre", [False, True])
def test_plain_transformers_loads_the_same_function(centre, tiny_checkpoint, texts_file, tmp_path, capsys):
    out = tmp_path / "out"
    assert run(tiny_checkpoint, out, "--train_file", texts_file, "--centre", str(centre).lower()) == 0
    before, after = (states_of(AutoModel.from_pretrained(folder), folder) for folder in (tiny_checkpoint, out))
    assert (after - before).abs().max() < 1e-4 * before.std()
    plain, balanced = (load_file(folder / "model.safetensors") for folder in (tiny_checkpoint, out))
    assert plain.keys() == balanced.keys()
    differing = {name.rpartition("self.")[2] for name in plain if not torch.equal(plain[name], balanced[name])}
    # The query biases of the random checkpoint are zero.
    whole = {"query.weight", "key.weight", "key.bias"}
    assert differing == ({"key.bias"} if centre else whole)
    report = json.loads((out / "balance.json").read_text())
    assert (report["moment_rows"], report["held_back_rows"], report["data"]) == (32, 8, "texts.txt")
    assert len(report["after"]) == 2
    shown = capsys.readouterr().out
    assert "encoder.layer.1.attention.self" in shown
    assert f"written to {out}" in shown


def test_a_patched_checkpoint_keeps_its_slots_and_head(tiny_checkpoint, texts_file, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(tiny_checkpoint, num_labels=3)
    alignattn.patch(model, "aa-ct+sparsemax").save_pretrained(tmp_path / "patched")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "patched")
    assert run(tmp_path / "patched", tmp_path / "out", "--train_file", texts_file) == 0
    balanced = alignattn.from_pretrained(tmp_path / "out", AutoModelForSequenceClassification)
    before = states_of(model, tmp_path / "patched")
    assert (states_of(balanced, tmp_path / "out") - before).abs().max() < 1e-4 * before.std()
    with pytest.raises(ValueError, match="load_with_alignattn"):
        AutoModelForSequenceClassification.from_pretrained(tmp_path / "out")


def test_a_tagger_with_a_crf_keeps_its_head(tiny_checkpoint, texts_file, tmp_path):
    tags = ["O", "B-X", "I-X"]
    config = AutoConfig.from_pretrained(tiny_checkpoint, id2label=dict(enumerate(tags)), label2id={})
    setattr(config, CRF_FIELD, BIO)
    tagger_with_crf(config)(config).save_pretrained(tmp_path / "tagger")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "tagger")
    assert run(tmp_path / "tagger", tmp_path / "out", "--train_file", texts_file) == 0
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("tagger", "out"))
    assert before.keys() == after.keys()
    heads = [name for name in before if not name.startswith("bert.")]
    assert {name.partition(".")[0] for name in heads} == {"classifier", "crf"}
    assert all(torch.equal(before[name], after[name]) for name in heads)


def test_a_head_that_transformers_lacks_is_not_dropped(tiny_checkpoint, texts_file, tmp_path, capsys):
    model = AutoModel.from_pretrained(tiny_checkpoint)
    model.save_pretrained(tmp_path / "own")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "own")
    fields = json.loads((tmp_path / "own" / "config.json").read_text()) | {"architectures": ["BertForOwnTask"]}
    (tmp_path / "own" / "config.json").write_text(json.dumps(fields))
    assert run(tmp_path / "own", tmp_path / "out", "--train_file", texts_file) == 2
    assert "BertForOwnTask" in refusal(capsys)


def test_max_length_defaults_to_that_of_the_run(tiny_checkpoint, texts_file, tmp_path):
    rows = pd.DataFrame({"text": texts(), "label": ["a", "b"] * 20})
    rows.to_csv(tmp_path / "rows.csv", index=False)
    words = f"--model {tiny_checkpoint} --train_file {tmp_path / 'rows.csv'} --text_columns text --max_length 9"
    words += f" --max_steps 1 --save_strategy no --disable_tqdm true --use_cpu true --output_dir {tmp_path / 'run'}"
    assert main(["finetune", *words.split()]) == 0
    for name, model, given, length in (
        ("out", tmp_path / "run", [], 9),
        ("shorter", tmp_path / "run", ["--max_length", 7], 7),
        ("plain", tiny_checkpoint, [], 64),
    ):
        assert run(model, tmp_path / name, "--train_file", texts_file, *given) == 0
        assert json.loads((tmp_path / name / "balance.json").read_text())["settings"]["max_length"] == length


def test_all_windows_of_a_row_are_used_or_held_out(tiny_checkpoint):
    task, tokenizer = TASKS["squad"], AutoTokenizer.from_pretrained(tiny_checkpoint)
    rows, options = Dataset.from_list(make_rows(task, 10)), TaskOptions(24, doc_stride=0)
    moments, held_back = split_rows(task, rows, tokenizer, options, 256, 64)
    assert (moments.rows["id"][:], held_back.rows["id"][:]) == (rows["id"][:8], rows["id"][8:])
    windows = task.encode(rows, tokenizer, options)["input_ids"][:]
    assert moments.encoded["input_ids"][:] + held_back.encoded["input_ids"][:] == windows
    assert len(windows) > len(rows)


def test_half_precision_stays_and_its_change_is_printed(tiny_checkpoint, texts_file, tmp_path, capsys):
    model = AutoModel.from_pretrained(tiny_checkpoint).to(torch.bfloat16)
    model.save_pretrained(tmp_path / "half")
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(tmp_path / "half")
    assert run(tmp_path / "half", tmp_path / "out", "--train_file", texts_file, "--held_back_samples", "20") == 0
    assert {values.dtype for values in load_file(tmp_path / "out" / "model.safetensors").values()} == {torch.bfloat16}
    assert "Mean error of the outputs against float64" in capsys.readouterr().out


def refusal(capsys):
    return capsys.readouterr().err.strip().splitlines()[-1]


def test_mistakes_write_nothing(tiny_checkpoint, texts_file, tmp_path, capsys):
    out = tmp_path / "out"
    empty, table = tmp_path / "empty.txt", tmp_path / "rows.csv"
    empty.write_text("\n", encoding="utf-8")
    pd.DataFrame({"a": texts(4)}).to_csv(table, index=False)
    mistakes = {
        ("--train_file", empty): "is empty",
        ("--train_file", table, "--text_columns", "b"): "has no column 'b'",
        ("--data", texts_file): "--data",
        ("--train_file", texts_file, "--task", "mrpc"): "--train_file",
    }
    for words, message in mistakes.items():
        assert run(tiny_checkpoint, out, *words) == 2
        assert message in refusal(capsys)
    assert run(tiny_checkpoint, tiny_checkpoint, "--train_file", texts_file) == 2
    assert "already holds config.json" in refusal(capsys)
    assert not (out / "config.json").exists()


@pytest.mark.parametrize(
    ("task", "reason"),
    [("digits", "digits has no texts"), ("cora", "cora has no texts"), ("cmudict", "cmudict generates sequences")],
)
def test_rows_that_are_no_texts_are_refused(task, reason, tiny_checkpoint, tmp_path, capsys):
    assert run(tiny_checkpoint, tmp_path / "out", "--task", task) == 2
    assert refusal(capsys) == f"alignattn: '{tiny_checkpoint}' reads only texts, and {reason}: give other rows"


def test_a_model_of_images_is_refused(tiny_checkpoint, texts_file, tmp_path, capsys):
    config = transformers.ViTConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "vit")
    reason = f"alignattn: '{tmp_path / 'vit'}' reads images, and this command measures only the tokens of texts"
    assert run(tmp_path / "vit", tmp_path / "out", "--train_file", texts_file) == 2
    assert refusal(capsys) == reason
    words = [
        "--model",
        str(tmp_path / "vit"),
        "--validation_file",
        str(texts_file),
        "--output_dir",
        str(tmp_path / "out"),
    ]
    assert main(["inspect", *words]) == 2
    assert refusal(capsys) == reason


def test_what_cannot_be_balanced_is_one_line(tiny_checkpoint, texts_file, tmp_path, capsys):
    folder = tmp_path / "disentangled"
    tiny_model("deberta-v3").base_model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(folder)
    assert run(folder, tmp_path / "out", "--train_file", texts_file) == 2
    assert "scores positions by its queries and keys" in refusal(capsys)
    damaged = tmp_path / "nan"
    transformers.AutoModel.from_pretrained(tiny_checkpoint).save_pretrained(damaged)
    AutoTokenizer.from_pretrained(tiny_checkpoint).save_pretrained(damaged)
    weights = load_file(damaged / "model.safetensors")
    weights["encoder.layer.0.attention.self.query.weight"][0, 0] = float("nan")
    save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
    assert run(damaged, tmp_path / "out", "--train_file", texts_file) == 2
    assert "not finite" in refusal(capsys)
    assert not (tmp_path / "out" / "config.json").exists()


@pytest.mark.parametrize("name", ["transformer", "han"])
def test_a_model_from_scratch_is_refused_with_advice_that_fits_it(name, texts_file, tmp_path, capsys):
    rows, folder = {"text": texts()}, tmp_path / "run"
    task = TextClassification(
        name="own", text_columns=("text",), label_column="label", labels=("a", "b"), metrics=("accuracy",)
    )
    built = MODELS.load(name).build(BuildContext(task, rows, seed=0, config_fields={"hidden_dim": 8}))
    built.model.save_pretrained(folder)
    built.tokenizer.save_pretrained(folder)
    assert run(folder, tmp_path / "out", "--train_file", texts_file) == 2
    told = refusal(capsys)
    assert f"is a trained alignattn-{name} model" in told
    assert ("or call alignattn.balance on it" in told) == (name == "transformer")
    assert not (tmp_path / "out").exists()


def test_on_real_rows_of_mrpc(minilm, shared_data, tmp_path):
    words = ["--task", "mrpc", "--data_dir", shared_data, "--max_train_samples", 96, "--held_back_samples", 16]
    assert run(minilm, tmp_path / "out", *words) == 0
    report = json.loads((tmp_path / "out" / "balance.json").read_text())
    before, after, floor = (np.mean(report[name], axis=1) for name in ("before", "after", "floor"))
    assert (after < before / 2).all()
    assert (floor < after).all()
    assert report["largest_change"] < 1e-3 * report["spread"]
    assert np.max(report["condition"]) < 10
