"""Faults of a folder: two commands at once, leftovers of killed processes, a full or read-only disk, infinities."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
import pytest
import torch
from conftest import ROOT, WORDS
from processes import Python, run_python

from alignattn.cli import main
from alignattn.commands.reproduce.launchers.worker import ORPHANED
from alignattn.training.checkpoints import check_finite_weights, remove_torn_weights
from alignattn.utils import ray_cluster
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing, write_text
from alignattn.utils.paths import LOCK_FILE, check_free, entries, folder_lock, unfinished

ROWS = 8
FEW_BYTES = 4096
ENVIRONMENT = {"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}", "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
HOLD = """
import sys
from pathlib import Path
from alignattn.utils.paths import folder_lock
with folder_lock(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


def python(code: str, *words: str, **options) -> subprocess.Popen[str]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    command = [sys.executable, "-c", code, *words]
    return subprocess.Popen(command, env=os.environ | ENVIRONMENT, text=True, **(pipes | options))


@pytest.fixture
def words(tiny_checkpoint, tmp_path):
    texts = [" ".join(WORDS[row : row + 4]) for row in range(ROWS)]
    frame = pd.DataFrame({"a": texts, "b": texts[::-1], "label": [0, 1] * (ROWS // 2)})
    frame.to_csv(tmp_path / "rows.csv", index=False)
    rows = ["--train_file", str(tmp_path / "rows.csv"), "--validation_file", str(tmp_path / "rows.csv")]
    return [
        "finetune", "--model", str(tiny_checkpoint), *rows, "--text_columns", "a", "b", "--num_train_epochs", "1",
        "--per_device_train_batch_size", "4", "--use_cpu", "true", "--max_length", "16", "--save_strategy", "steps",
        "--save_steps", "1", "--output_dir", str(tmp_path / "run"),
    ]  # fmt: skip


def last_line(capsys) -> str:
    return capsys.readouterr().err.strip().splitlines()[-1]


class TestTemporaryFiles:
    def test_leftovers_of_killed_processes_are_removed_and_files_in_use_stay(self, tmp_path):
        (tmp_path / ".alignattn-dead.yaml").write_text("torn")
        with replacing(tmp_path / "of_another.json") as alive:
            write_text(tmp_path / "config.yaml", "a: 1\n")
            assert alive.exists()
            assert {path.name for path in tmp_path.iterdir()} == {"config.yaml", alive.name}
            assert entries(tmp_path) == {"config.yaml"}
            alive.write_text("{}")
        assert entries(tmp_path) == {"config.yaml", "of_another.json"}

    def test_a_run_whose_first_write_was_killed_is_not_refused(self, words, tmp_path):
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / ".alignattn-dead.yaml").write_text("torn")
        assert main(words) == 0
        assert not [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")]

    def test_other_hidden_files_stay(self, tmp_path):
        names = {".notes-abcdefgh.yaml", ".config-short.yaml", ".config-abcdefgh.json"}
        for name in names:
            (tmp_path / name).write_text("mine")
        write_text(tmp_path / "config.yaml", "a: 1\n")
        assert {path.name for path in tmp_path.iterdir()} == {*names, "config.yaml"}

    def test_torn_weights_of_safetensors_are_removed(self, tmp_path):
        names = (".tmpAbC123", "checkpoint-1/.tmpAbC123", ".tmpfiles", "model.safetensors")
        for name in names:
            (tmp_path / name).parent.mkdir(exist_ok=True)
            (tmp_path / name).write_text("weights")
        remove_torn_weights(tmp_path)
        assert [name for name in names if (tmp_path / name).exists()] == [".tmpfiles", "model.safetensors"]

    def test_unfinished_files_of_a_killed_call_may_be_overwritten(self, tmp_path):
        def killed():
            with unfinished(tmp_path):
                write_text(tmp_path / "table.csv", "half")
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            killed()
        check_free(tmp_path, ["table.csv"])
        with unfinished(tmp_path):
            write_text(tmp_path / "table.csv", "whole")
        with pytest.raises(AlignAttnError, match="already holds"):
            check_free(tmp_path, ["table.csv"])


class TestLock:
    def test_the_second_process_is_refused_at_once_and_names_the_first(self, tmp_path):
        folder = tmp_path / "run"
        first = python(HOLD, str(folder))
        assert first.stdout.readline() == "held\n"
        with (
            pytest.raises(AlignAttnError, match=rf"process {first.pid} on \S+, since .* UTC, writes to {folder}"),
            folder_lock(folder),
        ):
            pass
        first.communicate("\n")
        assert first.returncode == 0
        assert not folder.exists()
        with folder_lock(folder):
            pass
        assert not folder.exists()

    def test_the_lock_of_a_killed_process_is_released(self, tmp_path):
        first = python(HOLD, str(tmp_path))
        assert first.stdout.readline() == "held\n"
        first.kill()
        first.communicate()
        with folder_lock(tmp_path):
            assert (tmp_path / LOCK_FILE).exists()
        assert list(tmp_path.iterdir()) == []

    @pytest.mark.parametrize("changes", [(), ("--learning_rate", "1e-3")])
    def test_a_second_command_in_the_folder_of_a_running_one_is_refused_at_once(self, changes, words, tmp_path, capsys):
        folder = tmp_path / "run"
        training = Python(["-m", "alignattn", *words, "--save_strategy", "no", "--max_steps", "3000"])
        try:
            while not (folder / LOCK_FILE).exists() or not (folder / LOCK_FILE).read_text():
                assert training.poll() is None
                time.sleep(0.1)
            assert main([*words, "--save_strategy", "no", "--max_steps", "3000", *changes]) == 2
            # The first has not ended meanwhile.
            assert training.poll() is None
        finally:
            os.kill(training.pid, signal.SIGKILL)
            training.finish()
        assert f"writes to {folder}: wait until it ends, or give another folder" in last_line(capsys)

    @pytest.mark.parametrize("rank", ["RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "MV2_COMM_WORLD_RANK"])
    def test_processes_of_one_group_share_the_lock_of_rank_0(self, rank, tmp_path, monkeypatch):
        with folder_lock(tmp_path):
            monkeypatch.setenv(rank, "1")
            with folder_lock(tmp_path):
                pass


class TestNumbers:
    def test_a_diagnostic_that_is_not_finite_is_null_and_named(self, words, tmp_path, capsys):
        assert main([*words, "--attention", "aa-ct", "--alignment_weight", "1e22"]) == 0
        assert "null in results.json: grad_norm" in capsys.readouterr().err
        result = json.loads((tmp_path / "run" / "results.json").read_text())
        assert result["training"]["grad_norm"] is None
        assert main([*words, "--attention", "aa-ct", "--alignment_weight", "1e22"]) == 0
        figure = ["figure", "curves", "--run", str(tmp_path / "run"), "--output_file", str(tmp_path / "curves.svg")]
        assert main(figure) == 0

    def test_weights_that_are_not_finite_are_not_saved(self, words, tmp_path, capsys):
        assert main([*words, "--learning_rate", "1e38"]) == 2
        assert "weights are not finite" in last_line(capsys)
        assert entries(tmp_path / "run") == {"config.yaml", "data.json"}

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_one_weight_that_is_not_finite_is_enough(self, value):
        layer = torch.nn.Linear(3, 3)
        check_finite_weights(layer, 1)
        with torch.no_grad():
            layer.bias[1] = value
        with pytest.raises(AlignAttnError, match=r"step 1, bias"):
            check_finite_weights(layer, 1)


@contextmanager
def small_disk(folder: Path, size: str):
    """Mount a file system of this size, which requires the right to mount."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (FEW_BYTES, FEW_BYTES))


class TestFullDisk:
    @pytest.mark.faults
    @pytest.mark.parametrize("kilobytes", [8, 100, 330, 430])
    def test_a_disk_that_fills_up_ends_in_one_line_and_keeps_the_last_checkpoint(
        self, words, tmp_path, kilobytes, capsys
    ):
        disk = tmp_path / "disk"
        with small_disk(disk, f"{kilobytes}k"):
            small = [*words[:-1], str(disk / "run")]
            assert main(small) == 2
            said = capsys.readouterr().err
            assert "Traceback" not in said
            assert re.search(r"free.*run the same command again", said.strip().splitlines()[-1])
            # A copy of the folder resumes on a disk with enough space.
            shutil.copytree(disk / "run", tmp_path / "moved", ignore=shutil.ignore_patterns(".alignattn*"))
        assert main([*words[:-1], str(tmp_path / "moved")]) == 0

    def test_a_file_size_limit_ends_in_one_line(self, words):
        done = run_python("-m", "alignattn", *words, first=limit_files)
        assert done.returncode == 2, done.stderr
        assert "too large" in done.stderr.strip().splitlines()[-1]
        # The output goes to files with the same limit.
        assert len(done.stdout) + len(done.stderr) < FEW_BYTES


@pytest.mark.faults
def test_a_read_only_folder_is_refused_in_one_line(words, tmp_path, capsys):
    with small_disk(tmp_path / "disk", "1m"):
        subprocess.run(["mount", "-o", "remount,ro", str(tmp_path / "disk")], check=True)
        assert main([*words[:-1], str(tmp_path / "disk" / "run")]) == 2
    assert re.fullmatch(r"alignattn: cannot use \S+: Read-only file system\n", capsys.readouterr().err)


LIST_TASKS = (sys.executable, "-m", "alignattn", "list", "tasks")


class TestStreams:
    def run(self, shell: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", shell, "bash", *LIST_TASKS],
            env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False,
        )  # fmt: skip

    def test_a_closed_pipe_ends_without_a_message(self):
        done = self.run('"$@" | true; exit ${PIPESTATUS[0]}')
        assert (done.returncode, done.stderr) == (141, "")

    def test_a_closed_output(self):
        done = self.run('"$@" >&-')
        assert (done.returncode, done.stderr) == (0, "")

    def test_a_full_device(self):
        done = self.run('"$@" >/dev/full')
        assert done.returncode == 2
        assert done.stderr == "alignattn: cannot use the disk: No space left on device\n"


def test_a_worker_ends_with_its_launcher():
    worker = "import signal, sys; from types import SimpleNamespace as Of; "
    worker += "from alignattn.commands.reproduce.launchers.worker import end_with; "
    worker += "cost = Of(add=lambda: print('cost added', flush=True)); "
    worker += "end_with(int(sys.argv[1]), cost); print('up', flush=True); signal.pause()"
    code = "import subprocess, os, sys; p = subprocess.Popen([sys.executable, '-c', sys.argv[1], str(os.getpid())]); "
    code += "print(p.pid, flush=True); p.wait()"
    launcher = python(code, worker)
    assert int(launcher.stdout.readline()) > 0
    assert launcher.stdout.readline() == "up\n"
    launcher.send_signal(signal.SIGKILL)
    # Both processes hold the pipe, so it ends with the worker.
    out, _ = launcher.communicate()
    assert "the launcher of this run has ended" in out
    assert "cost added" in out
    assert ORPHANED == 128 + signal.SIGTERM


def test_a_listener_that_is_no_ray_cluster_is_refused_in_time(monkeypatch):
    monkeypatch.setattr(ray_cluster, "SECONDS_TO_ANSWER", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with (
            pytest.raises(AlignAttnError, match=rf"no Ray cluster answers at {address}: give another"),
            ray_cluster.ray_cluster(address),
        ):
            pass
