"""What was made before the package was taken apart still counts: its runs, checkpoints, tables and attacks.

By the command line and the public names alone, for these outlast every move within the package. The artefacts are
those of `fixtures/before_house`, whose README tells how they were made; the commands are given again word for
word, but for options that have other names by now.
"""

import csv
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from processes import run_python
from transformers import AutoModelForSequenceClassification

import alignattn
from alignattn.cli import main

MADE_BEFORE = Path(__file__).parent / "fixtures" / "before_house"
LISTED_RUN = re.compile(r"\b([0-9a-f]{16})\s+(\w+)")
SENTINEL = 987654
"""A number of queries that no attack takes: a row that has it was not attacked again."""

pytestmark = pytest.mark.usefixtures("one_thread")


def read(path: str | Path) -> Any:
    return json.loads(Path(path).read_text(encoding="utf-8"))


def lines(path: str) -> list[dict[str, str]]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


RENAMED = {"reproduce": {"--seeds": "--num_seeds"}}
"""Options that have another name by now, by their command."""


def present(words: str) -> list[str]:
    """A command of then with the names of today."""
    command, *others = words.split()
    names = RENAMED.get(command, {})
    return [command, *(names.get(word, word) for word in others)]


COMMANDS = read(MADE_BEFORE / "commands.json")
SLOTS = sorted(path.parent.name for path in MADE_BEFORE.glob("slots/*/expected.json"))
SHIPPED = read(MADE_BEFORE / "shipped-tables.json")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the artefacts, in which the commands run: every path in them is relative."""
    folder = tmp_path / "before_house"
    shutil.copytree(MADE_BEFORE, folder)
    monkeypatch.chdir(folder)
    # The workers of a table are processes of their own.
    monkeypatch.setenv("PYTHONPATH", str(Path(alignattn.__file__).parents[1]))
    return folder


def call(name: str) -> int:
    return main(present(COMMANDS[name]))


def call_apart(words: str) -> None:
    """Give a command in a process of its own, for NLTK keeps the first stop words that it is given."""
    done = run_python("-m", "alignattn", *present(words))
    assert done.returncode == 0, done.stderr


def files(folder: str | Path) -> dict[Path, tuple[int, bytes]]:
    """When each file was written, and what it holds; locks hold nothing."""
    paths = [path for path in Path(folder).rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in paths}


def assert_finished(name: str, folders: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The command says of each folder that it is finished, and writes to none."""
    before = [files(folder) for folder in folders]
    assert call(name) == 0
    printed = capsys.readouterr().out
    assert all(f"{folder} is finished already" in printed for folder in folders)
    assert [files(folder) for folder in folders] == before


