"""Tables of real runs in real processes: on this machine and with Ray, killed, concurrent, and damaged."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml
from conftest import ROOT, WORDS
from filelock import FileLock
from processes import Python, run_python

from alignattn.cli import main
from alignattn.commands.reproduce.experiment import read_given
from alignattn.commands.reproduce.folder import RunFolder
from alignattn.commands.reproduce.launchers import ray as ray_launcher
from alignattn.commands.reproduce.launchers.worker import BUSY, FAILED, run_in_process, work
from alignattn.commands.reproduce.table import load_table
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.ray_cluster import gpu_or_core

TRAIN_ROWS, VALIDATION_ROWS = 24, 12
FEW_BYTES = 4096


def write_rte(path, rows, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    words = [WORDS[(seed + index) % len(WORDS)] for index in range(rows)]
    others = [WORDS[(seed + 3 * index) % len(WORDS)] for index in range(rows)]
    labels = [index % 2 for index in range(rows)]
    pd.DataFrame({"sentence1": words, "sentence2": others, "label": labels}).to_parquet(path)


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    write_rte(folder / "glue" / "rte" / "train.parquet", TRAIN_ROWS, 0)
    write_rte(folder / "glue" / "rte" / "validation.parquet", VALIDATION_ROWS, 5)
    return folder


@pytest.fixture(scope="module")
def words(tiny_checkpoint, data_dir):
    return [
        "table1", "--tasks", "rte", "--attentions", "soft", "aa-ct", "--num_seeds", "1",
        "--model", str(tiny_checkpoint), "--data_dir", str(data_dir), "--num_train_epochs", "1",
        "--max_length", "16", "--warmup_steps", "0", "--save_strategy", "no", "--use_cpu", "true",
    ]  # fmt: skip


def start(words, folder, **options):
    """Start the command in a process; its workers are processes, too, and only those of Ray import everything again."""
    return Python(["-m", "alignattn.cli", "reproduce", *words, "--output_dir", folder], **options)


def finish(process):
    done = process.finish()
    return done.returncode, done.stdout, done.stderr


def folders_of(words, results):
    table = (
        load_table("table1")
        .with_options(read_given(["finetune"], words[8:]))
        .narrowed(tasks=["rte"], attentions=["soft", "aa-ct"])
    )
    return [RunFolder(results, cell.experiments[0]) for cell in table.cells([1])]


def frame(results):
    return pd.read_csv(results / "table1" / "table1.csv")


def trainings(folder):
    """Return how often the run reached its last step."""
    return len(re.findall(r"step (\d+) of \1:", (folder.path / "log.txt").read_text()))


@pytest.fixture(scope="module")
def measured(words, tmp_path_factory):
    """A results folder with a finished table, and the output of the command."""
    results = tmp_path_factory.mktemp("measured") / "results"
    code, out, error = finish(start(words, results))
    assert code == 0, error
    return results, out


@pytest.fixture
def copy(measured, tmp_path):
    return Path(shutil.copytree(measured[0], tmp_path / "results"))


def test_the_table_holds_what_its_runs_measured(measured, words):
    results, out = measured
    assert "0 of 2 runs are done" in out
    folders = folders_of(words, results)
    found = [json.loads((folder.output / "results.json").read_text()) for folder in folders]
    table = frame(results)
    assert list(table["row"]) == ["soft", "aa-ct"]
    assert list(table["state"]) == ["done", "done"]
    assert list(table["mean"]) == pytest.approx([100 * run["metrics"]["validation"]["accuracy"] for run in found])
    assert list(table["published"]) == [75.8, 77.2]
    assert [run["attention"] for run in found] == ["soft", "aa-ct"]
    assert pd.isna(table["difference"][0])
    assert table["difference"][1] == pytest.approx(table["mean"][1] - table["mean"][0])
    written = {path.suffix: path for path in (results / "table1").iterdir()}
    assert written.pop(".png").read_bytes().startswith(b"\x89PNG")
    assert written.keys() == {".md", ".csv", ".tex", ".html"}
    texts = {suffix: path.read_text() for suffix, path in written.items()}
    assert all(folder.experiment.digest in texts[".html"] for folder in folders)
    # The data and the model are next to the results, and the table must not show paths of this machine.
    machine = str(results.parents[2])
    assert machine in words[words.index("--data_dir") + 1]
    assert not [suffix for suffix, text in texts.items() if machine in text]
    assert f"--output_dir results/runs/{folders[0].experiment.digest}/run" in texts[".html"]


def test_finished_runs_are_not_run_again_wherever_they_and_their_rows_lie(
    measured, words, data_dir, copy, tmp_path, capsys
):
    shutil.copytree(data_dir, tmp_path / "rows")
    words = [str(tmp_path / "rows") if word == str(data_dir) else word for word in words]
    before = {path: path.stat().st_mtime_ns for path in copy.rglob("results.json")}
    assert main(["reproduce", *words, "--note", "Of tiny data.", "--output_dir", str(copy)]) == 0
    assert "2 of 2 runs are done" in capsys.readouterr().out
    assert "Of tiny data." in (copy / "table1" / "table1.md").read_text()
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("results.json")} == before
    assert [trainings(folder) for folder in folders_of(words, copy)] == [1, 1]
    assert frame(copy).equals(frame(measured[0]))


def test_finished_runs_stay_as_they_are_where_other_rows_are_given(words, data_dir, copy, tmp_path, capsys):
    shutil.copytree(data_dir, tmp_path / "rows")
    write_rte(tmp_path / "rows" / "glue" / "rte" / "train.parquet", TRAIN_ROWS, 7)
    others = [str(tmp_path / "rows") if word == str(data_dir) else word for word in words]
    before = {path: path.read_bytes() for path in copy.glob("runs/**/*") if path.is_file()}
    assert main(["reproduce", *others, "--output_dir", str(copy)]) == 2
    assert "already holds another run (--data_dir: the content of" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in copy.glob("runs/**/*") if path.is_file()} == before
    assert main(["reproduce", *words, "--output_dir", str(copy)]) == 0
    assert list(frame(copy)["state"]) == ["done", "done"]
    # A table of kept runs takes them wherever their rows lay, so it does not say where.
    assert main(["reproduce", *others, "--finished_only", "--output_dir", str(copy)]) == 0
    assert "rows" not in (copy / "table1" / "table1.md").read_text().partition("Measured:")[2].partition("\n")[0]


def test_a_number_that_a_finished_run_lacks_fails_its_cell(words, copy, tmp_path):
    own = tmp_path / "own.yaml"
    own.write_text(
        "title: t\ncommand: finetune\nseeds: 1\nrows:\n  - {label: soft, options: {attention: soft}}\n"
        "columns:\n  - {label: RTE, options: {task: rte}, measures: [{label: accuracy, path: metrics.test.accuracy}]}\n"
    )
    rest = words[words.index("--model") :]
    code, _, error = finish(start([own, *rest], copy))
    assert code == 2
    assert "metrics.test.accuracy" in error
    table = pd.read_csv(copy / "own" / "own.csv")
    assert list(table["state"]) == ["failed"]


def test_ray_fills_the_table_with_the_same_numbers(measured, copy, words):
    shutil.rmtree(folders_of(words, copy)[1].path)
    shutil.rmtree(copy / "table1")
    code, out, error = finish(start([*words, "--launcher", "ray", "--processes", "1"], copy))
    assert code == 0, error
    assert "1 of 2 runs are done" in out
    assert frame(copy).equals(frame(measured[0]))


def test_runs_with_a_share_of_a_gpu_run_on_it_concurrently(tmp_path, monkeypatch):
    """The cluster claims to have a GPU; each run waits for the other, and sees the GPU that Ray assigns."""
    from ray.cluster_utils import Cluster

    folders = [tmp_path / name for name in "ab"]

    def run(folder, environment):
        (folder / "started").write_text(os.environ["CUDA_VISIBLE_DEVICES"])
        while not all((other / "started").exists() for other in folders):
            time.sleep(0.05)
        return 0

    monkeypatch.setattr(ray_launcher, "run_in_process", run)
    for folder in folders:
        folder.mkdir()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "num_gpus": 1, "include_dashboard": False})
    try:
        done = dict(ray_launcher.RayLauncher(None, cluster.address, 0.5).launch(folders))
    finally:
        cluster.shutdown()
    assert done == dict.fromkeys(folders, 0)
    assert {(folder / "started").read_text() for folder in folders} == {"0"}


def test_thirds_of_a_gpu_are_rounded_down_and_fit_three_times():
    with_one = SimpleNamespace(cluster_resources=lambda: {"GPU": 1.0})
    assert gpu_or_core(with_one) == {"num_gpus": 1}
    assert [gpu_or_core(with_one, share)["num_gpus"] for share in (1 / 3, 0.33334, 0.29, 1.0)] == [
        0.3333,
        0.3333,
        0.29,
        1,
    ]


def test_a_share_of_a_gpu_that_the_cluster_lacks_is_refused():
    without = SimpleNamespace(cluster_resources=lambda: {"CPU": 2.0})
    assert gpu_or_core(without) == {"num_cpus": 1}
    with pytest.raises(AlignAttnError, match=r"--gpu_share 0\.25: no machine of this"):
        gpu_or_core(without, 0.25)


def test_two_concurrent_launchers_make_each_run_once(measured, words, tmp_path):
    results = tmp_path / "results"
    both = [start(words, results) for _ in range(2)]
    ended = [finish(process) for process in both]
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert [trainings(folder) for folder in folders_of(words, results)] == [1, 1]
    assert frame(results).equals(frame(measured[0]))


def test_a_killed_table_continues_where_it_stopped(measured, words, tmp_path):
    results = tmp_path / "results"
    first, second = folders_of(words, results)
    process = start(words, results, leads=True)
    while not (second.path / "log.txt").exists():
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    finish(process)
    assert first.status().state == "done"
    assert second.status().state == "missing"
    assert not (results / "table1").exists()
    finished_at = (first.output / "results.json").stat().st_mtime_ns
    code, out, error = finish(start(words, results))
    assert code == 0, error
    assert "1 of 2 runs are done" in out
    assert (first.output / "results.json").stat().st_mtime_ns == finished_at
    assert frame(results).equals(frame(measured[0]))


def test_a_run_that_another_process_holds_is_not_started(words, tmp_path):
    folder = folders_of(words, tmp_path)[0]
    folder.prepare()
    assert not folder.is_locked()
    hold = f"from filelock import FileLock; lock = FileLock('{folder.path}/.lock'); lock.acquire(); input()"
    holder = subprocess.Popen([sys.executable, "-c", hold], stdin=subprocess.PIPE)
    while not folder.is_locked():
        time.sleep(0.05)
    assert work(folder) == BUSY
    assert folder.status().state == "missing"
    holder.kill()
    holder.wait()
    # The system releases the lock of a process that dies.
    lock = FileLock(folder.path / ".lock")
    lock.acquire(timeout=0)
    lock.release()


def test_a_failing_run_is_marked_with_its_reason_and_the_others_run(copy, words):
    words = [*words[:2], "cola", *words[2:]]
    code, _, error = finish(start(words, copy))
    assert code == 2
    assert "2 of 4 runs failed" in error.splitlines()[-1]
    assert "cola" in error.splitlines()[-1]
    table = frame(copy).set_index(["row", "column"])
    assert dict(table["state"]) == {
        (row, column): state for row in ("soft", "aa-ct") for column, state in (("CoLA", "failed"), ("RTE", "done"))
    }
    assert "no data for task 'cola'" in table.loc[("soft", "CoLA"), "reason"]


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [("kill -9 $$", -signal.SIGKILL, "was killed by signal 9"), ("exit 3", 3, "ended with exit code 3")],
)
def test_a_worker_that_ends_without_a_result_has_failed(script, code, said, words, tmp_path, monkeypatch):
    folder = folders_of(words, tmp_path)[0]
    folder.prepare()
    worker = tmp_path / "worker.sh"
    worker.write_text(f"#!/bin/sh\n{script}\n")
    worker.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(worker))
    assert run_in_process(folder.path, {}) == code
    assert folder.status().state == "failed"
    assert folder.status().reason.startswith(f"the run {said}")


def test_a_run_fails_if_the_run_that_it_depends_on_is_missing(tmp_path):
    cell = next(load_table("table3").cells([1]))
    folder = RunFolder(tmp_path, cell.experiments[0])
    folder.prepare()
    assert work(folder) == FAILED
    assert folder.status().reason.startswith("the run that it depends on is missing")


def test_a_finished_run_that_cannot_be_read_fails_alone(copy, words, capsys):
    folder = folders_of(words, copy)[1]
    predictions = folder.output / "predictions.parquet"
    predictions.write_bytes(predictions.read_bytes()[:50])
    assert main(["reproduce", *words, "--output_dir", str(copy)]) == 2
    assert "1 of 2 runs failed" in capsys.readouterr().err
    assert list(frame(copy)["state"]) == ["done", "failed"]


def test_a_worker_given_the_folder_of_another_run_runs_nothing(copy, words):
    folder = folders_of(words, copy)[0]
    swap_experiment(folder)
    before = sorted(copy.rglob("*"))
    command = [sys.executable, "-m", "alignattn.commands.reproduce.launchers.worker", str(folder.path)]
    process = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False
    )
    assert process.returncode == FAILED
    assert process.stderr.count("\n") == 1
    assert "contains another run" in process.stderr
    assert sorted(copy.rglob("*")) == before


def test_a_folder_of_another_run_fails_alone(words, tmp_path):
    folder = folders_of(words, tmp_path)[0]
    folder.prepare()
    swap_experiment(folder)
    assert run_in_process(folder.path, {}) == FAILED
    assert "contains another run" in folder.status().reason


def limit_files():
    resource.setrlimit(resource.RLIMIT_FSIZE, (FEW_BYTES, FEW_BYTES))


def test_a_full_disk_is_one_line(words, tmp_path):
    folder = folders_of(words, tmp_path)[0]
    folder.prepare()
    process = run_python("-m", "alignattn.commands.reproduce.launchers.worker", folder.path, first=limit_files)
    assert process.returncode == 1, process.stderr
    assert len(process.stdout) + len(process.stderr) < FEW_BYTES  # their files are limited, too
    assert folder.status().state == "failed"
    assert "too large" in folder.status().reason
    assert "\n" not in folder.status().reason


def tear_result(folder):
    path = folder.output / "results.json"
    path.write_text(path.read_text()[:100])


def change_config(folder):
    path = folder.output / "config.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"learning_rate": 0.5}))


def age_experiment(folder):
    (folder.path / "experiment.json").write_text('{"task": "rte"}')


def swap_experiment(folder):
    path = folder.path / "experiment.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"options": content["options"] | {"seed": 9}}))


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (tear_result, "results.json is damaged ("),
        (change_config, "(different: learning_rate)"),
        (age_experiment, "experiment.json is damaged or of another version"),
        (swap_experiment, "contains another run than its name says"),
    ],
)
def test_a_damaged_folder_has_failed_and_is_not_written_to(damage, said, copy, words):
    folder = folders_of(words, copy)[0]
    damage(folder)
    before = {path: path.read_bytes() for path in folder.output.rglob("*") if path.is_file()}
    status = folder.status()
    assert status.state == "failed"
    assert said in status.reason
    assert "\n" not in status.reason
    assert main(["reproduce", *words, "--dry_run", "--output_dir", str(copy)]) == 0
    work(folder)
    assert {path: path.read_bytes() for path in folder.output.rglob("*") if path.is_file()} == before
