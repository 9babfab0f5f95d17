import json
import shutil
import statistics
from importlib.metadata import version
from pathlib import Path

import checkpointing
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
import transformers
import yaml
from conftest import ALIGNED, ROOT, WITHOUT_NETWORKS, WORDS, tiny_model
from processes import run_python
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

import alignattn
from alignattn.cli import main
from alignattn.commands.finetune import COMMAND
from alignattn.finetuning.training_arguments import training_arguments
from alignattn.models import MODELS
from alignattn.models.build import build_model, checked_fields


@pytest.fixture(scope="session")
def rows_file(tmp_path_factory):
    """Sentence pairs with text labels: whether the second sentence repeats a word of the first."""
    rng = np.random.default_rng(0)
    first = [" ".join(rng.choice(WORDS, rng.integers(3, 8))) for _ in range(48)]
    second = [" ".join(rng.choice(WORDS, rng.integers(3, 8))) for _ in range(48)]
    labels = ["yes" if set(a.split()) & set(b.split()) else "no" for a, b in zip(first, second, strict=True)]
    path = tmp_path_factory.mktemp("rows") / "pairs.csv"
    pd.DataFrame({"a": first, "b": second, "same": labels}).to_csv(path, index=False)
    return path


@pytest.fixture
def options(tiny_checkpoint, rows_file, tmp_path):
    """The words of a small run, by option."""
    return {
        "--model": str(tiny_checkpoint),
        "--train_file": str(rows_file),
        "--validation_file": str(rows_file),
        "--text_columns": ["a", "b"],
        "--label_column": "same",
        "--output_dir": str(tmp_path / "run"),
        "--num_train_epochs": "2",
        "--per_device_train_batch_size": "16",
        "--learning_rate": "1e-3",
        "--max_length": "32",
        "--disable_tqdm": "true",
        "--use_cpu": "true",
    }


NO_FILES = dict.fromkeys(("train_file", "validation_file", "text_columns", "label_column"))
"""Changes that remove the data files from the options."""


def words_of(options, **changes):
    words = ["finetune"]
    for name, value in (options | {f"--{name}": value for name, value in changes.items()}).items():
        if value is not None:
            words += [name, *([value] if isinstance(value, str) else value)]
    return words


def run(options, **changes):
    return main(words_of(options, **changes))


def read(folder, name="results.json"):
    return json.loads((Path(folder) / name).read_text())


def weights(folder):
    return load_file(Path(folder) / "model.safetensors")


@pytest.mark.parametrize("attention", alignattn.PRESETS)
def test_a_run_writes_its_folder(options, attention):
    weight = "0.1" if attention in ALIGNED else None
    assert run(options, attention=attention, alignment_weight=weight) == 0
    folder = options["--output_dir"]
    result = read(folder)
    assert (result["task"], result["attention"], result["seed"]) == ("pairs", attention, 42)
    assert weight is None or result["attention_config"]["alignment_weight"] == 0.1
    assert result["train_rows"] == 48
    assert result["versions"]["torch"] == version("torch")
    assert result["train_runtime"] > 0
    modes = {(Path(folder) / name).stat().st_mode for name in ("model.safetensors", "results.json", "config.json")}
    assert len(modes) == 1
    assert (result["parameters"]["alignment"] > 0) == (attention not in WITHOUT_NETWORKS)
    assert ("align_loss" in result["training"]) == (attention in ALIGNED)

    predictions = pq.read_table(Path(folder) / "predictions.parquet").to_pandas()
    accuracy = (predictions["prediction"] == predictions["label"]).mean()
    assert result["metrics"]["validation"]["accuracy"] == pytest.approx(accuracy)
    probabilities = np.stack(predictions["probabilities"])
    assert np.allclose(probabilities.sum(axis=1), 1)
    assert (probabilities.argmax(axis=1) == predictions["prediction"]).all()

    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    assert model.config.id2label == {0: "no", 1: "yes"}
    # Plain training needs no patch.
    assert alignattn.is_patched(model) == (attention != "soft")
    if attention != "soft":
        assert model.alignattn.config.to_dict() == result["attention_config"]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({"attention": "qvi"}, {"value": "qvi"}),
        ({"attention": "aa-ct", "normalizer": "entmax15"}, {"alignment": "ct", "normalizer": "entmax15"}),
        ({"attention": "soft", "score": "bilinear", "value": "sum"}, {"score": "bilinear", "value": "sum"}),
        (
            {"attention": "entmax+aa-gan", "normalizer_options": ["alpha=1.3", "learned=true"]},
            {"normalizer": "entmax", "normalizer_options": {"alpha": 1.3, "learned": True}, "alignment": "gan"},
        ),
    ],
)
def test_slots_are_options_and_their_checkpoints_predict_as_the_run_did(options, rows_file, flags, expected):
    assert run(options, **flags) == 0
    folder = options["--output_dir"]
    attention = read(folder)["attention_config"]
    assert attention == alignattn.AttentionConfig(**expected).to_dict()
    check_predictions(folder, rows_file)