@pytest.mark.parametrize(
    ("name", "folders"),
    [
        ("aa-ct", ["finished/aa-ct"]),
        ("seeds", ["finished/seeds/seed-1", "finished/seeds/seed-2"]),
        ("esim", ["finished/esim"]),
        ("domain-shift", ["shift"]),
    ],
)
def test_a_finished_run_is_not_run_again(
    name: str, folders: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert_finished(name, folders, capsys)


def test_the_summary_of_seeds_is_the_same(here: Path) -> None:
    before = read("finished/seeds/results.json")
    assert call("seeds") == 0
    after = read("finished/seeds/results.json")
    assert after.keys() >= before.keys()
    assert after["metrics"] == before["metrics"]


@pytest.mark.parametrize(
    "folder", ["finished/aa-ct", "finished/esim", "finished/seeds/seed-1", "finished/seeds/seed-2", "shift/run"]
)
def test_a_finished_run_is_one_by_its_config(folder: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files(folder)
    assert main(["finetune", "--config", f"{folder}/config.yaml"]) == 0
    assert f"{folder} is finished already" in capsys.readouterr().out
    assert files(folder) == before


@pytest.mark.parametrize("folder", ["finished/aa-ct", "finished/esim", "finished/seeds/seed-1"])
def test_a_finished_run_predicts_what_it_predicted(folder: str, here: Path) -> None:
    from transformers import AutoTokenizer

    rows = lines("validation.csv")
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer([row["a"] for row in rows], [row["b"] for row in rows], padding=True, return_tensors="pt")
    with torch.no_grad():
        probabilities = model(**batch).logits.softmax(dim=-1)
    written = torch.tensor(pq.read_table(f"{folder}/predictions.parquet")["probabilities"].to_pylist())
    torch.testing.assert_close(probabilities.double(), written.double(), atol=1e-5, rtol=0)
    assert model.config.id2label == {0: "no", 1: "yes"}


def test_a_broken_off_run_goes_on_from_its_checkpoint(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = read("unfinished-expected.json")
    assert not Path("unfinished/results.json").exists()
    assert call("unfinished") == 0
    printed = capsys.readouterr().out
    assert "resuming from unfinished/checkpoint-4" in printed
    assert "finished already" not in printed
    assert read("unfinished/trainer_state.json")["global_step"] == expected["steps"] > 4
    # Of the whole run, the steps before the kill included; another processor may round otherwise.
    for loss in ("train_loss", "task_loss", "align_loss"):
        assert read("unfinished/results.json")["training"][loss] == pytest.approx(expected["training"][loss], rel=1e-2)
    assert_finished("unfinished", ["unfinished"], capsys)


@pytest.mark.parametrize("name", SLOTS)
def test_a_patched_checkpoint_computes_what_it_computed(name: str) -> None:
    folder = MADE_BEFORE / "slots" / name
    expected = read(folder / "expected.json")
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification)
    assert alignattn.is_patched(model)
    batch = {part: torch.tensor(expected[part]) for part in ("input_ids", "attention_mask")}
    with torch.no_grad():
        torch.testing.assert_close(model(**batch).logits, torch.tensor(expected["logits"]), atol=1e-5, rtol=0)
        with alignattn.collect(model) as seen:
            model.train()(**batch)
    loss = seen.mean_loss()
    if expected["alignment_loss"] is None:
        assert loss is None
    else:
        assert loss.item() == pytest.approx(expected["alignment_loss"], rel=1e-4, abs=1e-5)


def states(printed: str) -> dict[str, str]:
    """The state of each run that a dry run lists, by digest."""
    return dict(LISTED_RUN.findall(printed))


def test_the_done_runs_of_a_table_count(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    expected = read("table-expected.json")
    before = files("table")
    assert main([*present(COMMANDS["table"]), "--dry_run"]) == 0
    printed = capsys.readouterr().out
    assert states(printed) == {
        digest: "done" if digest in expected["done"] else "missing" for digest in expected["digests"]
    }
    assert f"{len(expected['done'])} of {len(expected['digests'])} runs are done" in printed
    assert files("table") == before


def test_a_finished_benchmark_of_a_table_counts(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = files("table/runs")
    assert call("efficiency") == 0
    captured = capsys.readouterr().out
    assert states(captured) == dict.fromkeys(read("table-expected.json")["efficiency"], "done")
    assert "1 of 1 runs are done" in captured
    # Pictures are put beside them; what is there is left alone.
    assert files("table/runs").items() >= runs.items()


def test_a_table_is_written_of_runs_made_before(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs, before = files("table/runs"), lines("table/table1/table1.csv")
    assert call("table, done") == 0
    assert "2 of 2 runs are done" in capsys.readouterr().out
    # Pictures are put beside them; what is there is left alone.
    assert files("table/runs").items() >= runs.items()
    after = lines("table/table1/table1.csv")
    assert len(after) == len(before)
    for line, earlier in zip(after, before, strict=True):
        for name in ("row", "column", "state", "published", "mean"):
            assert line[name] == earlier[name]
    assert all(digest in Path("table/table1/table1.html").read_text() for digest in read("table-expected.json")["done"])


def test_a_broken_off_run_of_a_table_is_made_in_its_folder(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (digest,) = read("table-expected.json")["broken off"]
    folders = {path.name for path in Path("table/runs").iterdir()}
    assert digest in folders
    assert call("table, broken off") == 0
    assert {path.name for path in Path("table/runs").iterdir()} == folders
    assert read(f"table/runs/{digest}/run/results.json")["attention"] == "aa-ot"
    capsys.readouterr()
    assert main([*present(COMMANDS["table, broken off"]), "--dry_run"]) == 0
    assert states(capsys.readouterr().out) == {digest: "done"}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_runs_of_a_shipped_table_keep_their_digests(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*present(SHIPPED[name]["words"]), "--dry_run", "--output_dir", "empty"]) == 0
    # In another order: a table's runs are now made seed by seed, so that one which is broken off is paired.
    assert sorted(states(capsys.readouterr().out)) == sorted(SHIPPED[name]["digests"])


@pytest.mark.parametrize("name", ["finished", "broken-off"])
def test_records_of_attacks_are_shown(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = f"attacks/{name}/aa-ct/textbugger.jsonl"
    page = Path("page.html")
    assert main(["robustness", "show", path]) == 0
    captured = capsys.readouterr()
    assert ("is not whole and left out" in captured.err) == (name == "broken-off")
    first = json.loads(Path(path).read_text().splitlines()[0])
    assert first["original"]["b"].split()[0] in captured.out
    assert main(["robustness", "show", path, "--html", str(page)]) == 0
    assert "<html" in page.read_text()


def test_finished_attacks_are_tabulated_again(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (before,) = read("attacks/finished/robustness.json")["tables"][0]["summaries"]
    assert main(["robustness", "--merge", "--output_dir", "attacks/finished"]) == 0
    (after,) = read("attacks/finished/robustness.json")["tables"][0]["summaries"]
    for name in ("failed", "succeeded", "skipped", "errors", "failed_share", "accuracy_before"):
        assert after[name] == before[name]


def marked(path: Path) -> list[str]:
    """Change the whole lines of a file of records to ones that no attack would write, and return them."""
    lines = path.read_bytes().split(b"\n")
    whole = [json.dumps(json.loads(line) | {"queries": SENTINEL}) for line in lines[:-1]]
    path.write_bytes("".join(f"{line}\n" for line in whole).encode() + lines[-1])
    return whole


def test_finished_attacks_are_not_made_again(here: Path) -> None:
    path = Path("attacks/finished/aa-ct/textbugger.jsonl")
    done = marked(path)
    call_apart(COMMANDS["attack"])
    assert path.read_text().splitlines() == done


def test_attacks_go_on_with_rows_as_long_as_they_began_with(here: Path) -> None:
    path = Path("attacks/finished/aa-ct/textbugger.jsonl")
    header = read(str(path.with_suffix(".json")))
    header["settings"]["max_length"] = 20
    path.with_suffix(".json").write_text(json.dumps(header))
    done = marked(path)
    call_apart(COMMANDS["attack"].replace("--max_length 24 ", ""))
    assert path.read_text().splitlines() == done


def test_broken_off_attacks_go_on_behind_the_rows_that_are_done(here: Path) -> None:
    path = Path("attacks/broken-off/aa-ct/textbugger.jsonl")
    done = marked(path)
    call_apart(COMMANDS["broken attack"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    whole = [json.loads(line) for line in Path("attacks/finished/aa-ct/textbugger.jsonl").read_text().splitlines()]
    assert path.read_text().splitlines()[: len(done)] == done
    assert [row["queries"] == SENTINEL for row in rows] == [True] * len(done) + [False] * (len(whole) - len(done))
    for name in ("index", "label", "seed", "original", "words"):
        assert [row[name] for row in rows] == [row[name] for row in whole]
    assert read("attacks/broken-off/robustness.json")["tables"]


def test_predictions_are_calibrated(here: Path) -> None:
    predictions = [f"finished/{name}/predictions.parquet" for name in ("aa-ct", "esim")]
    for number, path in enumerate([*predictions, "shift/predictions.parquet"]):
        words = ["calibrate", path, "--resamples", "10", "--output_dir", f"calibration-{number}"]
        assert main(words) == 0
        assert Path(f"calibration-{number}/calibration.json").is_file()


def test_a_run_is_inspected(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "inspect --model finished/aa-ct --compare finished/seeds/seed-1 --validation_file validation.csv"
    assert main([*words.split(), "--text_columns", "a", "b", "--max_length", "24", "--output_dir", "inspection"]) == 0
    assert Path("inspection/heads.csv").is_file()


@pytest.mark.parametrize("kind", ["attention", "reliability", "curves"])
def test_runs_are_drawn(kind: str, here: Path) -> None:
    words = f"figure {kind} --run finished/aa-ct finished/seeds/seed-1 --output_file {kind}.svg"
    assert main(words.split()) == 0
    assert Path(f"{kind}.svg").read_text().startswith("<?xml")
