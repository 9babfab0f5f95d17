"""Runs on texts longer than the model: `--long_texts windows` from training to prediction."""

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from conftest import LOCAL_ATTACK, WORDS
from processes import run_two_processes
from resumed import assert_goes_on
from resumed import finetune as keeping_all
from safetensors.torch import load_file
from scipy.special import softmax
from task_rows import make_rows, write_rows
from transformers import BertForSequenceClassification

import alignattn
from alignattn.cli import main
from alignattn.finetuning.predictor import Batching, Predictor
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.long_texts import MAX_TRAIN_WINDOWS

DECISIVE = ("fox", "owl", "elk")
DOCUMENTS = 9
WINDOWS = "--long_texts windows"
SHORT = "--max_length 8 --doc_stride 2"


def write(path: Path, rows: list[tuple[str, Any]], sep: str = "\t") -> Path:
    pd.DataFrame(rows, columns=["text", "label"]).to_csv(path, index=False, sep=sep)
    return path


def texts(lengths: list[int], seed: int = 0) -> list[tuple[str, Any]]:
    drawn = random.Random(seed)
    return [(" ".join(drawn.choices(WORDS, k=length)), ("no", "yes")[n % 2]) for n, length in enumerate(lengths)]


def finetune(file: Path, folder: Path, *words: str, text: str = "text", status: int = 0) -> Path:
    options = f"--train_file {file} --text_columns {text} --output_dir {folder} --disable_tqdm true --use_cpu true"
    assert main(["finetune", *options.split(), *" ".join(words).split()]) == status
    return folder


def predictions(folder: Path) -> Any:
    return pq.read_table(folder / "predictions.parquet")


@pytest.fixture
def tiny(tiny_checkpoint: Path) -> str:
    return f"--model {tiny_checkpoint} --learning_rate 1e-2 --max_steps 3"


