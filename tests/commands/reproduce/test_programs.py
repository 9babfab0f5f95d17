"""Rows of a table that run custom programs, alone and next to a row of `finetune`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import psutil
import pytest
import yaml
from processes import Python
from scipy.stats import permutation_test

from alignattn.cli import main
from alignattn.commands import get_command
from alignattn.commands.reproduce.folder import COSTS, RunFolder, folders_of
from alignattn.commands.reproduce.launchers.local import LocalLauncher
from alignattn.commands.reproduce.launchers.worker import ORPHANED, work
from alignattn.commands.reproduce.program import run_digest
from alignattn.commands.reproduce.table import load_table
from alignattn.finetuning.rows import load_run_rows
from alignattn.utils.errors import AlignAttnError

SEEDS = 6
CLASSES = ("no", "yes")
TEXTS = 40

PROGRAM = """
import csv, json, os, random, shutil, sys, time

def noisy(seed, train_file, test_file, output_dir, wrong=0.4, columns=("id", "prediction")):
    with open(train_file) as file:
        train = [json.loads(line) for line in file]
    with open(test_file) as file:
        test = [json.loads(line) for line in file]
    assert {*train[0]} == {"text", "label"} and {*test[0]} == {"id", "text"}
    chance = random.Random(seed)
    rows = []
    for row in test:
        right = len(row["text"].split()) % 2
        rows.append([row["id"], 1 - right if chance.random() < wrong else right])
    chance.shuffle(rows)
    write(rows, output_dir)
    shutil.copy(train_file, output_dir)

def better(seed, train_file, test_file, output_dir):
    noisy(seed, train_file, test_file, output_dir, wrong=0.1)

def constant(seed, train_file, test_file, output_dir):
    with open(test_file) as file:
        write([[json.loads(line)["id"], 1] for line in file], output_dir)

def write(rows, folder):
    with open(os.path.join(folder, "predictions.csv"), "w", newline="") as file:
        csv.writer(file).writerows([["id", "prediction"], *rows])

if __name__ == "__main__":
    noisy(int(sys.argv[1]), *sys.argv[2:5])
"""

WORDS = [sys.executable, "program.py", "{seed}", "{train_file}", "{test_file}", "{output_dir}"]
MEASURES = [
    {"label": "accuracy", "path": "metrics.validation.accuracy", "primary": True},
    {"label": "processor", "path": "cost.processor_seconds", "unit": "seconds", "is_better": "lower"},
]
TABLE = {
    "title": "t",
    "command": "finetune",
    "seeds": SEEDS,
    "options": {
        "train_file": "train.csv",
        "validation_file": "validation.csv",
        "text_columns": ["text"],
        "max_train_samples": 10,
        "take": "seed",
    },
    "rows": [
        {"label": "noisy", "primary": True, "run": WORDS},
        {"label": "better", "primary": True, "against": "noisy", "run": "program.py:better"},
    ],
    "columns": [{"label": "texts", "measures": MEASURES}],
}

SAME_ROWS = {name: value for name, value in TABLE["options"].items() if name not in ("max_train_samples", "take")}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working directory, with a program and rows."""
    monkeypatch.chdir(tmp_path)
    Path("program.py").write_text(PROGRAM)
    chance = np.random.default_rng(0)
    for name in ("train", "validation"):
        counts = chance.integers(1, 20, TEXTS)
        texts = [" ".join(["word"] * count) for count in counts]
        pd.DataFrame({"text": texts, "label": [CLASSES[count % 2] for count in counts]}).to_csv(f"{name}.csv")
    return tmp_path


@pytest.fixture
def at_hand(monkeypatch):
    """Make runs in this process, which saves their start of seconds; return the list of their folders."""
    made = []

    def launch(self, paths):
        for path in paths:
            made.append(path)
            yield path, work(RunFolder.read(path))

    monkeypatch.setattr(LocalLauncher, "launch", launch)
    return made


def write(**changes):
    Path("mine.yaml").write_text(yaml.safe_dump(TABLE | changes))


def reproduce(*words):
    return main(["reproduce", "mine.yaml", "--output_dir", "results", *words])


def runs(row):
    """Return the folders of a row's runs, by seed."""
    cells = [cell for cell in load_table("mine.yaml").cells(range(1, SEEDS + 1)) if cell.row.label == row]
    folders = folders_of(Path("results"), cells[:1]).values()
    return {folder.experiment.options["seed"]: folder for folder in folders}


def frame():
    return pd.read_csv("results/mine/mine.csv").set_index(["row", "measure"])


