"""The model card of a run, and its push to the Hub: without a network, replaced functions stand in for the upload."""

import json
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
import transformers
import yaml
from huggingface_hub import HfApi, ModelCard, constants

import alignattn
from alignattn.cli import main
from alignattn.commands.finetune import COMMAND
from alignattn.finetuning.card import model_card
from alignattn.finetuning.hub import stage
from alignattn.finetuning.results import BestModel, RunResult
from alignattn.tasks.definitions import TASKS
from alignattn.utils.console import announce

WORDS = ["cat", "dog", "man", "sees", "likes", "old"]
TOKEN = "hf_a-secret-that-nobody-may-read"
REPO = "someone/pairs"


@pytest.fixture(scope="module")
def words_of_run(tiny_checkpoint, tmp_path_factory):
    """The command line of a small run, without its folder."""
    pairs = tmp_path_factory.mktemp("rows") / "pairs.csv"
    rows = [(f"the {a} sees", f"{b} likes", a == b) for a in WORDS for b in WORDS]
    pd.DataFrame(rows, columns=["a", "b", "label"]).to_csv(pairs, index=False)
    return (
        f"finetune --model {tiny_checkpoint} --train_file {pairs} --validation_file {pairs} --text_columns a b "
        "--max_length 32 --num_train_epochs 2 --max_train_samples 16 --disable_tqdm true --use_cpu true"
    ).split()


def card_of(folder):
    return ModelCard.load(folder / "README.md")


def result_of(folder):
    return json.loads((folder / "results.json").read_text())


def measured_in(folder):
    """Return the accuracy in the metadata of the card and that in results.json."""
    measured = card_of(folder).data.eval_results[0]
    return measured.metric_value, result_of(folder)["metrics"]["validation"]["accuracy"]


def code_of(card):
    return re.findall(r"```python\n(.*?)```", card.text, re.DOTALL)


def naming(secret, folder):
    """Return the names of the files of a folder, or of the file, that contain a text."""
    files = folder.rglob("*") if folder.is_dir() else [folder]
    return [file.name for file in files if file.is_file() and str(secret).encode() in file.read_bytes()]


def pushing(words, folder, *more):
    return [*words, "--output_dir", str(folder), "--push_to_hub", "--hub_model_id", REPO, "--hub_token", TOKEN, *more]


def test_the_card_gives_the_maximum_length_that_the_model_allows(words_of_run, tiny_checkpoint, tmp_path):
    config = transformers.AutoConfig.from_pretrained(tiny_checkpoint)
    place = words_of_run.index("--max_length")
    words = [*words_of_run[:place], *words_of_run[place + 2 :], "--max_steps", "1", "--attention", "soft"]
    assert main([*words, "--output_dir", str(tmp_path / "run")]) == 0
    assert config.max_position_embeddings < TASKS["mrpc"].max_length
    assert f"| max_length | {config.max_position_embeddings} |" in card_of(tmp_path / "run").text


@pytest.mark.parametrize("attention", ["soft", "aa-ct", "qvi", "aa-gan+qvi"])
def test_the_card_says_what_the_run_measured_and_its_code_loads_the_model(
    words_of_run, tmp_path, attention, monkeypatch
):
    folder = tmp_path / "run"
    assert main([*words_of_run, "--attention", attention, "--output_dir", str(folder)]) == 0
    card, result = card_of(folder), result_of(folder)

    metadata = card.data.to_dict()
    assert metadata["library_name"] == "transformers"
    assert metadata["pipeline_tag"] == "text-classification"
    assert {"alignattn", *attention.split("+")} <= set(metadata["tags"])
    assert ("alignment-attention" in metadata["tags"]) == ("aa-" in attention)
    assert "base_model" not in metadata
    assert "datasets" not in metadata
    metrics = result["metrics"]["validation"]
    assert metadata["metrics"] == list(dict.fromkeys("f1" if name == "macro_f1" else name for name in metrics))
    assert len(card.data.eval_results) == len(metrics)
    for measured in card.data.eval_results:
        assert (measured.dataset_name, measured.dataset_split) == ("pairs", "validation")
        assert measured.metric_value == metrics[measured.metric_name]

    assert result["model"] in card.text
    assert f"| validation | 36 | {100 * result['metrics']['validation']['accuracy']:.2f} |" in card.text
    assert "Trained on 16 rows (`--max_train_samples 16`)." in card.text
    assert ("zhang2021alignment" in card.text) == ("aa-" in attention)
    assert ("wu2020improving" in card.text) == ("qvi" in attention)
    assert ("| λ | 0.01 |" in card.text) == ("aa-" in attention)

    assert not naming(tmp_path, folder / "README.md")
    monkeypatch.chdir(tmp_path)
    loaded = {}
    models = []
    for code in code_of(card):
        exec(code, loaded)
        models.append(loaded["model"])
    expected = {"soft": [False], "aa-ct": [False, True], "qvi": [True], "aa-gan+qvi": [True]}[attention]
    assert [hasattr(model, "alignattn") for model in models] == expected
    reference = alignattn.from_pretrained(folder, type(models[0]))
    batch = loaded["tokenizer"]("the cat sees", "old dog", return_tensors="pt")
    with torch.no_grad():
        for model in models:
            torch.testing.assert_close(model(**batch).logits, reference(**batch).logits)


