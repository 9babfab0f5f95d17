"""`alignattn compare` on folders of finished runs: their numbers, how they are paired, and what cannot be compared."""

import json
from collections.abc import Callable, Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from scipy import stats

from alignattn.cli import USER_ERROR_EXIT_CODE, main

NUM_ROWS = 200
LABELS = np.random.default_rng(0).integers(0, 2, NUM_ROWS)

Run = Callable[..., Path]


def predictions_of(accuracy: float, seed: int) -> np.ndarray:
    """Predictions with exactly this accuracy."""
    wrong = np.random.default_rng(seed).permutation(NUM_ROWS)[round(accuracy * NUM_ROWS) :]
    predictions = LABELS.copy()
    predictions[wrong] = 1 - predictions[wrong]
    return predictions


@pytest.fixture
def make(tmp_path: Path, made: Path) -> Run:
    """A function that makes the folder of a finished run with a given accuracy."""

    def make(
        name: str,
        accuracy: float,
        seed: int = 1,
        labels: np.ndarray = LABELS,
        results: dict[str, Any] | None = None,
        **options: Any,
    ) -> Path:
        folder = tmp_path / name
        folder.mkdir(parents=True)
        written = yaml.safe_load((made / "finished/aa-ct/config.yaml").read_text())
        written |= {"seed": seed, "output_dir": str(folder), **options}
        (folder / "config.yaml").write_text(yaml.safe_dump(written))
        predictions = predictions_of(accuracy, crc32(f"{name} {seed}".encode()))
        predictions = predictions[: len(labels)]
        result = json.loads((made / "finished/aa-ct/results.json").read_text())
        measured = {"accuracy": float(np.mean(predictions == labels))}
        result |= {"seed": seed, "metrics": {"validation": measured}, "constant_prediction": {}, **(results or {})}
        result["evaluation_rows"] = {"validation": len(labels)}
        (folder / "results.json").write_text(json.dumps(result))
        columns = {
            "split": ["validation"] * len(labels),
            "row": range(len(labels)),
            "label": labels,
            "prediction": predictions,
        }
        pq.write_table(
            pa.table({key: pa.array(value) for key, value in columns.items()}), folder / "predictions.parquet"
        )
        return folder

    return make


def compare(*words: str | Path, folder: Path) -> pd.DataFrame:
    """The lines of the table, by run."""
    assert main(["compare", *map(str, words), "--output_dir", str(folder)]) == 0
    return pd.read_csv(folder / "comparison.csv").set_index("row")


def right(folder: Path) -> np.ndarray:
    table = pq.read_table(folder / "predictions.parquet")
    return table["label"].to_numpy() == table["prediction"].to_numpy()


def refusal(words: Sequence[str | Path], capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["compare", *map(str, words)]) == USER_ERROR_EXIT_CODE
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert len(lines) == 1
    return lines[0]


# --- numbers


def test_two_runs_of_one_seed_are_paired_by_their_examples(make: Run, tmp_path: Path) -> None:
    soft, aligned = make("soft", 0.7, attention="soft"), make("aligned", 0.9)
    lines = compare(soft, aligned, folder=tmp_path / "out")
    assert list(lines.index) == ["soft", "aligned"]
    assert lines["mean"].to_list() == pytest.approx([70, 90])
    assert lines.loc["aligned", "difference"] == pytest.approx(20)
    won, lost = int((right(aligned) & ~right(soft)).sum()), int((right(soft) & ~right(aligned)).sum())
    assert lines.loc["aligned", "p_value"] == pytest.approx(stats.binomtest(won, won + lost).pvalue)
    assert lines.loc["aligned", "difference_low"] < 20 < lines.loc["aligned", "difference_high"]
    assert lines.loc["aligned", "verdict"] == "better"
    assert pd.isna(lines.loc["soft", "difference"])