def test_programs_get_the_rows_of_finetune_and_are_scored_alike(at_hand, capsys):
    write()
    assert reproduce() == 0, capsys.readouterr().err
    labels = pd.read_csv("validation.csv")["label"].map(CLASSES.index)
    accuracies = {}
    for row in ("noisy", "better"):
        for seed, run in runs(row).items():
            words = f"--model x --text_columns text --take seed --max_train_samples 10 --seed {seed} --output_dir x"
            files = ("--train_file", "train.csv", "--validation_file", "validation.csv")
            drawn = load_run_rows(get_command("finetune").parse([*words.split(), *files])).train
            given = [json.loads(line) for line in (run.output / "output" / "train.jsonl").read_text().splitlines()]
            assert given == list(drawn)
            # The program shuffles its rows.
            predicted = pd.read_csv(run.output / "output" / "predictions.csv").set_index("id")["prediction"]
            accuracies[row, seed] = (predicted.sort_index() == labels).mean()
            kept = pd.read_parquet(run.output / "predictions.parquet")
            assert list(kept["prediction"]) == list(predicted.sort_index())
            assert not (run.output / "train.jsonl").exists()
            assert run.cost["seconds"] > 0
    table = frame()
    differences = [accuracies["better", seed] - accuracies["noisy", seed] for seed in range(1, SEEDS + 1)]
    expected = permutation_test([differences], np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    found = table.loc[("better", "accuracy")]
    assert found["difference"] == pytest.approx(100 * np.mean(differences))
    assert found["corrected_p_value"] == found["p_value"] == pytest.approx(expected)
    assert found["family"] == "primary"
    # The cost is that of the program alone, a hundredth of the imports of this process.
    assert 0 < table.loc[("better", "processor"), "mean"] < 2
    assert "Differences to noisy" in capsys.readouterr().out


@pytest.mark.parametrize("file", ["recipes/__init__.py", "recipes/inner.py", "elsewhere/apart.py"])
def test_an_edited_function_of_a_package_or_of_another_folder_is_another_program(file, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    name = {"recipes/__init__.py": "recipes", "recipes/inner.py": "recipes.inner", "elsewhere/apart.py": "apart"}[file]
    for path in ("recipes/__init__.py", file):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("raise AssertionError('a digest imports nothing')\n")
    monkeypatch.chdir(tmp_path)
    before = run_digest(f"{name}:run")
    (tmp_path / file).write_text("# edited\n")
    assert run_digest(f"{name}:run") != before


def test_finished_runs_are_kept_and_an_edited_program_runs_again(at_hand):
    write(seeds=2)
    assert reproduce() == 0
    assert len(at_hand) == 4
    assert reproduce() == 0
    assert len(at_hand) == 4
    Path("program.py").write_text(PROGRAM + "\n# edited\n")
    assert reproduce() == 0
    assert len(at_hand) == 8


def test_runs_of_an_earlier_definition_of_the_task_are_refused(at_hand, capsys):
    files = {"train": "train.csv", "validation": "validation.csv"}
    task = {"kind": "text-classification", "text_columns": ["text"], "labels": list(CLASSES), "metrics": ["accuracy"]}
    Path("own.yaml").write_text(yaml.safe_dump(task | {"sources": {"files": files}}))
    write(seeds=1, options={"task": "own.yaml"})
    assert reproduce() == 0
    assert len(at_hand) == 2
    pd.read_csv("validation.csv")[:10].to_csv("short.csv")
    Path("own.yaml").write_text(yaml.safe_dump(task | {"sources": {"files": files | {"validation": "short.csv"}}}))
    capsys.readouterr()
    assert reproduce() != 0
    captured = capsys.readouterr()
    assert "holds a run of an earlier definition of" in captured.out + captured.err


def test_a_long_word_of_a_command_is_no_file():
    script = "set -e; " + "python step.py; " * 40
    assert run_digest(["bash", "-c", script]) == run_digest(["bash", "-c"])
    assert run_digest(["bash", "program.py"]) != run_digest(["bash"])


def test_a_row_of_finetune_is_compared_with_a_program(at_hand, tiny_checkpoint):
    ours = {"label": "ours", "options": {"model": str(tiny_checkpoint), "attention": "soft", "num_train_epochs": 1}}
    write(rows=[*TABLE["rows"], ours | {"against": "noisy"}], options=TABLE["options"] | {"max_length": 16}, seeds=1)
    words = ("--use_cpu", "true", "--save_strategy", "no", "--warmup_steps", "0")
    assert reproduce(*words, "--dry_run") == 0
    assert reproduce(*words) == 0
    found = frame().loc[("ours", "accuracy")]
    assert found["difference"] == pytest.approx(found["mean"] - frame().loc[("noisy", "accuracy"), "mean"])
    assert frame().loc[("ours", "processor"), "mean"] > 0
    results = [json.loads(path.read_text()) for path in Path("results").glob("runs/*/run/results.json")]
    assert len(results) == 3
    assert len({tuple(result["metrics"]["validation"]) for result in results}) == 1


@pytest.mark.parametrize("drawn", [True, False], ids=["rows by seed", "the same rows"])
def test_runs_that_predict_the_same_are_reported_and_are_no_sample_of_seeds(drawn, at_hand, capsys):
    constant = {"label": "constant", "against": "noisy", "run": "program.py:constant"}
    options = TABLE["options"] if drawn else SAME_ROWS
    write(rows=[{"label": "noisy", "run": WORDS}, constant], options=options)
    assert reproduce() == 0
    out = capsys.readouterr().out
    assert f"constant: all {SEEDS} runs on texts predict the same" in out
    assert "noisy: all" not in out
    found = frame().loc[("constant", "accuracy")]
    assert "seeds of constant" in found["test"]
    assert np.isnan(found["p_value"]) == drawn


def test_a_program_that_fails_is_one_line_and_leaves_the_others_alone(at_hand, capsys):
    fails = [sys.executable, "-c", "import sys; print('step 1'); sys.exit('no room')", *WORDS[2:]]
    write(rows=[TABLE["rows"][0], {"label": "fails", "run": fails}], seeds=1)
    assert reproduce() == 2
    captured = capsys.readouterr()
    (last,) = [line for line in captured.err.splitlines() if line.startswith("alignattn:")]
    assert "exit code 1" in last
    assert "no room" in last
    log = runs("fails")[1].output / "program.log"
    assert "step 1" in log.read_text()
    assert frame().loc[("noisy", "accuracy"), "state"] == "done"


KILLED = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
WRITE = "import sys; open(sys.argv[4] + '/predictions.csv', 'w').write({text!r})"
ROWS = [f"{number},1" for number in range(TEXTS)]


def predictions(*rows, header="id,prediction"):
    return WRITE.format(text="\n".join([header, *rows]) + "\n")


@pytest.mark.parametrize(
    ("program", "said"),
    [
        (KILLED, "signal 9 (SIGKILL)"),
        ("print('all done')", "'all done'"),
        ("pass", "without any output"),
        (predictions(), "empty"),
        (predictions(*ROWS[:-2]), "lacks 2 of the 40 rows, the first with id 38"),
        (predictions(*ROWS, "3,0"), "id 3 occurs twice, in rows 4 and 41"),
        (predictions(*ROWS[:-1], "40,1"), "'40' of row 40"),
        (predictions(*ROWS[:-1], "39,nan"), "'nan' of row 40"),
        (predictions(*ROWS[:-1], "39,"), "'' of row 40"),
        (predictions(*ROWS[:-1], "39,2"), "'2' of row 40 is not a class number from 0 to 1 (no, yes)"),
        (predictions(*ROWS[:-1], "39,-1"), "'-1' of row 40"),
        (predictions(*ROWS[:-1], "39,yes"), "'yes' of row 40"),
        (predictions(*ROWS, header="id,label"), "no column 'prediction'"),
        (predictions(*(f'{row},"[0.5, 0.4]"' for row in ROWS), header="id,prediction,probabilities"), "sum 1"),
        (predictions(*(f'{row},"[0.5, NaN]"' for row in ROWS), header="id,prediction,probabilities"), "sum 1"),
    ],
)
def test_an_error_of_a_program_is_named(program, said):
    write(rows=[{"label": "mine", "run": [sys.executable, "-c", program, *WORDS[2:]]}], seeds=1)
    run = runs("mine")[1]
    with pytest.raises(AlignAttnError) as error:
        run.command.execute(run.options)
    assert said in str(error.value)
    assert not run.reader.is_finished(run.output)


@pytest.mark.parametrize(("name", "text"), [("predictions.jsonl", "lines"), ("predictions.parquet", "")])
def test_probabilities_are_kept_and_have_a_mean(name, text, at_hand):
    write_file = "frame.to_json(path, orient='records', lines=True)" if text else "frame.to_parquet(path)"
    Path("own.py").write_text(
        "import pandas, pathlib\n"
        "def own(seed, train_file, test_file, output_dir):\n"
        f"    ids = range({TEXTS})\n"
        "    rows = [[0.5, 0.5] if seed % 2 else [0.1, 0.9] for number in ids]\n"
        "    frame = pandas.DataFrame({'id': ids, 'prediction': [seed % 2] * len(ids), 'probabilities': rows})\n"
        f"    path = pathlib.Path(output_dir, '{name}')\n"
        f"    {write_file}\n"
    )
    row = {"label": "own", "run": "own.py:own"}
    write(rows=[row, {"label": "mean", "ensemble": True, "against": "own", "run": "own.py:own"}], seeds=2)
    assert reproduce() == 0
    # The mean of both runs predicts class 1.
    labels = pd.read_csv("validation.csv")["label"]
    assert frame().loc[("mean", "accuracy"), "mean"] == pytest.approx(100 * (labels == "yes").mean())


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"run": ["x", "{train_file}", "{test_file}", "{output_dir}"]}, "lacks {seed}"),
        ({"run": ["x", "{sead}", "{test_file}", "{output_dir}"]}, "did you mean '{seed}'"),
        ({"run": ["x", {"seed": None}]}, "quotes"),
        ({"run": ["x", "{seed}", "{output_dir}"]}, "{test_file}"),
        ({"run": ["x", "{seed}", "{test_file}"]}, "{output_dir}"),
        ({"run": "python program.py"}, "as a list"),
        ({"run": WORDS, "label": ""}, "label"),
        ({"run": WORDS, "options": {"learning_rate": 1}}, "learning_rate"),
        ({"run": ["no-such-program", *WORDS[2:]]}, "'no-such-program'"),
        ({"run": ["program.py", *WORDS[2:]]}, "'program.py'"),
        ({"run": "program.py:worse"}, "worse"),
        ({"run": "nowhere.py:run"}, "nowhere.py"),
        ({"run": "no.module:run"}, "No module named 'no'"),
        ({"run": "program.py:write"}, "'rows'"),
    ],
)
def test_a_row_that_cannot_be_run_is_refused_before_the_first_run(row, said, at_hand, capsys):
    write(rows=[TABLE["rows"][0], {"label": "mine"} | row], options=SAME_ROWS)
    assert reproduce() == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert not at_hand