RESULT = {
    "task": "mnli",
    "model": "albert-base-v2",
    "attention": "aa-ot",
    "max_length": 128,
    "attention_config": alignattn.AttentionConfig(
        alignment="ot", alignment_options={"epsilon": 0.05}, gradient_scope="all", layers=(0, 2)
    ).to_dict(),
    "seed": 7,
    "metrics": {"validation_matched": {"accuracy": 0.8125}, "validation_mismatched": {"accuracy": 0.75}},
    "thresholds": {},
    "train_rows": 100,
    "evaluation_rows": {"validation_matched": 32, "validation_mismatched": 16},
    "dropped_rows": {},
    "bad_rows": {"train": [{"row": 3, "problem": "column 'premise' is empty"}]},
    "derived_splits": {},
    "train_runtime": 12.4,
    "train_samples_per_second": 8.0,
    "training": {},
    "parameters": {"total": 11683584, "trainable": 11683584, "alignment": 0, "attention_function": 0},
    "embeddings": None,
    "versions": {"torch": "2.13.0", "python": "3.11.7"},
    "device": "NVIDIA H200",
    "labels": [],
    "constant_prediction": {},
    "best": None,
    "stopped_at": None,
}


def card_from(words, **changes):
    options = COMMAND.parse([*words.split(), "--output_dir", "runs/x"])
    return ModelCard(model_card(RunResult(**(RESULT | changes)), options))


MATCHED, MISMATCHED = "validation_matched", "validation_mismatched"
CHOICES = {
    "test once at the end": (["validation", "test"], None, ["validation"]),
    "one split": (["validation"], "accuracy", ["validation"]),
    "test alone": (["test"], "accuracy", ["test"]),
    "the first by default": ([MATCHED, MISMATCHED], None, [MATCHED]),
    "one that is named": ([MATCHED, MISMATCHED], f"{MISMATCHED}_accuracy", [MISMATCHED]),
    "several": ([MATCHED, MISMATCHED, "test"], f"{MATCHED}_loss+{MISMATCHED}_accuracy", [MATCHED, MISMATCHED]),
}


@pytest.mark.parametrize(("splits", "metric", "choosing"), CHOICES.values(), ids=CHOICES)
def test_the_card_distinguishes_the_rows_that_chose_the_checkpoint(splits, metric, choosing):
    words = "--model albert-base-v2 --task mnli --attention aa-ot --load_best_model_at_end true"
    measured = {"metrics": {split: {"accuracy": 0.8} for split in splits}, "evaluation_rows": dict.fromkeys(splits, 9)}
    best = None if metric is None else BestModel(3, metric, 0.8)
    lines = [line for line in card_from(words, **measured, best=best).text.splitlines() if "cho" in line]
    assert f"chosen on the rows of {' and '.join(choosing)}," in lines[0]
    unused = [split for split in splits if split not in choosing]
    assert lines[1:] == [f"- The rows of {' and '.join(unused)} were not used for that choice."] * bool(unused)


def test_the_card_uses_the_hubs_names_of_models_and_data():
    card = card_from("--model albert-base-v2 --task mnli --attention aa-ot --max_eval_samples 32 --skip_bad_rows")
    assert card.data.base_model == "albert-base-v2"
    assert card.data.datasets == ["nyu-mll/glue"]
    assert card.data.model_name == "albert-base-v2-mnli-aa-ot"
    assert [(r.dataset_type, r.dataset_config, r.dataset_split, r.metric_value) for r in card.data.eval_results] == [
        ("nyu-mll/glue", "mnli", "validation_matched", 0.8125),
        ("nyu-mll/glue", "mnli", "validation_mismatched", 0.75),
    ]
    for line in (
        "| validation_matched | 32 | 81.25 |",
        "| alignment A | `ot` (epsilon=0.05) |",
        "| layers | 0, 2 |",
        "| gradient scope | `all`: the alignment loss also updates the layers below |",
        "| max_length | 128 |",
        "| seed | 7 |",
        "| runtime | 12 s |",
        "| hardware | NVIDIA H200 |",
        "- One seed (7): other seeds may score differently.",
        "- Evaluated on 16 rows of validation_mismatched (`--max_eval_samples 32`).",
        "- Left out of train: 1 bad row, listed in `results.json`.",
        'path = "runs/x"',
    ):
        assert line in card.text.splitlines()


