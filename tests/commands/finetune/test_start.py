"""A finished run as the start of another, whatever fills its slots."""

import shutil
from pathlib import Path

import pytest
import torch
import yaml
from test_finetune import one_line, options, read, rows_file, run, weights  # noqa: F401
from transformers import AutoModelForSequenceClassification

import alignattn

SHORT = {"max_steps": "2", "num_train_epochs": None}
STAYS = SHORT | {"learning_rate": "0"}
"""The weights of the start do not change."""

STARTS = {
    "plain": ({"attention": "soft"}, {"attention": "aa-ct"}),
    "aligned": ({"attention": "aa-gan"}, {"attention": "aa-gan"}),
    "aligned, then plain": ({"attention": "aa-gan"}, {}),
    "another alignment": ({"attention": "aa-gan"}, {"attention": "aa-ot"}),
    "value": ({"attention": "qvi"}, {"value": "qvi", "alignment": "ct"}),
    "score, of some layers": (
        {"score": "bilinear", "alignment": "gan", "layers": ["0"]},
        {"score": "bilinear", "layers": ["0"]},
    ),
    "normalizer": (
        {"normalizer": "entmax", "normalizer_options": ["learned=true", "alpha=1.3"]},
        {"normalizer": "entmax", "normalizer_options": ["learned=true", "alpha=1.3"], "alignment": "gan"},
    ),
    "adapters, merged": ({"attention": "aa-ot", "lora_r": "2"}, {"attention": "aa-ot", "lora_r": "2"}),
}


@pytest.mark.parametrize("name", STARTS)
def test_a_run_starts_where_another_ended(name, options, tmp_path, capsys):  # noqa: F811
    first, second = STARTS[name]
    assert run(options, **SHORT, **first) == 0
    start, folder = Path(options["--output_dir"]), tmp_path / "second"
    capsys.readouterr()
    assert run(options, model=str(start), output_dir=str(folder), **STAYS, **second) == 0
    assert read(folder)["metrics"] == read(start)["metrics"]
    before = alignattn.from_pretrained(start, AutoModelForSequenceClassification)
    after = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    assert alignattn.is_patched(after) == (read(folder)["attention"] != "soft")
    batch = {"input_ids": torch.tensor([[2, 5, 6, 7, 3]]), "attention_mask": torch.ones(1, 5, dtype=torch.long)}
    with torch.no_grad():
        torch.testing.assert_close(after(**batch).logits, before(**batch).logits)

    told, was = read(folder)["start"], read(start)
    assert {key: told[key] for key in ("task", "attention", "seed")} == {
        key: was[key] for key in ("task", "attention", "seed")
    }
    assert read(folder, "data.json")["model"] == told["sha256"]
    assert yaml.safe_load((folder / "config.yaml").read_text())["model"] == str(start)
    assert (
        f"a run of {was['task']} ({was['attention']}, seed 42; sha256 {told['sha256'][:12]})"
        in (folder / "README.md").read_text()
    )
    assert "started from " in capsys.readouterr().out


def test_a_start_is_identified_by_its_content(options, tmp_path, capsys):  # noqa: F811
    assert run(options, **SHORT, attention="soft") == 0
    start, folder = Path(options["--output_dir"]), str(tmp_path / "second")
    assert run(options, model=str(start), output_dir=folder, **STAYS) == 0
    meant = {"model": str(start), "output_dir": str(tmp_path / "third"), **STAYS}
    capsys.readouterr()
    assert run(options, **meant, model_sha256="0" * 64) == 2
    assert "--model_sha256" in one_line(capsys)
    assert run(options, **meant, model_sha256=read(folder)["start"]["sha256"]) == 0
    moved = tmp_path / "moved"
    shutil.copytree(start, moved)
    capsys.readouterr()
    assert run(options, model=str(moved), output_dir=folder, **STAYS) == 0
    assert "finished already" in capsys.readouterr().out
    shutil.rmtree(start)
    assert run(options, **SHORT, attention="soft", seed="7") == 0
    assert run(options, model=str(start), output_dir=folder, **STAYS) == 2
    assert "(--model: " in one_line(capsys)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        ({"attention": "qvi"}, {}, "--value qvi"),
        ({"attention": "qvi", "layers": ["0"]}, {"value": "qvi"}, "--value qvi --layers 0"),
        (
            {"normalizer": "entmax", "normalizer_options": ["alpha=1.3"]},
            {"normalizer": "entmax"},
            "--normalizer entmax --normalizer_options alpha=1.3",
        ),
    ],
)
def test_a_run_that_changes_the_function_of_its_start_is_refused(first, second, message, options, tmp_path, capsys):  # noqa: F811
    assert run(options, **SHORT, **first) == 0
    capsys.readouterr()
    assert run(options, model=options["--output_dir"], output_dir=str(tmp_path / "second"), **SHORT, **second) == 2
    assert message in one_line(capsys)


def test_an_unfinished_run_cannot_be_a_start(options, tmp_path, capsys):  # noqa: F811
    assert run(options, **SHORT, seeds=["1", "2"]) == 0
    whole = Path(options["--output_dir"])
    capsys.readouterr()
    second = {"output_dir": str(tmp_path / "second"), **SHORT}
    assert run(options, model=str(whole), **second) == 2
    assert "give the folder of a seed" in one_line(capsys)
    (whole / "seed-1" / "results.json").unlink()
    assert run(options, model=str(whole / "seed-1"), **second) == 2
    assert "has no results.json" in one_line(capsys)


def test_the_tokenizer_is_saved_without_the_settings_of_a_call(options, tmp_path):  # noqa: F811
    """The second run uses cached encoded rows and does not call its tokenizer, but saves the same file."""
    saved = []
    for folder in (tmp_path / "first", tmp_path / "second"):
        assert run(options, output_dir=str(folder), **SHORT) == 0
        saved.append((folder / "tokenizer.json").read_text())
    assert saved[0] == saved[1]
    assert '"truncation": null' in saved[0]