@pytest.mark.parametrize("words", [("--learning_rate", "1"), ("--max_length", "8"), ("--run", "x.py:y")])
def test_an_option_that_no_program_accepts_is_refused(words, capsys):
    write()
    assert reproduce(*words) == 2
    assert words[0] in capsys.readouterr().err


def test_programs_are_for_tasks_with_one_label_per_row(capsys):
    write(options={}, columns=[{"label": "SQuAD", "options": {"task": "squad"}, "measures": MEASURES[:1]}])
    assert reproduce("--dry_run") == 0
    assert "12 not supported" in capsys.readouterr().out


SLEEPS = "import os, time; open('pid', 'w').write(f'{os.getpid()}\\n'); time.sleep(600)"


def started_program():
    """Wait until the sleeping program has started, and return its process."""
    while not Path("pid").exists() or not Path("pid").read_text().endswith("\n"):
        time.sleep(0.1)
    return psutil.Process(int(Path("pid").read_text()))


def test_a_program_ends_with_the_command_that_started_it():
    """Otherwise it would continue next to the one that the next call starts."""
    write(rows=[{"label": "sleeps", "run": [sys.executable, "-c", SLEEPS, *WORDS[2:]]}], seeds=1)
    process = Python(["-m", "alignattn.cli", "reproduce", "mine.yaml", "--output_dir", "results"])
    program = started_program()
    os.kill(process.pid, signal.SIGKILL)
    program.wait(60)
    assert runs("sleeps")[1].status().state != "done"