@pytest.mark.parametrize(
    ("task", "scores", "tag", "metrics", "head"),
    [
        ("squadv2", {"exact": 0.5, "f1": 0.6, "best_f1": 0.7}, "question-answering", ["exact_match", "f1"], "Question"),
        ("msra", {"f1": 0.5, "token_accuracy": 0.9}, "token-classification", ["f1", "accuracy"], "Token"),
        ("swag", {"accuracy": 0.25}, "multiple-choice", ["accuracy"], "MultipleChoice"),
        ("stsb", {"pearson": 0.5, "spearmanr": 0.4}, "text-classification", ["pearsonr", "spearmanr"], "Sequence"),
    ],
)
def test_each_kind_of_task_has_the_names_of_the_hub(task, scores, tag, metrics, head):
    changes = {"task": task, "metrics": {"validation": scores}, "evaluation_rows": {"validation": 8}}
    changes["max_length"] = TASKS[task].max_length
    card = card_from(f"--model albert-base-v2 --task {task} --attention aa-ot", **changes)
    assert card.data.pipeline_tag == tag
    assert card.data.metrics == metrics
    assert {result.metric_name: result.metric_value for result in card.data.eval_results} == scores
    assert f"AutoModelFor{head}" in code_of(card)[0]
    assert card.data.datasets == ([TASKS[task].sources.hub] if TASKS[task].sources.hub else None)
    assert ("| doc_stride | 128 |" in card.text) == (tag == "question-answering")


def test_a_run_that_was_not_evaluated_has_a_card_without_results():
    card = card_from("--model albert-base-v2 --task mnli --attention aa-ot", metrics={}, evaluation_rows={})
    assert card.data.eval_results is None
    assert "was not evaluated" in card.text


@pytest.mark.parametrize("name", ["minilm", "transformer", "lstm-att"])
def test_a_folder_with_the_name_of_a_model_of_ours_is_a_pretrained_encoder(name, tmp_path):
    (tmp_path / name).mkdir()
    card = card_from(f"--model {tmp_path / name} --task mnli --attention aa-ot", model=name)
    assert f"| base model | `{name}`, a local folder |" in card.text.splitlines()
    assert f"`{name}` fine-tuned on mnli" in card.text
    assert "lstm" not in card.text.replace(name, "")


def test_a_setting_of_0_is_shown_where_it_is_not_the_default():
    card = card_from("--model albert-base-v2 --task mnli --attention aa-ot --max_grad_norm 0 --learning_rate 0")
    assert {"| max_grad_norm | 0.0 |", "| learning_rate | 0.0 |"} < set(card.text.splitlines())
    assert "weight_decay" not in card.text


@pytest.mark.parametrize(("metric", "shown"), [("loss+accuracy", "0.6931"), ("accuracy+loss", "69.31")])
def test_the_value_of_several_metrics_is_that_of_the_first(metric, shown):
    assert str(BestModel(3, metric, 0.6931)) == f"step 3, the best by {metric} ({shown})"


def test_names_given_by_the_user_are_shown_and_escaped():
    words = "--model ./x<i>|`y --train_file <script>alert(1)</script>.csv --text_columns a --attention aa-ot"
    changes = {"task": "user", "model": "./x<i>|`y", "derived_splits": {"validation": "<b>rows</b>"}}
    text = card_from(words, **changes).text
    assert "# x&lt;i&gt;|`y-script&gt;-aa-ot" in text.splitlines()
    assert "<script" not in text
    assert "<b>" not in text
    assert "| base model | `./x<i>\\|'y`, a local folder |" in text.splitlines()