@pytest.fixture
def forwards(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of sequences in each forward of a BERT."""
    seen: list[int] = []
    forward = BertForSequenceClassification.forward

    @functools.wraps(forward)  # its signature lists the inputs of the model
    def counted(self: Any, input_ids: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        seen.append(len(input_ids))
        return forward(self, input_ids, *args, **kwargs)

    monkeypatch.setattr(BertForSequenceClassification, "forward", counted)
    return seen


@pytest.mark.parametrize(
    "options",
    [
        "--attention soft --train_sampling_strategy random",
        "--attention aa-ct --r_drop_weight 1 --label_smoothing_factor 0.1 --train_sampling_strategy group_by_length",
        "--attention aa-means+sparsemax --weight_averaging ema --bf16 true",
        "--attention aa-gan --gradient_accumulation_steps 2 --train_sampling_strategy batch_rebalance",
    ],
)
def test_windows_equal_truncation_bit_for_bit_on_texts_that_fit(
    options: str, tiny: str, tmp_path: Path, capsys: Any
) -> None:
    file = write(tmp_path / "rows.tsv", texts([3, 9, 5, 7, 8, 2, 4, 6] * 2))
    given = (tiny, options, f"--validation_file {file} --max_length 16 --eval_strategy steps --eval_steps 2")
    runs = [finetune(file, tmp_path / way, *given, f"--long_texts {way}") for way in ("truncate", "windows")]
    truncated, windowed = (load_file(run / "model.safetensors") for run in runs)
    assert all(torch.equal(tensor, windowed[name]) for name, tensor in truncated.items())
    assert predictions(runs[0]).equals(predictions(runs[1]))
    logged = [json.loads((run / "trainer_state.json").read_text())["log_history"] for run in runs]
    for one, other in zip(*logged, strict=True):
        timed = ("runtime", "per_second")
        kept = [{name: value for name, value in part.items() if not name.endswith(timed)} for part in (one, other)]
        assert kept[0] == pytest.approx(kept[1], rel=1e-5)
    capsys.readouterr()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a run on short texts with one decisive word, evaluated on long texts with that word after token 2,000."""
    folder = tmp_path_factory.mktemp("decisive")
    drawn = random.Random(1)

    def row(number: int, words: int, place: int) -> tuple[str, str]:
        text = drawn.choices(WORDS, k=words)
        text[place] = DECISIVE[number % 3]
        return " ".join(text), DECISIVE[number % 3]

    train = write(folder / "train.tsv", [row(n, 60, drawn.randrange(60)) for n in range(120)])
    far = write(folder / "far.tsv", [row(n, 2_300, drawn.randrange(2_000, 2_300)) for n in range(DOCUMENTS)])
    runs: dict[str, Path] = {}

    def run(way: str) -> Path:
        if way not in runs:
            words = (
                f"--model cnn --model_config embedding_dim=16 hidden_dim=16 --validation_file {far} --max_length 16 "
                f"--long_texts {way} --num_train_epochs 12 --learning_rate 1e-2 --per_device_train_batch_size 12 "
                "--eval_strategy no"
            )
            runs[way] = finetune(train, folder / way, words)
        return runs[way]

    return run


def test_a_decisive_word_at_token_2000_is_found(found: Callable[[str], Path]) -> None:
    def accuracy(way: str) -> float:
        return json.loads((found(way) / "results.json").read_text())["metrics"]["validation"]["accuracy"]

    assert accuracy("windows") == 1
    assert accuracy("truncate") < 0.6


def test_new_rows_are_predicted_as_the_evaluation_rows_of_the_run(found: Callable[[str], Path], tmp_path: Path) -> None:
    run = found("windows")
    own = predictions(run)
    assert own["row"].to_pylist() == list(range(DOCUMENTS))
    rows = pd.read_csv(run.parent / "far.tsv", sep="\t")["text"].tolist()
    predictor = alignattn.load_run(run)
    assert predictor.options.long_texts == "windows"
    split = predictor.encode(predictor.checked(rows))
    size = predictor.run.options.training.per_device_eval_batch_size
    exact = predictor.answers(split, Batching(size, by_length=False))
    assert exact["probabilities"].to_pylist() == own["probabilities"].to_pylist()
    whole, _ = predictor.outputs(split, Batching(None))
    for batch_size in (1, 7, 10_000):
        other, _ = predictor.outputs(split, Batching(batch_size))
        assert other == pytest.approx(whole, abs=1e-5)
    asked = write(tmp_path / "asked.csv", [(text, "") for text in rows], sep=",")
    out = tmp_path / "out.csv"
    assert main(f"predict --run {run} --file {asked} --output_file {out}".split()) == 0
    told = pd.read_csv(out)
    names = sorted(DECISIVE)
    assert told["prediction"].tolist() == [names[number] for number in own["prediction"].to_pylist()]
    assert "long_texts: windows" in (run / "config.yaml").read_text()


def test_a_temperature_scales_the_pooled_logits(found: Callable[[str], Path]) -> None:
    rows = pd.read_csv(found("windows").parent / "far.tsv", sep="\t")["text"].tolist()[:3]
    plain, scaled = (alignattn.load_run(found("windows"), temperature=value) for value in (1.0, 2.0))
    split = plain.encode(plain.checked(rows))
    logits, _ = plain.outputs(split, Batching())
    found_ones = scaled.answers(split, Batching())["probabilities"].to_pylist()
    assert found_ones == pytest.approx(softmax(logits.astype(float) / 2, axis=1), abs=1e-6)


def test_a_document_of_any_length_is_trained_on_and_predicted_in_bounded_batches(
    tiny: str, tmp_path: Path, forwards: list[int], capsys: Any
) -> None:
    file = write(tmp_path / "rows.tsv", texts([30_000, 5, 40, 7, 300, 5]))
    words = (tiny, WINDOWS, SHORT, f"--validation_file {file} --per_device_train_batch_size 2 --attention aa-ct")
    run = finetune(file, tmp_path / "run", *words, "--per_device_eval_batch_size 64 --max_steps 6 --eval_strategy no")
    assert MAX_TRAIN_WINDOWS < max(forwards[:6]) <= 2 * MAX_TRAIN_WINDOWS
    assert max(forwards) == 64
    assert predictions(run).num_rows == 6
    assert f"at most {MAX_TRAIN_WINDOWS} " in (run / "README.md").read_text()
    assert "--max_length" not in capsys.readouterr().out


def test_truncated_rows_point_to_windows(tiny: str, tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "rows.tsv", texts([40, 5] * 4))
    finetune(file, tmp_path / "run", tiny, "--max_length 8")
    assert "--long_texts windows" in capsys.readouterr().out


def test_the_evaluation_loss_is_that_of_the_pooled_logits(tiny: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.tsv", texts([30, 5, 20, 7] * 2))
    words = f"{WINDOWS} {SHORT} --validation_file {file} --eval_strategy epoch --num_train_epochs 1 --max_steps -1"
    run = finetune(file, tmp_path / "run", tiny, words, "--load_best_model_at_end --metric_for_best_model loss")
    table = predictions(run)
    probabilities = torch.tensor(table["probabilities"].to_pylist())
    expected = torch.nn.functional.nll_loss(probabilities.log(), torch.tensor(table["label"].to_pylist()))
    history = json.loads((run / "trainer_state.json").read_text())["log_history"]
    (loss,) = [part["eval_loss"] for part in history if "eval_loss" in part]
    assert loss == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("options", ["", "--label_smoothing_factor 0.3", "--class_weights balanced"])
def test_every_loss_equals_that_of_truncation_on_texts_that_fit(options: str, tmp_path: Path) -> None:
    drawn = random.Random(0)
    rows = [(" ".join(drawn.choices(WORDS, k=9)), "yes" if n % 4 else "no") for n in range(24)]
    file = write(tmp_path / "rows.tsv", rows)
    words = f"--model cnn --model_config embedding_dim=8 hidden_dim=8 --validation_file {file} --learning_rate 1e-2 "
    words += f"--eval_strategy epoch --num_train_epochs 3 --max_length 16 {options}"
    losses, weights = [], []
    for way in ("truncate", "windows"):
        run = finetune(file, tmp_path / way, words, f"--long_texts {way}")
        weights.append(load_file(run / "model.safetensors"))
        history = json.loads((run / "trainer_state.json").read_text())["log_history"]
        losses.append([part["eval_loss"] for part in history if "eval_loss" in part])
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize("attention", ["soft", "aa-ct", "aa-ot+sparsemax"])
def test_a_step_does_not_depend_on_how_its_rows_are_split(attention: str, tiny: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.tsv", texts([40, 5, 12, 7, 90, 5, 3, 21]))
    shared = (
        f"{WINDOWS} {SHORT} --attention {attention} --optim sgd --train_sampling_strategy sequential --max_grad_norm 0 "
        "--model_config hidden_dropout_prob=0 attention_probs_dropout_prob=0 --max_steps 2 "
    )
    shared += "" if attention == "soft" else "--alignment_warmup_ratio 0 --alignment_rows 0"
    split = ("--per_device_train_batch_size 8", "--per_device_train_batch_size 2 --gradient_accumulation_steps 4")
    runs = [finetune(file, tmp_path / str(n), tiny, shared, one) for n, one in enumerate(split)]
    whole, parts = (load_file(run / "model.safetensors") for run in runs)
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-6)


def test_two_processes_train_as_one(tiny: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.tsv", texts([40, 5, 12, 7, 90, 5, 3, 21]))
    words = (
        f"finetune --train_file {file} --text_columns text {tiny} {WINDOWS} {SHORT} --attention aa-ct --optim sgd "
        "--train_sampling_strategy sequential --max_grad_norm 0 --model_config hidden_dropout_prob=0 "
        "attention_probs_dropout_prob=0 --max_steps 2 --disable_tqdm true --use_cpu true"
    )
    done = run_two_processes(
        "-m", "alignattn", *words.split(), "--per_device_train_batch_size", "4", "--output_dir", tmp_path / "2"
    )
    assert done.returncode == 0, done.stderr
    assert main([*words.split(), "--per_device_train_batch_size", "8", "--output_dir", str(tmp_path / "1")]) == 0
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in "12")
    for name, tensor in whole.items():
        torch.testing.assert_close(parts[name], tensor, rtol=1e-4, atol=1e-6)


def test_a_resumed_run_samples_the_windows_of_an_uninterrupted_run(tiny: str, tmp_path: Path, capsys: Any) -> None:
    file = write(tmp_path / "rows.tsv", texts([90, 80, 70, 60, 5, 75]))
    words = f"--train_file {file} --text_columns text {tiny} {WINDOWS} {SHORT} --attention aa-ct --save_strategy steps"
    words += " --save_steps 2 --per_device_train_batch_size 2 --max_steps 7"
    keeping_all(words.split(), tmp_path / "run")
    assert_goes_on(words.split(), tmp_path / "run", capsys)


@pytest.mark.parametrize("kind", ["several labels", "scores", "pairs"])
def test_every_kind_of_row_with_logits_has_windows(kind: str, tiny: str, tmp_path: Path, capsys: Any) -> None:
    drawn = random.Random(0)
    rows = [(text, n % 2) for n, (text, _) in enumerate(texts([60, 5, 30, 40, 7, 9, 100, 2]))]
    columns = {"text": [text for text, _ in rows], "also": [" ".join(drawn.choices(WORDS, k=2)) for _ in rows]}
    columns |= {"label": [n + 0.5 if kind == "scores" else n for _, n in rows], "other": [1 - n for _, n in rows]}
    file = tmp_path / "rows.tsv"
    pd.DataFrame(columns).to_csv(file, index=False, sep="\t")
    words = "--label_column label other" if kind == "several labels" else ""
    text = "text also" if kind == "pairs" else "text"
    run = finetune(file, tmp_path / "run", tiny, WINDOWS, SHORT, words, f"--validation_file {file}", text=text)
    own = predictions(run)
    predictor: Predictor = alignattn.load_run(run)
    names = ["text", "also"] if kind == "pairs" else ["text"]
    asked = [{name: columns[name][n] for name in names} for n in range(8)]
    split = predictor.encode(predictor.checked(asked))
    told = predictor.answers(split, Batching(8, by_length=False))
    assert told.equals(own.select(told.column_names))


def test_passes_with_dropout_are_averaged_after_the_windows_are_pooled(tiny: str, tmp_path: Path) -> None:
    file = write(tmp_path / "rows.tsv", texts([60, 5, 30, 40, 7, 9, 100, 2]))
    words = f"{WINDOWS} {SHORT} --validation_file {file} --mc_dropout_passes 3"
    table = predictions(finetune(file, tmp_path / "run", tiny, words))
    assert [len(row) for row in table["probabilities"].to_pylist()] == [2] * 8
    certain = f"uncertainty --run {tmp_path / 'run'} --passes 2 --output_dir {tmp_path / 'certain'} --noise 0"
    assert main(certain.split()) == 0
    assert predictions(tmp_path / "certain").num_rows == 8


@pytest.mark.parametrize(
    ("words", "culprit"),
    [
        (f"{WINDOWS} --max_length 16 --doc_stride 14", "--doc_stride 14"),
        (f"{WINDOWS} --max_length 2", "--max_length 2"),
        ("--long_texts summarise", "--long_texts"),
    ],
)
def test_impossible_options_of_windows_are_refused(
    words: str, culprit: str, tiny: str, tmp_path: Path, capsys: Any
) -> None:
    file = write(tmp_path / "rows.tsv", texts([40, 5] * 4))
    finetune(file, tmp_path / "run", tiny, words, f"--validation_file {file}", status=2)
    (line,) = capsys.readouterr().err.strip().splitlines()[-1:]
    assert culprit in line


@pytest.mark.parametrize("task", ["squad", "swag", "msra"])
def test_tasks_without_logits_per_row_refuse_windows(
    task: str, tiny_checkpoint: Path, tmp_path: Path, capsys: Any
) -> None:
    file = write_rows(tmp_path / "rows.jsonl", make_rows(TASKS[task], 8))
    words = f"finetune --task {task} --train_file {file} --model {tiny_checkpoint} {WINDOWS}"
    assert main([*words.split(), "--output_dir", str(tmp_path / "run")]) == 2
    assert f"--long_texts windows: task '{task}' is " in capsys.readouterr().err


def test_an_attack_on_windows_is_refused(found: Callable[[str], Path], tmp_path: Path, capsys: Any) -> None:
    words = f"robustness --run {found('windows')} {LOCAL_ATTACK} --output_dir {tmp_path}"
    assert main(words.split()) == 2
    assert "--long_texts" in capsys.readouterr().err
