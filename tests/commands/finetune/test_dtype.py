"""Checkpoints in half precision: the types in which a run trains, saves and predicts."""

from collections import Counter
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import transformers
from safetensors.torch import load_file
from test_finetune import options, read, rows_file, run, weights  # noqa: F401

import alignattn
from alignattn.finetuning.model import computed_types

HALVES = {"float16": torch.float16, "bfloat16": torch.bfloat16}


@pytest.fixture(params=HALVES)
def halved(request, tiny_checkpoint, tmp_path):
    """A checkpoint in half precision, and the same numbers stored in float32."""
    model = transformers.BertModel.from_pretrained(tiny_checkpoint).to(HALVES[request.param])
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    half, whole = tmp_path / "half", tmp_path / "whole"
    for folder, dtype in ((half, model.dtype), (whole, torch.float32)):
        model.to(dtype).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return SimpleNamespace(name=request.param, half=str(half), whole=str(whole))


def types_in(folder):
    """The types of the weights; the counter of an alignment's draws is an integer."""
    saved = [tensor for tensor in weights(folder).values() if tensor.is_floating_point()]
    return {str(tensor.dtype).removeprefix("torch.") for tensor in saved}


def losses(folder):
    return [entry["loss"] for entry in read(folder, "trainer_state.json")["log_history"] if "loss" in entry]


def predicted(folder, rows):
    """The largest probability of each row as saved by the run, and as predicted from its folder now."""
    texts = list(pd.read_csv(rows)[["a", "b"]].itertuples(index=False, name=None))
    now = [row["probability"] for row in alignattn.load_run(folder).predict(texts, batch_size=8, by_length=False)]
    written = pd.read_parquet(folder / "predictions.parquet")["probabilities"]
    return torch.tensor([max(row) for row in written], dtype=torch.float64), torch.tensor(now, dtype=torch.float64)


@pytest.mark.parametrize(("halved", "attention"), [("float16", "aa-gan"), ("bfloat16", "qvi")], indirect=["halved"])
def test_a_run_trains_as_from_the_same_weights_in_float32(options, halved, tmp_path, attention, capsys):  # noqa: F811
    folders = {stored: tmp_path / f"run-{stored}" for stored in ("half", "whole")}
    for stored, folder in folders.items():
        changes = {"model": getattr(halved, stored), "output_dir": str(folder), "attention": attention}
        assert run(options, **changes, logging_steps="1") == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("weights: ")]
    assert f"stored in {halved.name}, trained in float32" in said[0]
    assert losses(folders["half"]) == losses(folders["whole"])
    found, expected = (weights(folder) for folder in folders.values())
    assert types_in(folders["half"]) == {"float32"}
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
    torch.testing.assert_close(*predicted(folders["half"], options["--train_file"]))
    assert alignattn.load_run(folders["half"]).model.dtype == torch.float32


@pytest.mark.parametrize("mixed", [{}, {"bf16": "true", "dtype": "bfloat16"}], ids=["plain", "autocast"])
@pytest.mark.parametrize(("halved", "attention"), [("float16", "aa-gan"), ("bfloat16", "qvi")], indirect=["halved"])
def test_adapters_over_a_half_precision_base_are_in_float32(options, halved, tmp_path, attention, mixed):  # noqa: F811
    folder = tmp_path / "run"
    seen = Counter()

    def look(trainer):
        for name, own in trainer.model.named_parameters():
            if "original_module" not in name:
                seen[own.requires_grad, str(own.dtype).removeprefix("torch.")] += 1
        return computed_types(trainer)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("alignattn.finetuning.run.computed_types", look)
        changes = {"model": halved.half, "output_dir": str(folder), "attention": attention, "lora_r": "2"}
        assert run(options, **changes, **mixed) == 0
    assert set(seen) == {(False, mixed.get("dtype", halved.name)), (True, "float32")}
    adapter = load_file(folder / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in adapter.values() if tensor.is_floating_point()} == {torch.float32}
    if not mixed:
        assert types_in(folder) == {"float32"}
        torch.testing.assert_close(*predicted(folder, options["--train_file"]))


def test_updates_of_adapters_survive_the_merge_into_a_half_precision_base(options, halved, tmp_path):  # noqa: F811
    """The stored type would round away deltas far below half a unit in the last place of a weight."""
    folder = tmp_path / "run"
    changes = {"model": halved.half, "output_dir": str(folder), "lora_r": "2", "attention": "soft"}
    assert run(options, **changes, learning_rate="1e-5") == 0
    before, after = load_file(f"{halved.half}/model.safetensors"), weights(folder)
    name = "encoder.layer.0.attention.self.query.weight"
    moved = after[f"bert.{name}"] - before[name].float()
    assert (moved != 0).float().mean() > 0.9