def test_a_baseline_is_loaded_by_this_package(words_of_run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "run"
    assert main([*words_of_run, "--model", "da", "--model_config", "hidden_dim=8", "--output_dir", str(folder)]) == 0
    card = card_of(folder)
    assert "base_model" not in card.data.to_dict()
    assert card.data.tags == ["alignattn", "text-classification"]
    assert "soft" not in card.text
    (code,) = code_of(card)
    loaded = {}
    exec(code, loaded)
    assert loaded["model"].config.architectures == ["DecomposableAttentionForSequenceClassification"]


def test_the_card_of_a_killed_run_is_rewritten(words_of_run, tmp_path):
    words = [*words_of_run, "--output_dir", str(tmp_path / "run")]
    folder = tmp_path / "run"
    assert main(words) == 0
    # As after a kill between card and results: a complete card with scores that no other file has.
    (folder / "results.json").unlink()
    (folder / "README.md").write_text("figures of a run that never finished\n")
    assert main(words) == 0
    card_accuracy, accuracy = measured_in(folder)
    assert card_accuracy == accuracy


@pytest.fixture
def stand_in_hub(monkeypatch, tmp_path):
    """Keeps each upload as a folder, and the arguments of every call."""
    hub = SimpleNamespace(created=[], uploads=[], refuse_uploads=False)

    def create_repo(self, repo_id, *, private=None, exist_ok=False):
        hub.created.append({"repo_id": repo_id, "token": self.token, "private": private, "exist_ok": exist_ok})
        return SimpleNamespace(repo_id=repo_id if "/" in repo_id else f"someone/{repo_id}")

    def upload_folder(self, *, folder_path, **options):
        if hub.refuse_uploads:
            raise ConnectionError("403 Forbidden:\nyou may not write here")
        copy = tmp_path / f"upload-{len(hub.uploads)}"
        shutil.copytree(folder_path, copy)
        hub.uploads.append(SimpleNamespace(folder=copy, token=self.token, **options))

    monkeypatch.setattr(HfApi, "create_repo", create_repo)
    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    return hub


def test_with_upload_functions_replaced_the_finished_run_is_pushed(words_of_run, tmp_path, stand_in_hub):
    folder = tmp_path / "run"
    words = pushing(words_of_run, folder, "--hub_private_repo", "true")
    words += ["--load_best_model_at_end", "true", "--eval_strategy", "epoch"]
    assert main([*words, "--hub_revision", "trial"]) == 0
    for created in stand_in_hub.created:
        assert created == {"repo_id": REPO, "token": TOKEN, "private": True, "exist_ok": True}
    (upload,) = stand_in_hub.uploads
    assert (upload.repo_id, upload.token, upload.revision) == (REPO, TOKEN, "trial")
    last = upload.folder
    names = {path.name for path in last.iterdir()}
    assert {"README.md", "results.json", "config.yaml", "config.json", "model.safetensors", "tokenizer.json"} <= names
    assert not [name for name in names if name.startswith("checkpoint-")]
    card = card_of(last)
    assert f'path = "{REPO}"' in card.text
    card_accuracy, accuracy = measured_in(last)
    assert card_accuracy == accuracy
    assert not naming(TOKEN, last)
    assert not naming(tmp_path.parent, last), "a path of this machine"
    config = yaml.safe_load((folder / "config.yaml").read_text())
    published = yaml.safe_load((last / "config.yaml").read_text())
    assert Path(config["train_file"]).is_file()
    assert published == config | {
        name: Path(config[name]).name for name in ("model", "train_file", "validation_file", "output_dir")
    }


def test_with_upload_functions_replaced_a_refused_push_loses_nothing_and_succeeds_later(
    words_of_run, tmp_path, stand_in_hub, capsys, monkeypatch
):
    folder = tmp_path / "run"
    stand_in_hub.refuse_uploads = True
    assert main(pushing(words_of_run, folder)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith(f"alignattn: {folder} has the finished run, but the push failed: 403 Forbidden: you")
    kept = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    assert "results.json" in kept

    stand_in_hub.refuse_uploads = False
    announce.cache_clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "https://hub.example.org")
    assert main(pushing(words_of_run, folder)) == 0
    assert f"sending {folder} to {REPO} at https://hub.example.org" in capsys.readouterr().err.splitlines()
    (upload,) = stand_in_hub.uploads
    pushed = {path.name: path.read_bytes() for path in upload.folder.iterdir()}
    config = yaml.safe_load(kept.pop("config.yaml"))
    assert yaml.safe_load(pushed.pop("config.yaml")).keys() == config.keys()
    # The local card loads the local folder, the pushed one the repository.
    local, repository = (f'path = "{place}"'.encode() for place in ("run", REPO))
    assert pushed.pop("README.md") == kept.pop("README.md").replace(local, repository) != b""
    assert kept.pop("training_args.bin")
    # It contains rows.
    assert kept.pop("report.html")
    assert pushed == kept
    assert str(tmp_path) not in pushed["data.json"].decode()


def test_with_upload_functions_replaced_only_listed_files_are_pushed(words_of_run, tmp_path, stand_in_hub):
    folder = tmp_path / "run"
    assert main([*words_of_run, "--output_dir", str(folder), "--save_strategy", "epoch"]) == 0
    for name in ("notes.txt", ".secret", "vectors.pkl", "nohup.out", "pytorch_model.bin"):
        (folder / name).write_text("mine")
    for name in ("notes", "checkpoint-1"):
        (folder / name).mkdir(exist_ok=True)
        (folder / name / "model.safetensors").write_text("mine")
    assert main(pushing(words_of_run, folder, "--save_strategy", "epoch")) == 0
    (upload,) = stand_in_hub.uploads
    assert {path.relative_to(upload.folder).as_posix() for path in upload.folder.rglob("*") if path.is_file()} == {
        *("README.md", "config.json", "config.yaml", "model.safetensors", "predictions.parquet", "results.json"),
        *("tokenizer.json", "tokenizer_config.json", "trainer_state.json", "data.json"),
    }


def test_the_base_model_is_named_without_its_path(tmp_path):
    fields = {"_name_or_path": "/home/me/models/albert", "vocab": ["/", "/s/t"]}
    for name in ("config.json", "tokenizer_config.json"):
        (tmp_path / name).write_text(json.dumps(fields))
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter/adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "/home/me/albert"}))
    staged = stage(tmp_path, tmp_path / "staged")
    for name in ("config.json", "tokenizer_config.json"):
        assert json.loads((staged / name).read_text()) == fields | {"_name_or_path": "albert"}
    adapter = json.loads((staged / "adapter/adapter_config.json").read_text())
    assert adapter == {"base_model_name_or_path": "albert"}