def test_a_run_whose_launcher_has_ended_keeps_its_cost():
    write(rows=[{"label": "sleeps", "run": [sys.executable, "-c", SLEEPS, *WORDS[2:]]}], seeds=1)
    run = runs("sleeps")[1]
    run.prepare()
    no_process = "0"
    worker = Python(["-m", "alignattn.commands.reproduce.launchers.worker", run.path, no_process])
    assert worker.finish().returncode == ORPHANED
    assert set(run.cost) == set(COSTS)
    assert run.status().state == "missing"


def test_a_terminated_run_keeps_its_cost_and_ends_its_program():
    write(rows=[{"label": "sleeps", "run": [sys.executable, "-c", SLEEPS, *WORDS[2:]]}], seeds=1)
    run = runs("sleeps")[1]
    run.prepare()
    # A child of this process, which takes the place of the launcher.
    module = "alignattn.commands.reproduce.launchers.worker"
    worker = subprocess.Popen([sys.executable, "-m", module, run.path, str(os.getpid())])
    program = started_program()
    worker.terminate()
    assert worker.wait(60) == -signal.SIGTERM
    program.wait(60)
    assert set(run.cost) == set(COSTS)
    assert run.seconds > 0
    assert not run.is_locked()


def test_a_program_that_outlived_its_worker_is_ended_before_the_next():
    write(rows=[{"label": "sleeps", "run": [sys.executable, "-c", SLEEPS, *WORDS[2:]]}], seeds=1)
    run = runs("sleeps")[1]
    run.prepare()
    worker = Python(["-m", "alignattn.commands.reproduce.launchers.worker", run.path])
    program = started_program()
    os.kill(worker.pid, signal.SIGKILL)
    assert program.is_running()
    while run.is_locked() or not (run.output / "process.json").exists():
        time.sleep(0.1)
    run.reader.clear_unfinished(run.output)
    program.wait(60)
    assert not (run.output / "output").exists()