def test_seeds_that_agree_are_paired(make: Run, tmp_path: Path) -> None:
    accuracies = {"soft": [0.7, 0.72, 0.71, 0.69, 0.73, 0.7], "aligned": [0.71, 0.74, 0.74, 0.7, 0.76, 0.72]}
    for name, by_seed in accuracies.items():
        for seed, accuracy in enumerate(by_seed, start=1):
            make(f"{name}/seed-{seed}", accuracy, seed)
    line = compare(tmp_path / "soft", tmp_path / "aligned", folder=tmp_path / "out").loc["aligned"]
    differences = 100 * (np.array(accuracies["aligned"]) - np.array(accuracies["soft"]))
    assert line["difference"] == pytest.approx(differences.mean())
    assert line["standard_deviation"] == pytest.approx(100 * np.std(accuracies["aligned"], ddof=1))
    assert line["p_value"] == pytest.approx(2 / 2**6)
    low, high = stats.t.interval(0.95, 5, differences.mean(), stats.sem(differences))
    assert line[["difference_low", "difference_high"]].to_list() == pytest.approx([low, high])
    assert f"over {len(differences)} paired seeds" in line["test"]


def test_seeds_that_draw_their_rows_are_not_tested_over_examples(make: Run, tmp_path: Path) -> None:
    for name, take, accuracy in (("soft", "seed", 0.6), ("aligned", "seed", 0.9), ("same", None, 0.9)):
        for seed in (1, 2, 3):
            options = {"attention": "soft"} if name == "soft" else {}
            make(f"{name}/seed-{seed}", accuracy, seed, max_train_samples=8, take=take, **options)
    lines = compare(*(tmp_path / name for name in ("soft", "aligned", "same")), folder=tmp_path / "out")
    assert lines.loc["aligned", "test"] == "no test; t-interval over 3 paired seeds"
    assert pd.isna(lines.loc["aligned", "p_value"])


def test_files_of_another_content_are_reported(make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make(name, 0.7) for name in ("a", "b", "c")]
    for folder, digest in zip(folders, ("1", "1", "2"), strict=True):
        (folder / "data.json").write_text(json.dumps({"validation_file": digest, "train_file": folder.name}))
    compare(*folders, folder=tmp_path / "out")
    said = capsys.readouterr().out
    assert "c: its file of validation rows has another content than that of a" in said
    assert "b: its file" not in said
    # The options are the same, and the files are not.
    assert "b: another content of train_file; seed 1" in said
    assert "c: another content of validation_file, another content of train_file; seed 1" in said