def test_a_pushed_tokenizer_of_two_files_loads(tmp_path):
    (tmp_path / "vocab.txt").write_text("hello 1\nwor@@ 1\nld 1\n")
    (tmp_path / "bpe.codes").write_text("h e 1\nhe l 1\nhel lo</w> 1\n")
    tokenizer = transformers.PhobertTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    tokenizer.save_pretrained(tmp_path / "run")
    pushed = transformers.AutoTokenizer.from_pretrained(stage(tmp_path / "run", tmp_path / "staged"))
    assert pushed("hello world")["input_ids"] == tokenizer("hello world")["input_ids"]


def test_calibration_rows_are_pushed_only_from_the_calibration_folder(tmp_path):
    (tmp_path / "calibration").mkdir()
    for name in ("calibration/rows.parquet", "calibration/calibration.json", "rows.parquet"):
        (tmp_path / name).write_text("rows")
    staged = stage(tmp_path, tmp_path / "staged")
    assert [path.relative_to(staged).as_posix() for path in staged.rglob("*.*")] == ["calibration/rows.parquet"]


def test_with_upload_functions_replaced_a_finished_run_is_pushed_later_with_its_users_card(
    words_of_run, tmp_path, stand_in_hub
):
    folder = tmp_path / "pairs-ct"
    assert main([*words_of_run, "--output_dir", str(folder)]) == 0
    with (folder / "README.md").open("a") as card:
        card.write("My remark.\n")
    results = (folder / "results.json").read_bytes()
    assert main([*words_of_run, "--output_dir", str(folder), "--push_to_hub"]) == 0
    assert stand_in_hub.created[-1]["repo_id"] == "pairs-ct"
    (upload,) = stand_in_hub.uploads
    assert upload.repo_id == "someone/pairs-ct"
    assert (upload.folder / "README.md").read_text().endswith("My remark.\n")
    assert not naming(tmp_path, upload.folder)
    assert (folder / "results.json").read_bytes() == results


def test_an_unreachable_hub_is_one_line_before_training(words_of_run, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(pushing(words_of_run, folder)) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert line.startswith("alignattn: --push_to_hub: the repository could not be opened: Cannot reach ")
    assert {path.name for path in folder.iterdir()} == {"config.yaml", "data.json"}
    assert "hub_token" not in yaml.safe_load((folder / "config.yaml").read_text())


def test_several_seeds_are_not_pushed_to_one_repository(words_of_run, tmp_path, capsys):
    assert main(pushing(words_of_run, tmp_path / "runs", "--seeds", "1", "2")) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--push_to_hub: 2 seeds make several models, and a repository holds one" in line
    assert main([*words_of_run, "--output_dir", str(tmp_path / "runs"), "--push_to_hub", "--seeds", "1"]) == 2
    assert "give --hub_model_id" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
