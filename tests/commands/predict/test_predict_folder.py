"""`alignattn predict` on a folder of Parquet files: file by file, in shards, on a cluster, and after a kill."""

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from processes import run_python
from task_rows import make_rows, text_row

from alignattn.cli import INTERRUPTED_EXIT_CODE, main
from alignattn.commands.predict.command import RECORD_FILE, writing
from alignattn.commands.predict.files import Source, file_source
from alignattn.commands.predict.prediction import Prediction
from alignattn.tasks import TASKS
from alignattn.utils.shard import Shard

pytestmark = pytest.mark.usefixtures("one_thread")

TASK = TASKS["mrpc"]
SIZES = {"a.parquet": 5, "b.parquet": 3, "sub/c.parquet": 4, "d.parquet": 0}


@pytest.fixture(scope="module")
def run(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("folder")
    pd.DataFrame(make_rows(TASK, 12)).to_csv(folder / "rows.csv", index=False)
    words = f"--train_file {folder / 'rows.csv'} --task mrpc --output_dir {folder / 'run'} --model {tiny_checkpoint}"
    words += " --max_steps 1 --max_length 32 --save_strategy no --disable_tqdm true --use_cpu true"
    assert main(["finetune", *words.split()]) == 0
    return folder / "run"


@pytest.fixture
def parts(tmp_path: Path) -> Path:
    folder = tmp_path / "parts"
    for name, size in SIZES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        rows = [text_row(TASK, number) | {"note": f"{name} {number}"} for number in range(size)]
        table = pa.Table.from_pylist(rows, pa.schema({c: pa.string() for c in (*TASK.text_columns, "note")}))
        pq.write_table(table, folder / name)
    (folder / "_metadata.parquet").write_bytes(b"of another program")
    return folder


def predict(run: Path, parts: Path, output: Path, *words: object) -> int:
    return main(["predict", "--run", str(run), "--file", str(parts), "--output_dir", str(output), *map(str, words)])


def written(folder: Path) -> dict[str, list[dict]]:
    return {
        str(path.relative_to(folder)): pq.read_table(path).to_pylist() for path in sorted(folder.rglob("*.parquet"))
    }


@pytest.fixture
def whole(run: Path, parts: Path, tmp_path: Path) -> dict[str, list[dict]]:
    assert predict(run, parts, tmp_path / "whole") == 0
    return written(tmp_path / "whole")


def test_each_file_is_predicted_with_its_columns(run, parts, whole, tmp_path):
    assert {name: len(rows) for name, rows in whole.items()} == SIZES
    for name in SIZES:
        table = pq.read_table(tmp_path / "whole" / name)
        assert table.column_names == [*TASK.text_columns, "note", "prediction", "probability", "probabilities"]
        assert table.select(table.column_names[:3]) == pq.read_table(parts / name)
    target = tmp_path / "one.parquet"
    assert main(["predict", "--run", str(run), "--file", str(parts / "a.parquet"), "--output_file", str(target)]) == 0
    assert pq.read_table(target).to_pylist() == whole["a.parquet"]


def test_files_with_predictions_are_not_predicted_again(run, parts, whole, tmp_path, capsys):
    folder = tmp_path / "whole"
    (folder / "b.parquet").unlink()
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*.parquet")}
    capsys.readouterr()
    assert predict(run, parts, folder) == 0
    assert "3 of 4 files already have predictions" in capsys.readouterr().err
    assert written(folder) == whole
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_shards_together_equal_the_whole(run, parts, whole, tmp_path):
    for shard in ("2/3", "1/3", "3/3"):
        assert predict(run, parts, tmp_path / "shards", "--shard", shard) == 0
    assert written(tmp_path / "shards") == whole
    assert {path.name for path in (tmp_path / "shards").iterdir()} == {
        path.name for path in (tmp_path / "whole").iterdir()
    }


@pytest.mark.parametrize(("first", "second"), [("1/2", "1/1"), ("1/1", "2/2"), ("1/2", "1/2")])
def test_calls_on_the_same_files_wait_for_each_other_and_name_the_process(first, second, tmp_path, capsys):
    entered, said = threading.Event(), ""

    def enter() -> None:
        with writing(tmp_path / "out", Shard.parse(second)):
            entered.set()

    waiting = threading.Thread(target=enter)
    with writing(tmp_path / "out", Shard.parse(first)):
        waiting.start()
        while not said:
            time.sleep(0.01)
            said = capsys.readouterr().err
        assert not entered.is_set()
        assert f"waiting for process {os.getpid()} on " in said
    waiting.join()
    assert entered.is_set()
    assert list(tmp_path.rglob("*")) in ([], [tmp_path / "out"])


def test_shards_do_not_wait_for_each_other(tmp_path):
    with writing(tmp_path, Shard(1, 2)), writing(tmp_path, Shard(2, 2)):
        assert len(list(tmp_path.iterdir())) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_killed_call_leaves_whole_files_and_the_next_call_continues(run, parts, whole, tmp_path):
    code = f"""
import os, signal
from alignattn.cli import main
from alignattn.commands.predict.prediction import Prediction

write = Prediction.write

def killed(self, source, target, advance):
    def end(rows):
        os.kill(os.getpid(), signal.SIGKILL)

    # In the middle of the last file.
    write(self, source, target, end if target.name == "c.parquet" else advance)

Prediction.write = killed
main(["predict", "--run", {str(run)!r}, "--file", {str(parts)!r}, "--output_dir", {str(tmp_path / "out")!r}])
"""
    (tmp_path / "killed.py").write_text(code)
    assert run_python(tmp_path / "killed.py").returncode == -signal.SIGKILL
    # An unfinished file has a hidden name.
    done = {path.name for path in (tmp_path / "out").rglob("[!.]*.parquet")}
    assert done == {"a.parquet", "b.parquet", "d.parquet"}
    before = {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in done}
    assert predict(run, parts, tmp_path / "out") == 0
    assert written(tmp_path / "out") == whole
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in done} == before