def test_only_common_seeds_are_paired_and_reported(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, accuracy in ((1, 0.7), (2, 0.72), (3, 0.5)):
        make(f"soft/seed-{seed}", accuracy, seed)
    for seed, accuracy in ((1, 0.75), (2, 0.73)):
        make(f"aligned/seed-{seed}", accuracy, seed)
    line = compare(tmp_path / "soft", tmp_path / "aligned", folder=tmp_path / "out").loc["aligned"]
    assert line["difference"] == pytest.approx(3)
    assert "aligned: the difference is over the seeds in common (1, 2)" in capsys.readouterr().out


def test_runs_without_a_common_seed_are_not_compared(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, accuracy in ((1, 0.6), (2, 0.7)):
        make(f"soft/seed-{seed}", accuracy, seed)
    line = compare(tmp_path / "soft", make("other", 0.9, seed=7), folder=tmp_path / "out").loc["other"]
    assert "other, validation, is not compared: no seed in common with soft" in capsys.readouterr().out
    assert line["mean"] == pytest.approx(90)
    assert pd.isna(line["difference"])


def test_p_values_are_corrected_for_all_comparisons(make: Run, tmp_path: Path) -> None:
    folders = [make("soft", 0.7), make("one", 0.75), make("two", 0.8)]
    lines = compare(*folders, folder=tmp_path / "out").loc[["one", "two"]]
    small, large = sorted(lines["p_value"])
    assert sorted(lines["corrected_p_value"]) == pytest.approx(sorted([min(1, 2 * small), max(2 * small, large)]))


def test_any_run_can_be_the_baseline(make: Run, tmp_path: Path) -> None:
    soft, aligned = make("soft", 0.7), make("aligned", 0.9)
    lines = compare(soft, aligned, "--baseline", aligned, folder=tmp_path / "out")
    assert list(lines.index) == ["aligned", "soft"]
    assert lines.loc["soft", "difference"] == pytest.approx(-20)
    assert lines.loc["soft", "verdict"] == "worse"
    # Names are in the order of the runs as given, after a baseline that is not among them.
    apart = compare(soft, "--baseline", aligned, "--names", "A", "B", folder=tmp_path / "other")
    assert list(apart["mean"].round(9).items()) == [("A", 90), ("B", 70)]
    named = compare(soft, aligned, "--baseline", aligned, "--names", "S", "A", folder=tmp_path / "named")
    assert list(named["mean"].round(9).items()) == [("A", 90), ("S", 70)]


# --- what is written


class Texts(HTMLParser):
    """The texts of a page, and the addresses that its tags would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.fetched: list[str | None] = []

    def handle_data(self, data: str) -> None:
        self.texts.append(data)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.fetched += [
            value for name, value in attrs if name in ("src", "href") and not (value or "").startswith("#")
        ]


def test_the_table_and_the_page_show_the_options_that_differ(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    soft, aligned = make("soft", 0.7, attention="soft"), make("<b>aligned", 0.9, alignment_weight=0.5)
    out = tmp_path / "out"
    compare(soft, aligned, folder=out)
    printed = capsys.readouterr().out
    assert "attention aa-ct" in printed
    assert "alignment_weight 0.5" in printed
    markdown = (out / "comparison.md").read_text()
    assert "| &lt;b&gt;aligned | **90.00** |" in markdown
    assert "+20.00 points" in markdown
    page = Texts()
    page.feed((out / "comparison.html").read_text())
    text = " ".join(page.texts)
    assert "<b>aligned" in text
    assert "90.00" in text
    assert "alignment_weight 0.5" in text
    assert page.fetched == []
    for path in out.iterdir():
        assert str(tmp_path).encode() not in path.read_bytes()


def test_data_that_the_model_saw_are_reported(make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [make(name, 0.8, results={"model": "minilm", "task": "qqp"}) for name in ("a", "b")]
    compare(*runs, folder=tmp_path / "out")
    said = "The model card of minilm lists QQP"
    assert said in capsys.readouterr().out
    assert said in (tmp_path / "out" / "comparison.md").read_text()


def test_seeds_that_repeat_one_pair_of_constant_models_are_not_tested(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Six seeds of one pair would be significant (p = 2 / 64)."""
    flat = {"constant_prediction": {"validation": "same"}}
    for name, accuracy in (("pos", 0.7), ("neg", 0.3)):
        for seed in range(6):
            made = {"metrics": {"validation": {"accuracy": accuracy}}, **flat}
            make(f"{name}/seed-{seed}", accuracy, seed, results=made)
    lines = compare(tmp_path / "pos", tmp_path / "neg", folder=tmp_path / "out")
    assert pd.isna(lines.loc["neg", "p_value"])
    assert "is not compared: both predict the same for every row with all seeds" in capsys.readouterr().out


def test_constant_predictions_and_unfinished_seeds_are_reported(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make("soft/seed-1", 0.7)
    (make("soft/seed-2", 0.7, seed=2) / "results.json").unlink()
    flat = make("flat", 0.5, results={"constant_prediction": {"validation": "same"}})
    compare(tmp_path / "soft", flat, folder=tmp_path / "out")
    printed = capsys.readouterr().out
    # 20 points on 200 rows: McNemar's test finds them.
    assert "50.00†°" in printed
    assert "predicts the same for every row" in printed
    assert "soft: seed-2 not finished and left out" in printed


def test_nothing_is_overwritten(make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folders = [make("soft", 0.7), make("aligned", 0.9)]
    compare(*folders, folder=tmp_path / "out")
    capsys.readouterr()
    assert "give another --output_dir" in refusal([*folders, "--output_dir", tmp_path / "out"], capsys)


# --- what cannot be compared


def test_runs_that_cannot_be_compared_are_refused(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make("soft", 0.7)
    make("task", 0.7, validation_file="another.csv")
    make("fewer", 0.7, labels=LABELS[:100])
    make("others", 0.7, labels=1 - LABELS)
    make("measures", 0.7, results={"metrics": {"validation": {"f1": 0.5}}})
    make("named", 0.7, results={"labels": ["yes", "no"]})
    make("nothing", 0.7, results={"metrics": {}})
    (make("unfinished", 0.7) / "results.json").unlink()
    make("shift/run", 0.7)
    expected = {
        ("soft", "task"): "task was evaluated on another.csv, and soft on ",
        ("soft", "fewer"): "fewer was evaluated on 100 rows of validation, and soft on 200",
        ("soft", "others"): "others was evaluated on other rows of validation than soft",
        ("soft", "measures"): "measures measured validation f1, and soft validation accuracy",
        ("soft", "named"): "named predicts yes, no",
        ("nothing", "soft"): "nothing was not evaluated",
        ("soft", "unfinished"): "unfinished has no results.json",
        ("soft",): "compare needs at least 2 folders",
        ("soft", "soft"): "lists a folder twice",
        ("soft", "nowhere"): "there is no folder nowhere",
        ("soft", "shift"): "shift is not a run folder of alignattn finetune, but contains one: give shift/run",
        ("soft", "fewer", "--names", "a"): "give 2 different names",
    }
    for words, message in expected.items():
        assert message in refusal(words, capsys)
    assert "lists a folder twice" in refusal(("soft", str(tmp_path / "soft")), capsys)
    assert not (tmp_path / "comparison").exists()


def test_a_folder_of_seeds_holds_one_run_per_seed_with_the_same_options_and_data(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, options in (("same", {"disable_tqdm": True}), ("longer", {"num_train_epochs": 15})):
        make(f"{name}/seed-1", 0.7)
        make(f"{name}/seed-2", 0.7, seed=2, **options)
    for name, digest in (("seed-1", "1"), ("seed-2", "2")):
        folder = make(f"data/{name}", 0.7, seed=int(digest))
        (folder / "data.json").write_text(json.dumps({"train_file": digest}))
    said = refusal(["same", "longer"], capsys)
    assert "longer/seed-2 is another run than longer/seed-1 (different: num_train_epochs)" in said
    assert "(different: the content of train_file)" in refusal(["same", "data"], capsys)
    make("plain", 0.6)
    compare("same", "plain", folder=tmp_path / "out")
    assert "plain: the same options; seed 1" in capsys.readouterr().out


def test_seeds_of_one_recipe_may_run_on_other_devices_and_name_their_files_by_other_paths(
    make: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rows.csv").touch()
    make("seeds/seed-1", 0.7, use_cpu=True, train_file="rows.csv")
    make("seeds/seed-2", 0.8, seed=2, use_cpu=False, train_file=str(tmp_path / "rows.csv"))
    make("plain", 0.6, use_cpu=True, train_file="rows.csv")
    table = compare("seeds", "plain", folder=tmp_path / "out")
    assert table.loc["seeds", "seeds"] == 2
    assert table.loc["seeds", "mean"] == pytest.approx(75)


def test_facts_of_all_seeds_are_compared(make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, devices in (("a", ("cpu", "cpu")), ("b", ("cpu", "H100"))):
        for seed, device in enumerate(devices, start=1):
            make(f"{name}/seed-{seed}", 0.7, seed, results={"device": device})
    compare(tmp_path / "a", tmp_path / "b", folder=tmp_path / "out")
    assert "Different hardware: a: cpu; b: cpu and H100." in capsys.readouterr().out


def test_a_measure_that_is_undefined_for_a_run_is_left_out_and_reported(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measured = [{"validation": {"accuracy": share, "f1": f1}} for share, f1 in ((0.5, 0.5), (0.75, None))]
    folders = [
        make(name, metrics["validation"]["accuracy"], results={"metrics": metrics})
        for name, metrics in zip(("one", "two"), measured, strict=True)
    ]
    assert main(["compare", *map(str, folders), "--output_dir", str(tmp_path / "table")]) == 0
    said = capsys.readouterr().out
    assert "validation f1 is undefined" in said
    assert "validation accuracy" in said
    folders = [make(f"{name}-alone", 0.5, results={"metrics": {"validation": {"f1": None}}}) for name in ("one", "two")]
    other = str(tmp_path / "other")
    assert main(["compare", *map(str, folders), "--output_dir", other]) == USER_ERROR_EXIT_CODE
    assert "undefined" in capsys.readouterr().err


# --- scores of any program


def write_scores(path: Path, lines: Sequence[str], header: str = "method,seed,score") -> Path:
    path.write_text("\n".join([header, *lines]) + "\n")
    return path


def test_scores_of_any_program_are_paired_by_seed_and_tested(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    plain = rng.normal(3, 1, 8)
    tricks = {"plain": plain, "trick": plain + rng.normal(1, 0.3, 8), "noise": plain + rng.normal(0, 0.3, 8)}
    lines = [f"{name},{seed},{score}" for name, scores in tricks.items() for seed, score in enumerate(scores)]
    # The order of the lines does not matter.
    table = compare(write_scores(tmp_path / "s.csv", [lines[0], *reversed(lines[1:])]), folder=tmp_path / "out")
    p_values = []
    for name in ("trick", "noise"):
        tested = stats.permutation_test([tricks[name] - plain], np.mean, permutation_type="samples", n_resamples=np.inf)
        expected = stats.ttest_rel(tricks[name], plain)
        assert table.loc[name, "difference"] == pytest.approx((tricks[name] - plain).mean())
        interval = expected.confidence_interval(0.95)
        assert table.loc[name, ["difference_low", "difference_high"]].to_list() == pytest.approx(list(interval))
        assert table.loc[name, "p_value"] == pytest.approx(tested.pvalue)
        p_values.append(tested.pvalue)
    corrected = table.loc[["trick", "noise"], "corrected_p_value"].to_list()
    assert corrected == pytest.approx([2 * p_values[0], max(2 * p_values[0], p_values[1])])
    assert table.loc["trick", "verdict"] == "better"
    assert (tmp_path / "out" / "comparison.png").is_file()
    options = ["--lower_is_better", "true", "--baseline", "noise"]
    lower = compare(tmp_path / "s.csv", *options, folder=tmp_path / "lower")
    assert lower.loc["trick", "verdict"] == "worse"
    assert next(iter(lower.index)) == "noise"


def test_examples_are_averaged_and_tested_if_seeds_are_few(tmp_path: Path) -> None:
    """By McNemar's exact test of one seed, as SciPy computes it."""
    rng = np.random.default_rng(0)
    is_right = {"a": rng.random(50) < 0.6, "b": rng.random(50) < 0.9}
    lines = [
        f"{name},{task},1,{row},{int(own[row])}" for task in "xy" for name, own in is_right.items() for row in range(50)
    ]
    path = write_scores(tmp_path / "s.csv", lines, "method,task,seed,example,score")
    table = compare(path, folder=tmp_path / "out").reset_index().set_index(["row", "column"])
    won, lost = ((is_right[one] & ~is_right[other]).sum() for one, other in ("ba", "ab"))
    for task in "xy":
        line = table.loc[("b", task)]
        assert line["mean"] == pytest.approx(100 * is_right["b"].mean())
        assert line["p_value"] == pytest.approx(stats.binomtest(won, won + lost).pvalue)
        assert "McNemar" in line["test"]


def test_equal_seeds_of_both_methods_are_not_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sign-flip test would find a difference of one pair of numbers significant."""
    lines = [f"{name},{seed},{score}" for name, score in (("a", 0.5), ("b", 0.7)) for seed in range(8)]
    lines += [f"c,{seed},{seed}" for seed in range(8)]
    table = compare(write_scores(tmp_path / "s.csv", lines), folder=tmp_path / "out")
    assert pd.isna(table.loc["b", "p_value"])
    assert not pd.isna(table.loc["c", "p_value"])
    assert "b: the scores of all seeds are equal: does the program use its seed?" in capsys.readouterr().out


def test_only_common_seeds_of_scores_are_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = ["a,1,1", "a,2,2", "a,3,9", "b,2,5", "b,1,3", "c,7,1"]
    table = compare(write_scores(tmp_path / "s.csv", lines), folder=tmp_path / "out")
    assert table.loc["b", "difference"] == pytest.approx(2.5)
    said = capsys.readouterr().out
    assert "b: the difference is over the seeds in common (1, 2)" in said
    assert "c, is not compared: no seed in common with a" in said


@pytest.mark.parametrize(
    ("lines", "header", "message"),
    [
        (["a,1"], "method,score", "has no column 'seed' (it has method, score)"),
        (["a,1,1", "b,,1"], "method,seed,score", "row 2 has no seed"),
        (["a,1,1", "b,1,high"], "method,seed,score", "score 'high' of row 2 is not a finite number"),
        (["a,1,1", "b,1,inf"], "method,seed,score", "score 'inf' of row 2"),
        (["a,1,1", "a,1,2"], "method,seed,score", "row 2 is a second score of method a, seed 1; scores of single rows"),
        (["a,1,1"], "method,seed,score", "the scores of one method, a"),
        ([], "method,seed,score", "has no scores"),
        (["a,1,x,1", "b,1,y,1"], "method,seed,example,score", "b, seed 1, has scores of other examples than a"),
        (["a,1,1,2"], "method,seed,score", "a row has more values than the header"),
    ],
)
def test_scores_that_cannot_be_compared_are_refused(
    lines: list[str], header: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert message in refusal([write_scores(tmp_path / "s.csv", lines, header)], capsys)


def test_a_file_of_scores_stands_alone_and_has_its_baseline(
    make: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_scores(tmp_path / "s.csv", ["a,1,1", "b,1,2"])
    assert "is a file: give one file of scores alone" in refusal([make("soft", 0.7), path], capsys)
    assert "unknown method in" in refusal([path, "--baseline", "c"], capsys)
    assert "--names is for folders of runs" in refusal([path, "--names", "x", "y"], capsys)
    folders = [make("plain", 0.7), make("better", 0.8)]
    assert "--lower_is_better is for a file of scores" in refusal([*folders, "--lower_is_better", "true"], capsys)


def test_few_seeds_of_scores_claim_neither_a_verdict_nor_what_is_detectable(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method may lack a task, which is no other number of seeds."""
    lines = [f"a,{seed},{task},{seed}" for seed in range(4) for task in ("t", "u")]
    lines += [f"b,{seed},t,{seed + 1 + seed % 2}" for seed in range(4)]
    path = write_scores(tmp_path / "s.csv", lines, "method,seed,task,score")
    assert main(["compare", str(path), "--output_dir", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "No difference is tested: there are too few seeds, and no scores of examples." in said
    assert "significantly" not in said
    assert "Detectable" not in said
    assert "4 seeds" not in said.replace("over 4 seeds", "")
    assert pd.read_csv(tmp_path / "out/comparison.csv")["detectable_difference"].isna().all()