def check_predictions(folder, rows_file):
    """Assert that the reloaded model returns the probabilities that the run saved."""
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    rows = pd.read_csv(rows_file)
    batch = tokenizer(rows["a"].tolist(), rows["b"].tolist(), padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch).logits.softmax(dim=-1)
    written = np.stack(pq.read_table(Path(folder) / "predictions.parquet")["probabilities"].to_numpy())
    np.testing.assert_allclose(probabilities.numpy(), written, atol=1e-5)


@pytest.mark.parametrize("family", ["deberta-v3", "mpnet"])
def test_models_without_the_attention_interface_train_and_predict(
    family, options, tiny_checkpoint, rows_file, tmp_path
):
    folder = tmp_path / family
    tiny_model(family).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_checkpoint / name, folder)
    changes = {"model": str(folder), "attention": "aa-ct+sparsemax", "num_train_epochs": "1"}
    assert run(options, **changes, model_config=["hidden_dropout_prob=0.0"]) == 0
    assert read(options["--output_dir"])["training"]["align_loss"] > 0
    check_predictions(options["--output_dir"], rows_file)


def test_the_resolved_config_reproduces_the_run_bitwise(options, tmp_path):
    assert run(options, attention="aa-ct", seed="7", model_config=["hidden_dropout_prob=0.2"]) == 0
    config = Path(options["--output_dir"]) / "config.yaml"
    assert main(["finetune", "--config", str(config), "--output_dir", str(tmp_path / "again")]) == 0
    first, second = weights(options["--output_dir"]), weights(tmp_path / "again")
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert read(options["--output_dir"])["metrics"] == read(tmp_path / "again")["metrics"]
    assert read(tmp_path / "again", "config.json")["hidden_dropout_prob"] == 0.2


def test_seeds_give_mean_and_standard_deviation(options, capsys):
    assert run(options, seeds=["1", "2", "3"]) == 0
    folder = Path(options["--output_dir"])
    values = [read(folder / f"seed-{seed}")["metrics"]["validation"]["accuracy"] for seed in (1, 2, 3)]
    summary = read(folder)["metrics"]["validation"]["accuracy"]
    assert summary["mean"] == pytest.approx(statistics.fmean(values))
    assert summary["standard_deviation"] == pytest.approx(statistics.stdev(values))
    assert "±" in capsys.readouterr().out
    assert not torch.equal(*(weights(folder / f"seed-{seed}")["classifier.weight"] for seed in (1, 2)))


def test_seeds_are_added_with_the_options_of_the_earlier_ones(options, rows_file, tmp_path, capsys):
    data = tmp_path / "pairs.csv"
    shutil.copy(rows_file, data)
    options |= {"--train_file": str(data), "--num_train_epochs": "1"}
    assert run(options, seeds=["1"]) == 0
    folder = Path(options["--output_dir"])
    # A run of another command, and a run that failed before its first checkpoint.
    shutil.copytree(folder / "seed-1", folder / "2024")
    (folder / "seed-4").mkdir()
    (folder / "seed-4" / "config.yaml").write_text("num_train_epochs: 9\n")
    capsys.readouterr()
    assert run(options, seeds=["3"], num_train_epochs="2") == 2
    assert "seed-1 already holds another run (different: num_train_epochs)" in capsys.readouterr().err
    assert not (folder / "seed-3").exists()
    assert run(options, seeds=["3"], disable_tqdm=None) == 0
    # The summary is of all finished seeds, whichever call made them.
    assert read(folder)["seeds"] == [1, 3]
    data.write_text("\n".join(data.read_text().splitlines()[:-1]))
    assert run(options, seeds=["2"]) == 2
    assert f"--train_file: the content of {data} differs" in capsys.readouterr().err


