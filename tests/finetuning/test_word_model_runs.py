"""Models that read words run as pretrained models do, with `finetune` and `domain-shift`."""

import json
from pathlib import Path

import pandas as pd
import pytest
from resumed import assert_goes_on, finetune
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.cli import main
from alignattn.commands.finetune import COMMAND
from alignattn.models import MODELS, capabilities_of
from alignattn.tasks import TextClassification

WORD_MODELS = [
    name
    for name in MODELS
    if capabilities_of(name).reads_embeddings and TextClassification in capabilities_of(name).tasks
]
WORDS = ["cat", "dog", "man", "sees", "likes", "old"]


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    rows = [(f"the {a} sees", f"{b} likes", a == b) for a in WORDS for b in WORDS]
    path = tmp_path / "pairs.csv"
    pd.DataFrame(rows, columns=["a", "b", "label"]).to_csv(path, index=False)
    return path


@pytest.fixture
def run(pairs: Path, tmp_path: Path):
    def call(*words: str, columns: str = "a b") -> int:
        return main(
            f"finetune --train_file {pairs} --validation_file {pairs} --text_columns {columns} --num_train_epochs 2 "
            f"--output_dir {tmp_path / 'run'} --disable_tqdm true --use_cpu true".split()
            + list(words)
        )

    return call


@pytest.fixture
def vectors(tmp_path: Path) -> Path:
    """A GloVe file of three dimensions whose third line is broken."""
    lines = [f"{word} {index} 0.5 -1" for index, word in enumerate(WORDS)]
    lines[2] = "man 1 nonsense 3"
    path = tmp_path / "vectors.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.mark.parametrize("model", WORD_MODELS)
def test_finetune(model: str, run, pairs: Path, vectors: Path, tmp_path: Path) -> None:
    reads_pairs = capabilities_of(model).texts_per_row == (2,)
    words = ["--model", model, "--embeddings", str(vectors), "--skip_bad_rows"]
    words += ["--model_config", "hidden_dim=8", "dropout=0"]
    attention = "aa-ct" if capabilities_of(model).has_heads else "soft"
    assert run(*words, "--attention", attention, columns="a b" if reads_pairs else "a") == 0
    result = json.loads((tmp_path / "run" / "results.json").read_text())
    assert (result["model"], result["attention"]) == (model, attention)
    assert (result["parameters"]["alignment"] > 0) == capabilities_of(model).has_heads
    embeddings = result["embeddings"]
    assert (embeddings["file"], embeddings["found"]) == (vectors.name, len(WORDS) - 1)
    ((line, problem),) = embeddings["bad_lines"]
    assert line == 3
    assert "'man'" in problem
    loaded = alignattn.from_pretrained(tmp_path / "run", AutoModelForSequenceClassification)
    assert loaded.config.id2label == {0: "False", 1: "True"}
    read = AutoTokenizer.from_pretrained(tmp_path / "run")("Cat", "dog")
    assert read.get("token_type_ids") == ([0, 1] if reads_pairs else None)


def test_a_run_with_query_value_interaction_repeats_its_predictions_and_resumes_bitwise(
    pairs: Path, tmp_path: Path, capsys
) -> None:
    words = f"--train_file {pairs} --validation_file {pairs} --text_columns a --num_train_epochs 2"
    words += " --model lstm-att --value qvi --model_config hidden_dim=8"
    folder = tmp_path / "run"
    finetune(words.split(), folder)
    config = json.loads((folder / "config.json").read_text())["alignattn"]
    assert (config["value"], config["value_options"]) == ("qvi", {"init": "paper"})
    model = alignattn.load_run(folder)
    written = pd.read_parquet(folder / "predictions.parquet")
    rows = pd.read_csv(pairs)
    told = model.predict(rows["a"].tolist())
    for one, probabilities in zip(told, written["probabilities"], strict=True):
        assert [each["probability"] for each in one["probabilities"]] == pytest.approx(list(probabilities), abs=1e-5)
    assert_goes_on(words.split(), folder, capsys)


def test_a_broken_line_of_the_embeddings_is_named(run, vectors: Path, capsys) -> None:
    assert run("--model", "da", "--embeddings", str(vectors)) == 2
    error = capsys.readouterr().err.splitlines()[-1]  # after the progress bar of reading
    assert f"{vectors}, line 3: the vector of 'man' has an entry that is not a number" in error
    assert "--skip_bad_rows" in error


def test_a_baseline_has_its_own_training_defaults() -> None:
    words = ["--model", "esim", "--task", "snli", "--output_dir", "x"]
    settings = COMMAND.parse(words).training
    assert (settings.learning_rate, settings.per_device_train_batch_size) == (4e-4, 64)
    assert COMMAND.parse([*words, "--learning_rate", "1e-5"]).training.learning_rate == 1e-5


def test_domain_shift(pairs: Path, tmp_path: Path) -> None:
    for task, columns in (("snli", ("premise", "hypothesis")), ("glue/mnli", ("premise", "hypothesis"))):
        folder = tmp_path / "data" / task
        folder.mkdir(parents=True)
        frame = pd.read_csv(pairs).rename(columns=dict(zip("ab", columns, strict=True)))
        frame["label"] = range(len(frame))
        frame["label"] %= 3
        for split in ("train", "validation", "validation_matched"):
            frame.to_parquet(folder / f"{split}.parquet")
    words = (
        f"domain-shift --pair snli-mnli --model da --data_dir {tmp_path / 'data'} --output_dir {tmp_path / 'out'} "
        "--num_train_epochs 1 --model_config hidden_dim=8 embedding_dim=4 --disable_tqdm true --use_cpu true"
    )
    assert main(words.split()) == 0
    result = json.loads((tmp_path / "out" / "results.json").read_text())
    assert result["model"] == "da"
    assert set(result["sides"]) == {"in-domain", "out-of-domain"}


def test_a_run_whose_results_are_not_of_the_plain_model_says_so(run, tmp_path: Path, capsys):
    assert run("--model", "lstm", "--model_config", "hidden_dim=8", "--mc_dropout_passes", "2", columns="a") == 0
    folder = tmp_path / "run"
    capsys.readouterr()
    told = f"{folder}: its results use MC dropout; here its plain model predicts, in one pass"
    alignattn.load_run(folder)
    assert told in capsys.readouterr().err
    assert main(["predict", "--run", str(folder), "--text", "the cat sees"]) == 0
    assert told in capsys.readouterr().err
