"""A run is evaluated once an epoch unless it says otherwise, and the evaluations change nothing but the log."""

import json
import random
import shutil

import pandas as pd
import pytest
import transformers
from conftest import WORDS

import alignattn
from alignattn.cli import main
from alignattn.commands import get_command


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    drawn, path = random.Random(0), tmp_path_factory.mktemp("rows") / "rows.csv"
    texts = [" ".join(drawn.choices(WORDS, k=drawn.randint(1, 9))) for _ in range(24)]
    pd.DataFrame({"text": texts, "label": ["no", "yes"] * 12}).to_csv(path, index=False)
    return path


@pytest.mark.parametrize("more", [[], ["--long_texts", "windows", "--doc_stride", "2", "--max_length", "6"]], ids=str)
def test_the_weights_are_bitwise_those_of_a_run_without_evaluations(more, rows, tiny_checkpoint, tmp_path):
    """The model has dropout, and an alignment by networks of its own."""
    words = f"finetune --model {tiny_checkpoint} --attention aa-gan --train_file {rows} --validation_file {rows}"
    words += " --text_columns text --num_train_epochs 3 --learning_rate 1e-2 --model_config hidden_dropout_prob=0.3"
    words += " --save_strategy no --use_cpu true"
    folders = {name: tmp_path / name for name in ("default", "no")}
    assert main([*words.split(), *more, "--output_dir", str(folders["default"])]) == 0
    assert main([*words.split(), *more, "--output_dir", str(folders["no"]), "--eval_strategy", "no"]) == 0
    logs = {name: json.loads((one / "trainer_state.json").read_text())["log_history"] for name, one in folders.items()}
    evaluated = {name: [entry["epoch"] for entry in log if "eval_accuracy" in entry] for name, log in logs.items()}
    assert evaluated == {"default": [1, 2, 3], "no": []}
    one, other = ((folder / "model.safetensors").read_bytes() for folder in folders.values())
    assert one == other
    # A finished run is the same run, whenever it was evaluated.
    assert main([*words.split(), *more, "--output_dir", str(folders["no"])]) == 0


def test_the_runtime_of_a_resumed_run_is_that_of_all_its_processes(rows, tiny_checkpoint, tmp_path):
    words = f"finetune --model {tiny_checkpoint} --train_file {rows} --text_columns text --num_train_epochs 3"
    words += f" --save_total_limit 5 --keep_checkpoints true --use_cpu true --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    results, states = tmp_path / "run" / "results.json", sorted(tmp_path.glob("run/checkpoint-*/trainer_state.json"))
    whole = json.loads(results.read_text())
    # As after an hour in the first process.
    for path in states:
        state = json.loads(path.read_text())
        spent = state["stateful_callbacks"]["Runtime"]["attributes"]
        assert 0 < spent["earlier"] < whole["train_runtime"]
        spent["earlier"] = 3600.0
        path.write_text(json.dumps(state))
    results.unlink()
    shutil.rmtree(max(states).parent)
    assert main(words.split()) == 0
    again = json.loads(results.read_text())
    assert 3600 < again["train_runtime"] < 3700
    assert f"{again['train_runtime']:.0f} s" in (tmp_path / "run" / "README.md").read_text()


@pytest.mark.parametrize(
    ("words", "strategy"),
    [
        ("--task mrpc", "epoch"),
        ("--task mrpc --train_file {rows}", "no"),
        ("--train_file {rows} --text_columns text", "no"),
        ("--train_file {rows} --text_columns text --validation_share 0.2", "epoch"),
        ("--train_file {rows} --text_columns text --validation_file {rows}", "epoch"),
        ("--task mrpc --eval_strategy no", "no"),
        ("--task mrpc --early_stopping_patience 2 --save_strategy steps", "steps"),
    ],
)
def test_the_default_is_once_an_epoch_where_there_are_rows(words, strategy, rows):
    options = get_command("finetune").parse(f"--model x --output_dir o {words.format(rows=rows)}".split())
    assert options.training.eval_strategy == strategy


def test_a_domain_shift_is_evaluated_at_its_end():
    options = get_command("domain-shift").parse(["--pair", "snli-mnli", "--model", "x", "--output_dir", "o"])
    assert options.training.eval_strategy == "no"


def test_an_encoder_decoder_that_classifies_is_evaluated_by_its_logits(rows, tiny_checkpoint, tmp_path):
    """Its outputs also hold the states of its encoder, which its config does not list as ignored."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    sizes = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    config = transformers.BartConfig(
        vocab_size=len(tokenizer),
        d_model=16,
        encoder_ffn_dim=16,
        decoder_ffn_dim=16,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.sep_token_id,
        decoder_start_token_id=tokenizer.cls_token_id,
        **sizes,
    )
    transformers.BartModel(config).save_pretrained(tmp_path / "bart")
    tokenizer.save_pretrained(tmp_path / "bart")
    words = f"finetune --model {tmp_path / 'bart'} --attention soft --train_file {rows} --validation_file {rows}"
    words += f" --text_columns text --num_train_epochs 1 --use_cpu true --output_dir {tmp_path / 'run'}"
    assert main(words.split()) == 0
    read = pd.read_csv(rows)
    predicted = alignattn.load_run(tmp_path / "run").predict(read["text"].tolist())
    right = [answer["prediction"] == label for answer, label in zip(predicted, read["label"], strict=True)]
    metrics = json.loads((tmp_path / "run" / "results.json").read_text())["metrics"]
    assert metrics["validation"]["accuracy"] == sum(right) / len(right)