@pytest.mark.parametrize(
    ("halved", "dtype"),
    [("float16", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "auto")],
    indirect=["halved"],
)
def test_another_type_can_be_chosen_and_is_kept(options, halved, tmp_path, dtype, capsys):  # noqa: F811
    folder = tmp_path / "run"
    changes = {"model": halved.half, "output_dir": str(folder), "attention": "aa-gan+qvi"}
    assert run(options, **changes, dtype=dtype) == 0
    assert "trained in bfloat16, float32" in capsys.readouterr().out
    saved = {name: tensor.dtype for name, tensor in weights(folder).items()}
    assert {dtype for name, dtype in saved.items() if "alignattn" not in name} == {torch.bfloat16}
    own = {dtype for name, dtype in saved.items() if "alignattn" in name}
    assert own == {torch.float32, torch.int64}  # parameters, and the counter of the draws
    model = alignattn.load_run(folder).model
    assert {name: own.dtype for name, own in model.state_dict().items() if name in saved} == saved
    torch.testing.assert_close(*predicted(folder, options["--train_file"]))


@pytest.mark.parametrize(
    ("changes", "trained", "evaluated", "named"),
    [
        ({}, "float32", "float32", "float32"),
        ({"bf16": "true"}, "bfloat16", "bfloat16", "bfloat16, weights in float32"),
        ({"dtype": "bfloat16"}, "bfloat16", "bfloat16", "bfloat16"),
        ({"bf16_full_eval": "true"}, "float32", "bfloat16", "float32, evaluated in bfloat16"),
        ({"fp16_full_eval": "true"}, "float32", "float16", "float32, evaluated in float16"),
    ],
    ids=str,
)
def test_results_and_card_name_the_types_that_computed(options, tmp_path, changes, trained, evaluated, named):  # noqa: F811
    seen = {True: Counter(), False: Counter()}

    def look(module, inputs, output):
        if isinstance(module, torch.nn.Linear):
            seen[module.training][str(output.dtype).removeprefix("torch.")] += 1

    folder = tmp_path / "run"
    hook = torch.nn.modules.module.register_module_forward_hook(look)
    try:
        assert run(options, output_dir=str(folder), attention="soft", eval_strategy="no", **changes) == 0
    finally:
        hook.remove()
    assert (seen[True].most_common(1)[0][0], seen[False].most_common(1)[0][0]) == (trained, evaluated)
    assert read(folder, "results.json")["precision"] == named
    assert f"| precision | {named} |" in (folder / "README.md").read_text()


def test_float16_is_refused_on_a_cpu(options, tmp_path, monkeypatch, capsys):  # noqa: F811
    for changes, culprit in (({"fp16": "true"}, "--fp16 true"), ({}, "ACCELERATE_MIXED_PRECISION=fp16")):
        monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "fp16")
        assert run(options, output_dir=str(tmp_path / "run"), **changes) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert f"{culprit} needs a GPU: leave it out, or give --bf16 true --use_cpu true" in line
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "culprit"),
    [
        ({"dtype": "float16"}, "--dtype float16"),
        ({"dtype": "float16", "fp16": "true"}, "--fp16"),
        ({"dtype": "bfloat16", "fp16": "true"}, "--fp16"),
        ({"dtype": "float16", "bf16": "true", "lora_r": "2"}, "--bf16"),
        ({"dtype": "float8"}, "--dtype"),
        ({"model_config": ["dtype=float16"]}, "--model_config"),
        ({"model": "lstm", "dtype": "bfloat16", "text_columns": ["a"]}, "--dtype"),
    ],
    ids=str,
)
def test_types_that_cannot_be_trained_are_refused(options, changes, culprit, capsys):  # noqa: F811
    assert run(options, **changes) == 2
    error = capsys.readouterr().err
    assert culprit in error
    assert len(error.splitlines()) == 1


def test_a_stored_type_that_cannot_be_trained_is_refused(options, halved, capsys):  # noqa: F811
    assert run(options, model=halved.half, dtype="auto") == (2 if halved.name == "float16" else 0)
    assert ("float16 cannot be trained" in capsys.readouterr().err) == (halved.name == "float16")
