"""`alignattn predict` on many Parquet files, with Ray Data, and on files larger than memory."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from task_rows import make_rows, text_row

from alignattn.cli import main
from alignattn.commands.predict import file_source
from alignattn.tasks.definitions import TASKS

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


def test_a_cluster_predicts_each_file_with_its_columns(run, parts, tmp_path, capsys):
    long = pa.table({name: ["the cat " * 30] for name in (*TASK.text_columns, "note")})
    pq.write_table(long, parts / "long.parquet")
    output = tmp_path / "out"
    assert predict(run, parts, output, "--processes", "1") == 0
    out, err = capsys.readouterr()
    assert f"written to {output}" in out
    assert "7.7 % of the rows reach --max_length 32; " in err
    assert "Ray" not in err
    found = written(output)
    assert {name: len(rows) for name, rows in found.items()} == SIZES | {"long.parquet": 1}
    assert {path.name for path in output.iterdir()} == {"a.parquet", "b.parquet", "d.parquet", "sub", "long.parquet"}
    for name in SIZES:
        table = pq.read_table(output / name)
        assert table.column_names == [*TASK.text_columns, "note", "prediction", "probability", "probabilities"]
        assert table.select(table.column_names[:3]) == pq.read_table(parts / name)
    # One file needs no cluster, and has the same predictions.
    target = tmp_path / "one.parquet"
    assert main(["predict", "--run", str(run), "--file", str(parts / "a.parquet"), "--output_file", str(target)]) == 0
    assert pq.read_table(target).to_pylist() == found["a.parquet"]
    assert predict(run, parts, output, "--top_k", 1) == 2
    assert f"{output} already holds a.parquet: give another --output_dir" in capsys.readouterr().err
    assert written(output) == found


def test_rows_come_in_parts_whatever_the_row_groups(tmp_path):
    table = pa.table({name: [str(number) for number in range(25)] for name in TASK.text_columns})
    pq.write_table(table, tmp_path / "rows.parquet", row_group_size=7)
    source = file_source(tmp_path / "rows.parquet", TASK)
    parts = list(source.parts(10))
    assert max(part.table.num_rows for part in parts) <= 10
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


def test_a_mistake_is_one_line_and_writes_nothing(run, parts, tmp_path, capsys):
    bare = tmp_path / "bare"
    bare.mkdir()
    pq.write_table(pa.table({"other": ["a"]}), parts / "other.parquet")
    for words, problem in (
        ((run, bare, tmp_path / "out"), "--output_dir"),
        ((run, parts, parts / "out"), "is inside"),
        ((run, parts, tmp_path / "out"), "other.parquet has no column 'sentence1'"),
        ((run, parts, tmp_path / "out", "--output_file", "x.csv"), "--output_file"),
    ):
        assert predict(*words) == 2
        assert problem in capsys.readouterr().err
        assert not (tmp_path / "out").exists()