def test_the_command_line_overrides_the_config(options, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("learning_rate: 2e-5\nseed: 5\nattention: aa-gan\nalignment_weight: 0.5\nlayers: [0, 1]\n")
    parsed = COMMAND.parse([*words_of(options)[1:], "--config", str(config), "--seed", "6"])
    assert parsed.values["learning_rate"] == 1e-3  # of the command line
    assert (parsed.values["seed"], parsed.values["layers"]) == (6, (0, 1))
    assert parsed.attention.alignment_weight == 0.5
    without_rate = {name: value for name, value in options.items() if name != "--learning_rate"}
    parsed = COMMAND.parse([*words_of(without_rate)[1:], "--config", str(config)])
    assert parsed.training.learning_rate == 2e-5  # text in YAML 1.1, a number here


@pytest.mark.parametrize("path", sorted((ROOT / "configs").glob("albert-*.yaml")), ids=lambda path: path.stem)
def test_shipped_configs_hold_alberts_published_settings(path):
    parsed = COMMAND.parse(["--config", str(path), "--output_dir", "runs/x"])
    training = parsed.training
    assert parsed.model.model == "albert-base-v2"
    assert f"albert-{parsed.data.task}" == path.stem
    assert 1e-5 <= training.learning_rate <= 5e-5
    assert {"hidden_dropout_prob", "classifier_dropout_prob"} <= set(parsed.model.model_config_fields)
    published = ROOT.parent / "shared" / "paper_tables.yaml"
    if published.is_file():
        table = yaml.safe_load(published.read_text())["albert_finetuning"]
        row = dict(zip(table["columns"], table[parsed.data.task], strict=True))
        assert training.learning_rate == row["learning_rate"]
        assert training.per_device_train_batch_size == row["batch_size"]
        assert (training.max_steps, training.warmup_steps) == (row["steps"], row["warmup_steps"])
        assert parsed.data.max_length == row["max_length"]
        assert parsed.model.model_config_fields["hidden_dropout_prob"] == row["albert_dropout"]


OF_TEXTS = ("cnn", "cnn-att", "lstm", "lstm-att", "han", "transformer")
OF_CHARACTERS = ("transformer-crf", "cnn-transformer-crf")


@pytest.mark.parametrize(
    ("config", "model"),
    [
        *(("texts-agnews", name) for name in OF_TEXTS),
        *(("texts-amazonelectronics", name) for name in OF_TEXTS),
        *(("tags-msra", name) for name in OF_CHARACTERS),
    ],
)
def test_shipped_configs_of_models_from_scratch_have_the_published_sizes(config, model):
    parsed = COMMAND.parse(
        ["--config", str(ROOT / "configs" / f"{config}.yaml"), "--model", model, "--output_dir", "x"]
    )
    assert parsed.data.task == config.partition("-")[2]
    model_class, training = MODELS.load(model), parsed.training
    fields = checked_fields(parsed.model.model_config_fields, model_class.config_class)
    built = build_model(model_class, fields | {"vocab_size": 5, "num_labels": 3}, seed=0)
    # Wu et al. 2020, section 4.1; 256 units per direction, so 512 per sentence.
    assert (built.embedding.embedding_dim, built.config.hidden_dim) == (300, 256)
    filters = [part for part in built.modules() if isinstance(part, torch.nn.Conv1d)]
    assert [tuple(part.weight.shape) for part in filters] == ([(256, 300, 3)] if model.startswith("cnn") else [])
    units = [part for part in built.modules() if isinstance(part, torch.nn.RNNBase)]
    assert all(part.bidirectional for part in units)
    expected = {"lstm": [(300, 256)], "lstm-att": [(300, 256)], "han": [(300, 256), (512, 256)]}
    assert [(part.input_size, part.hidden_size) for part in units] == expected.get(model, [])
    # Adam at 1e-3: AdamW without decay.
    assert training.transformers == {}
    assert (training.optim, training.max_grad_norm, training.lr_scheduler_type) == ("adamw_torch", 5.0, "constant")
    assert (training.weight_decay, training.learning_rate, training.per_device_train_batch_size) == (0.0, 1e-3, 64)


def test_a_given_default_overrides_the_value_that_the_model_implies(tmp_path):
    words = ["--model", "cnn", "--task", "agnews", "--output_dir", "x"]
    given = COMMAND.parse([*words, "--max_grad_norm", "1", "--lr_scheduler_type", "linear"])
    (tmp_path / "config.yaml").write_text(given.to_yaml())
    for options in (given, COMMAND.parse(["--config", str(tmp_path / "config.yaml")])):
        args = training_arguments(options.training)
        assert (args.max_grad_norm, args.lr_scheduler_type, args.optim) == (1.0, "linear", "adamw_torch")
    assert given.differences(yaml.safe_load(given.to_yaml())) == []
    assert given.differences(yaml.safe_load(COMMAND.parse(words).to_yaml())) == ["lr_scheduler_type", "max_grad_norm"]


def test_a_finished_run_is_reported_and_not_repeated(options, capsys):
    assert run(options) == 0
    before = {path: path.stat().st_mtime_ns for path in Path(options["--output_dir"]).rglob("*")}
    assert run(options) == 0
    assert "finished already" in capsys.readouterr().out
    assert before == {path: path.stat().st_mtime_ns for path in Path(options["--output_dir"]).rglob("*")}


def test_a_killed_run_resumes_to_the_same_weights(options, tmp_path, capsys):
    settings = {"save_strategy": "steps", "save_steps": "2", "save_total_limit": "10", "attention": "aa-ct"}
    assert run(options, **settings) == 0
    whole, killed = Path(options["--output_dir"]), tmp_path / "killed"
    # What a kill in the middle of step 4's save leaves behind.
    killed.mkdir()
    shutil.copy(whole / "config.yaml", killed)
    for step in (2, 4):
        shutil.copytree(whole / f"checkpoint-{step}", killed / f"checkpoint-{step}")
    torn = killed / "checkpoint-4" / "optimizer.pt"
    torn.write_bytes(torn.read_bytes()[:100])
    (killed / "checkpoint-4" / "trainer_state.json").unlink()
    capsys.readouterr()
    assert run(options, output_dir=str(killed), **settings) == 0
    assert f"resuming from {killed / 'checkpoint-2'}\n" in capsys.readouterr().out
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(killed).items())
    assert read(killed)["training"]["train_loss"] == pytest.approx(read(whole)["training"]["train_loss"])