def test_a_cluster_predicts_the_same_as_one_process(run, parts, tmp_path, capsys):
    long = pa.table({name: ["the cat " * 30] for name in (*TASK.text_columns, "note")})
    pq.write_table(long, parts / "long.parquet")
    cut = "--max_length 32 truncates 7.7 % of the rows; "
    assert predict(run, parts, tmp_path / "whole") == 0
    assert cut in capsys.readouterr().err
    assert predict(run, parts, tmp_path / "ray", "--launcher", "ray", "--processes", "1") == 0
    said = capsys.readouterr().err
    assert cut in said
    assert "Ray" not in said
    assert written(tmp_path / "ray") == written(tmp_path / "whole")


def test_rows_come_in_parts_of_one_size_whatever_the_row_groups(tmp_path):
    table = pa.table({name: [str(number) for number in range(25)] for name in TASK.text_columns})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    source = file_source(tmp_path / "rows.parquet", TASK)
    parts = list(source.parts(10))
    assert [part.table.num_rows for part in parts] == [10, 10, 5]
    assert pa.concat_tables([part.table for part in parts]) == table
    assert [row for part in parts for row in part.inputs.to_list()] == table.to_pylist()


@pytest.mark.parametrize("row_groups", [1, 16])
def test_a_file_is_never_whole_in_memory(row_groups: int, tmp_path: Path) -> None:
    rows, rng = 8192, np.random.default_rng(0)
    columns = {name: ["the cat"] * rows for name in TASK.text_columns} | {
        "note": [rng.bytes(1024) for _ in range(rows)]
    }
    file = tmp_path / "rows.parquet"
    pq.write_table(pa.table(columns), file, row_group_size=rows // row_groups, compression="none")
    source, before, most = file_source(file, TASK), pa.total_allocated_bytes(), 0
    for _ in source.parts(64):
        most = max(most, pa.total_allocated_bytes() - before)
    assert most < file.stat().st_size / 2


def test_a_mistake_is_one_line_and_writes_nothing(run, parts, whole, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    pq.write_table(pa.table({"other": ["a"]}), parts / "other.parquet")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    for words, problem in (
        ((run, bare, tmp_path / "out"), "--output_dir"),
        ((run, parts, parts / "out"), "is inside"),
        ((run, parts, tmp_path / "out"), "other.parquet has no column 'sentence1'"),
        ((run, parts, tmp_path / "out", "--output_file", "x.csv"), "--output_file"),
        ((run, parts, tmp_path / "out", "--processes", "2"), "--processes"),
        ((run, parts, tmp_path / "out", "--shard", "4/3"), "there is no shard 4/3"),
    ):
        assert predict(*words) == 2
        assert problem in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
    (parts / "other.parquet").unlink()
    assert predict(run, parts, tmp_path / "full") == 2
    assert "does not contain predictions" in capsys.readouterr().err
    assert predict(run, parts, tmp_path / "whole", "--top_k", 1) == 2
    assert "holds other predictions (top_k)" in capsys.readouterr().err
    read = pq.read_table(parts / "a.parquet")
    for changed in (read.slice(1), read.take([1, 0, 2, 3, 4])):
        pq.write_table(changed, parts / "a.parquet")
        assert predict(run, parts, tmp_path / "whole") == 2
        assert f"{parts / 'a.parquet'} as it was: the file has changed; remove" in capsys.readouterr().err
    pq.write_table(read, parts / "a.parquet")
    assert predict(run, parts, tmp_path / "whole") == 0
    assert written(tmp_path / "whole") == whole


def test_a_stopped_call_leaves_whole_files_and_the_next_call_continues(run, parts, whole, tmp_path, monkeypatch):
    write, done = Prediction.write, []

    def stopped(self: Prediction, source: Source, target: Path, advance: Callable[[int], object]) -> None:
        if done:
            # In the middle of a file.
            advance = _stop
        write(self, source, target, advance)
        done.append(target)

    monkeypatch.setattr(Prediction, "write", stopped)
    assert predict(run, parts, tmp_path / "stopped") == INTERRUPTED_EXIT_CODE
    assert done == [tmp_path / "stopped" / "a.parquet"]
    assert {path.name for path in (tmp_path / "stopped").iterdir()} == {"a.parquet", RECORD_FILE}
    monkeypatch.setattr(Prediction, "write", write)
    assert predict(run, parts, tmp_path / "stopped") == 0
    assert written(tmp_path / "stopped") == whole


def _stop(rows: int) -> None:
    raise KeyboardInterrupt