def assert_goes_on_after(step, options, folder, capsys, **settings):
    """Assert that a run resumed in `folder` from the checkpoint of `step` ends with the uninterrupted run's weights."""
    settings |= {"save_strategy": "steps", "save_steps": str(step), "save_total_limit": "10"}
    assert run(options, **settings) == 0
    whole, checkpoint = Path(options["--output_dir"]), f"checkpoint-{step}"
    folder.mkdir()
    shutil.copy(whole / "config.yaml", folder)
    shutil.copytree(whole / checkpoint, folder / checkpoint)
    capsys.readouterr()
    assert run(options, output_dir=str(folder), **settings) == 0
    assert f"resuming from {folder / checkpoint}\n" in capsys.readouterr().out
    expected = weights(whole)
    assert all(torch.equal(tensor, expected[name]) for name, tensor in weights(folder).items())


@pytest.mark.parametrize("order", ["random", "group_by_length", "batch_rebalance"])
def test_a_run_resumed_in_its_second_epoch_keeps_the_order_of_rows(order, options, tmp_path, capsys):
    assert_goes_on_after(4, options, tmp_path / "killed", capsys, train_sampling_strategy=order)


def test_another_order_of_rows_is_another_run(options, capsys):
    steps = {"max_steps": "1", "num_train_epochs": None}
    assert run(options, **steps, train_sampling_strategy="random") == 0
    assert "training batches: rows in random order" in capsys.readouterr().out
    assert run(options, **steps) == 2
    assert "different: train_sampling_strategy" in one_line(capsys)


def test_a_regression_predicts_scores(options, tmp_path):
    path = tmp_path / "scores.jsonl"
    rows = [{"a": "the cat sees", "b": "a dog runs", "same": 0.5 + index} for index in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)))
    assert run(options, train_file=str(path), validation_file=str(path)) == 0
    assert set(read(options["--output_dir"])["metrics"]["validation"]) == {"pearson", "spearmanr", "mse", "mae"}
    predictions = pq.read_table(Path(options["--output_dir"]) / "predictions.parquet")
    assert predictions.column_names == ["split", "row", "label", "prediction"]


def one_line(capsys):
    captured = capsys.readouterr().err.strip().splitlines()
    lines = [line for line in captured if line.startswith("alignattn: ")]
    assert len(lines) == 1
    assert not any("Traceback" in line for line in captured)
    return lines[0]


class TestBadInput:
    @pytest.mark.parametrize(
        ("changes", "culprit"),
        [
            ({"output_dir": None}, "--output_dir"),
            ({"output_dir": "/proc/nope"}, "/proc/nope"),
            ({"config": "missing.yaml"}, "missing.yaml"),
            ({"learning_rat": "1"}, "--learning_rat"),
            ({"atention": "soft"}, "did you mean"),
            ({"lr_scheduler_type": "zigzag"}, "zigzag"),
            ({"lr_scheduler_kwargs": "notjson"}, "lr_scheduler_kwargs"),
            ({"lr_scheduler_type": "warmup_stable_decay"}, "--lr_scheduler_type warmup_stable_decay with"),
            ({"lr_scheduler_type": "cosine_with_min_lr"}, "One of min_lr or min_lr_rate should be set"),
            ({"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": '{"lr_end": 1}'}, "lr_end (1) must be smaller"),
            ({"optim": "adamw_torch_npu_fused"}, "--optim adamw_torch_npu_fused: "),
            ({"report_to": "wandbb"}, "wandbb"),
            ({"resume_from_checkpoint": "nope"}, "nope"),
            ({"metric_for_best_model": "acc"}, "'acc'"),
            ({"load_best_model_at_end": "true", "validation_file": None, "eval_strategy": "no"}, "--validation_file"),
            (
                {
                    "attention": "aa-ct",
                    checkpointing.NAME: "true",
                    f"{checkpointing.NAME}_kwargs": '{"use_reentrant": true}',
                },
                "use_reentrant",
            ),
            ({"model": "no/such-model"}, "'no/such-model'"),
            ({"attention": "aa-wgan"}, "'aa-wgan'"),
            ({"alignment_weight": "0.1"}, "--alignment_weight needs --attention or --alignment"),
            ({"alignment_warmup_ratio": "0.1"}, "--alignment_warmup_ratio needs --attention or --alignment"),
            ({"attention": "aa-ct", "layers": ["5"]}, "layers=[5]"),
            ({"normalizer_options": "alpha=1.3"}, "normalizer 'softmax'"),
            ({"normalizer_options": "alpha"}, "'alpha' is not NAME=VALUE"),
            ({"model_config": "hidden_dropout_prob=lots"}, "hidden_dropout_prob='lots'"),
            ({"model_config": "hidden_dropot_prob=0.1"}, "hidden_dropout_prob"),
            ({"task": "mrpc"}, "--text_columns"),
            ({"text_columns": None}, "--text_columns"),
            ({"tokens_column": "a"}, "--text_columns"),
            ({"text_columns": ["a", "c"]}, "'c'"),
            ({"train_file": None, "validation_file": None}, "--task"),
            ({"train_file": None, "task": "mrpc"}, "--validation_file"),
            (NO_FILES | {"task": "xnli"}, "'xnli'"),
            (NO_FILES | {"task": "mrpc", "data_dir": "missing"}, "missing"),
            ({"max_length": "1"}, "max_length 1"),
        ],
    )
    def test_one_line_and_exit_code_2(self, options, changes, culprit, capsys):
        assert run(options, **changes) == 2
        assert culprit in one_line(capsys)

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("", "is empty: give a file that holds rows"),
            ("a,b,same\n", "is empty except for its header"),
            ("a,b,same\nthe cat,,yes\n", "row 1: column 'b' is empty"),
        ],
    )
    def test_bad_files(self, options, text, words, tmp_path, capsys):
        path = tmp_path / "bad.csv"
        path.write_text(text)
        assert run(options, train_file=str(path)) == 2
        line = one_line(capsys)
        assert words in line
        assert str(path) in line

    @pytest.mark.parametrize(
        ("text", "words"),
        [
            ("learning_rte: 1", "did you mean 'learning_rate'"),
            ("- 1", "NAME: VALUE"),
            ("a: [", "is not valid YAML"),
        ],
    )
    def test_bad_configs(self, options, text, words, tmp_path, capsys):
        path = tmp_path / "bad.yaml"
        path.write_text(text)
        assert run(options, config=str(path)) == 2
        assert words in one_line(capsys)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"max_length": "100000"}, "--max_length 100000"),
            ({"model_config": ["no_such_field=1"]}, "'no_such_field'"),
        ],
    )
    def test_mistakes_that_the_config_shows_are_reported_before_rows_and_weights_are_read(
        self, options, changes, words, tiny_checkpoint, tmp_path, capsys
    ):
        folder = tmp_path / "no-weights"
        folder.mkdir()
        shutil.copy(tiny_checkpoint / "config.json", folder)
        rows = tmp_path / "rows.csv"
        rows.write_text("of,other,columns\n1,2,3\n")
        assert run(options, model=str(folder), train_file=str(rows), **changes) == 2
        assert words in one_line(capsys)

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"attention": "aa-ct", "layers": ["0", "99"]}, "layers=[0, 99]"),
            ({"lora_r": "2", "lora_target_modules": ["qeury"]}, "'qeury'"),
        ],
    )
    def test_mistakes_that_the_model_shows_are_reported_before_training(self, options, changes, words, capsys):
        assert run(options, **changes) == 2
        assert words in one_line(capsys)

    def test_a_mistake_in_a_config_file_names_the_file(self, options, tmp_path, capsys):
        path = tmp_path / "options.yaml"
        path.write_text("warmup_steps: -1\n")
        assert run(options, config=str(path)) == 2
        assert one_line(capsys).startswith(f"alignattn: {path}: --warmup_steps -1")

    def test_plain_attention_trains_a_model_that_no_slot_fits(self, options, tiny_checkpoint, tmp_path, capsys):
        folder = tmp_path / "deberta"
        config = transformers.DebertaConfig(
            vocab_size=25, hidden_size=24, num_hidden_layers=1, num_attention_heads=3, intermediate_size=32
        )
        transformers.DebertaModel(config).save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_checkpoint / name, folder)
        assert run(options, model=str(folder), attention="aa-ct") == 2
        assert "under names that alignattn knows" in one_line(capsys)
        assert run(options, model=str(folder)) == 0
        predicted = alignattn.load_run(options["--output_dir"]).predict([("the cat", "the dog")])
        assert predicted[0]["prediction"] in ("no", "yes")

    def test_changed_data_under_the_same_name_is_another_run(self, options, rows_file, tmp_path, monkeypatch, capsys):
        lines = Path(rows_file).read_text().splitlines(keepends=True)
        for place, kept in (("here", lines), ("there", lines[:-8])):
            (tmp_path / place).mkdir()
            (tmp_path / place / "rows.csv").write_text("".join(kept))
        names = {"train_file": "rows.csv", "validation_file": "rows.csv", "num_train_epochs": "1"}
        monkeypatch.chdir(tmp_path / "here")
        assert run(options, **names) == 0
        monkeypatch.chdir(tmp_path / "there")
        capsys.readouterr()
        assert run(options, **names) == 2
        assert "already holds another run (--train_file: the content of rows.csv differs)" in one_line(capsys)
        Path("rows.csv").write_text("".join(lines))
        assert run(options, **names) == 0
        Path("rows.csv").unlink()
        assert run(options, **names) == 0
        # The content of the files counts, not their path.
        moved = str(tmp_path / "here" / "rows.csv")
        assert run(options, **names | {"train_file": moved, "validation_file": moved}) == 0
        assert capsys.readouterr().out.count("is finished already") == 3

    def test_a_folder_that_holds_another_run(self, options, capsys):
        assert run(options) == 0
        before = {path: path.read_bytes() for path in Path(options["--output_dir"]).rglob("*") if path.is_file()}
        capsys.readouterr()
        assert run(options, learning_rate="2e-3") == 2
        assert "already holds another run (different: learning_rate)" in one_line(capsys)
        assert before == {
            path: path.read_bytes() for path in Path(options["--output_dir"]).rglob("*") if path.is_file()
        }

    def test_a_folder_of_other_files(self, options, capsys):
        folder = Path(options["--output_dir"])
        folder.mkdir()
        (folder / "thesis.tex").write_text("years of work")
        assert run(options) == 2
        assert "is not a run of alignattn" in one_line(capsys)
        assert (folder / "thesis.tex").read_text() == "years of work"

    def test_a_damaged_result(self, options, capsys):
        assert run(options) == 0
        path = Path(options["--output_dir"]) / "results.json"
        path.write_text(path.read_text()[:50])
        assert run(options) == 2
        assert "damaged" in one_line(capsys)

    def test_a_nan_loss(self, options, capsys):
        assert run(options, learning_rate="1e30", max_grad_norm="0") == 2
        assert "not finite" in one_line(capsys)

    def test_ctrl_c(self, options, monkeypatch, capsys):
        def interrupt(options):
            raise KeyboardInterrupt

        monkeypatch.setattr("alignattn.commands.finetune.finetune", interrupt)
        assert run(options) == 130
        assert one_line(capsys) == "alignattn: stopped; written files are kept"

    @pytest.mark.parametrize(
        ("step", "after"), [(2, "begins anew"), (5, "resumes from {}/checkpoint-3")], ids=["first epoch", "second"]
    )
    def test_ctrl_c_while_it_trains(self, step, after, options, monkeypatch, capsys):
        def interrupt(trainer, *args, **kwargs):
            if trainer.state.global_step == step:
                raise KeyboardInterrupt
            return training_step(trainer, *args, **kwargs)

        training_step = alignattn.AlignmentTrainer.training_step
        monkeypatch.setattr(alignattn.AlignmentTrainer, "training_step", interrupt)
        assert run(options) == 130
        folder = options["--output_dir"]
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn")]
        after = after.format(folder)
        assert line == f"alignattn: stopped; {folder} has no finished model, and the same command {after}"

    def test_ctrl_c_in_a_finished_run(self, options, monkeypatch, capsys):
        def interrupt(result):
            raise KeyboardInterrupt

        assert run(options) == 0
        monkeypatch.setattr("alignattn.finetuning.run.render_metrics", interrupt)
        capsys.readouterr()
        assert run(options) == 130
        assert one_line(capsys) == f"alignattn: stopped; {options['--output_dir']} has the finished run"


def test_the_script_is_the_command(options):
    done = run_python(ROOT / "scripts" / "finetune.py", *words_of(options, attention="aa-wgan")[1:])
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].startswith("alignattn: unknown attention")


class TestRealData:
    def test_mrpc(self, shallow_minilm, shared_data, tmp_path):
        words = [
            "finetune", "--model", str(shallow_minilm), "--task", "mrpc", "--data_dir", str(shared_data),
            "--output_dir", str(tmp_path / "run"), "--max_train_samples", "32", "--max_eval_samples", "32",
            "--attention", "aa-ct", "--num_train_epochs", "1", "--save_strategy", "no", "--use_cpu", "true",
        ]  # fmt: skip
        assert main(words) == 0
        result = read(tmp_path / "run")
        assert result["evaluation_rows"] == {"validation": 32}
        assert set(result["metrics"]["validation"]) == {"accuracy", "f1", "macro_f1"}
        assert result["training"]["align_loss"] > 0

    def test_mnli_has_no_train_split_here(self, minilm, shared_data, tmp_path, capsys):
        words = ["finetune", "--model", minilm, "--task", "mnli", "--data_dir", str(shared_data)]
        assert main([*words, "--output_dir", str(tmp_path / "run")]) == 2
        line = one_line(capsys)
        assert "'train' split" in line
        assert "mnli" in line
        assert not (tmp_path / "run").exists()


def test_a_run_that_failed_at_once_does_not_block_its_correction(options):
    folder = Path(options["--output_dir"])
    folder.mkdir()
    (folder / "config.yaml").write_text("learning_rate: -1.0\n")
    assert run(options, max_steps="1", num_train_epochs=None) == 0
    assert read(folder)["train_rows"] == 48


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({}, "soft"),
        ({"normalizer": "entmax15"}, "entmax15"),
        ({"alignment": "ot"}, "aa-ot"),
        ({"attention": "aa-gan", "value": "qvi"}, "aa-gan+qvi"),
        ({"attention": "aa-ct", "alignment": "none"}, "soft"),
    ],
)
def test_only_a_named_alignment_is_added(options, flags, name):
    attention = COMMAND.parse(words_of(options, **flags)[1:]).attention
    assert attention.name == name
    assert alignattn.AttentionConfig.resolve(name) == attention
