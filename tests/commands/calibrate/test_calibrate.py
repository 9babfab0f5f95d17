"""`alignattn calibrate`: its figures compared with the functions, its files, and its messages for mistakes."""

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import softmax

from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.cli import main as run_command
from alignattn.evaluation.calibration import (
    adaptive_calibration_error,
    apply_temperature,
    area_under_risk_coverage,
    brier_score,
    classwise_calibration_error,
    expected_calibration_error,
    maximum_calibration_error,
    negative_log_likelihood,
    reliability,
    risk_coverage,
    shift_auroc,
    summarise,
)
from alignattn.reports.charts import ScaledPredictions
from alignattn.reports.plots import ReliabilityPanel, draw_reliability

FEW = ["--resamples", "20"]
NUM_ROWS = 60
BINNED = {
    "expected_calibration_error": expected_calibration_error,
    "adaptive_calibration_error": adaptive_calibration_error,
    "maximum_calibration_error": maximum_calibration_error,
    "classwise_calibration_error": classwise_calibration_error,
}


def columns(num_rows: int = NUM_ROWS, num_classes: int = 3, seed: int = 0, sharpness: float = 3.0) -> dict[str, Any]:
    """Two splits, `near` and `far`, whose predictions are `sharpness` times too confident."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(num_rows, num_classes))
    labels = (rng.random((num_rows, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1).clip(0, num_classes - 1)
    probabilities = softmax(sharpness * logits, axis=1)
    return {
        "split": ["near"] * (num_rows // 2) + ["far"] * (num_rows - num_rows // 2),
        "row": list(range(num_rows)),
        "label": labels.tolist(),
        "prediction": probabilities.argmax(axis=1).tolist(),
        "probabilities": probabilities.tolist(),
    }


def save(path: Path, table: dict[str, Any]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return str(path)


def rows_of(table: dict[str, Any], split: str) -> tuple[np.ndarray, np.ndarray]:
    kept = [index for index, name in enumerate(table["split"]) if name == split]
    return np.array(table["probabilities"])[kept], np.array(table["label"])[kept]


def run(*words: str, folder: Path) -> dict[str, Any]:
    assert run_command(["calibrate", *words, "--output_dir", str(folder), *FEW]) == 0
    return json.loads((folder / "calibration.json").read_text(encoding="utf-8"))


def values(figures: dict[str, Any]) -> dict[str, float]:
    return {name: figure["value"] for name, figure in figures.items()}


def figures_of(probabilities: np.ndarray, labels: np.ndarray, num_bins: int = 10) -> dict[str, float]:
    return {
        "accuracy": float((probabilities.argmax(axis=1) == labels).mean()),
        **{name: error(probabilities, labels, num_bins) for name, error in BINNED.items()},
        "area_under_risk_coverage": area_under_risk_coverage(probabilities, labels),
        "brier_score": brier_score(probabilities, labels),
        "negative_log_likelihood": negative_log_likelihood(probabilities, labels),
    }


def test_each_split_has_its_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = columns()
    folder = tmp_path / "out"
    content = run(save(tmp_path / "p.parquet", table), "--num_bins", "7", folder=folder)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    (file,) = content["files"]
    assert list(file["splits"]) == ["near", "far"]
    for split, report in file["splits"].items():
        expected = figures_of(*rows_of(table, split), num_bins=7)
        assert report["rows"] == NUM_ROWS // 2
        assert values(report["before"]) == pytest.approx(expected)
        assert "after" not in report
        shares = ["accuracy", *BINNED, "area_under_risk_coverage"]
        cells = [f"{100 * expected[name]:.1f}" if name in shares else f"{expected[name]:.3f}" for name in expected]
        place = lines.index([split, str(NUM_ROWS // 2), *cells])
        interval = report["before"]["accuracy"]["interval"]
        assert lines[place + 1][0] == f"{100 * interval['low']:.1f}–{100 * interval['high']:.1f}"
        assert f">{split}</h2>" in (folder / "report.html").read_text()


def test_the_temperature_is_fitted_on_one_half_and_judged_on_the_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = columns(400)
    content = run(save(tmp_path / "p.parquet", table), "--fit_on", "near", folder=tmp_path / "out")
    (file,) = content["files"]
    temperature, near, far = file["temperature"], file["splits"]["near"], file["splits"]["far"]
    assert temperature["fitted_on"] == {"file": "p.parquet", "split": "near", "rows": 100}
    assert temperature["value"] == pytest.approx(3, rel=0.4)
    nll = temperature["negative_log_likelihood"]
    assert nll["after"] < nll["before"]
    assert (near["rows"], near["is_other_half"], far["rows"], far["is_other_half"]) == (100, True, 200, False)
    probabilities, labels = rows_of(table, "far")
    assert values(far["before"]) == pytest.approx(figures_of(probabilities, labels))
    scaled = apply_temperature(probabilities, temperature["value"])
    assert values(far["after"]) == pytest.approx(figures_of(scaled, labels))
    # The two halves make up the split.
    whole = negative_log_likelihood(*rows_of(table, "near"))
    assert (nll["before"] + near["before"]["negative_log_likelihood"]["value"]) / 2 == pytest.approx(whole)
    output = capsys.readouterr().out
    assert "fitted on 100 of the 200 rows of split 'near'" in output
    assert "use the other 100 rows" in output


def test_a_temperature_at_the_end_of_the_search_is_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = columns()
    # Confidently wrong in every row: any larger temperature is better.
    table["probabilities"] = [np.eye(3)[(label + 1) % 3] * 0.94 + 0.02 for label in table["label"]]
    table["probabilities"] = [row.tolist() for row in table["probabilities"]]
    run(save(tmp_path / "p.parquet", table), "--fit_on", "near", folder=tmp_path / "out")
    assert "the end of the search: these rows determine no temperature" in capsys.readouterr().out


def test_files_of_several_models_have_a_temperature_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        save(tmp_path / name / "seed-1" / "predictions.parquet", columns(200, sharpness=sharpness))
        for name, sharpness in (("soft", 4.0), ("aa-ct", 1.0))
    ]
    content = run(*paths, "--fit_on", "near", "--split", "far", folder=tmp_path / "out")
    temperatures = [file["temperature"]["value"] for file in content["files"]]
    assert temperatures[0] == pytest.approx(4 * temperatures[1], rel=1e-4)
    assert [file["temperature"]["fitted_on"]["file"] for file in content["files"]] == [
        f"{name}/seed-1/predictions.parquet" for name in ("soft", "aa-ct")
    ]
    assert [list(file["splits"]) for file in content["files"]] == [["far"], ["far"]]
    output = capsys.readouterr().out
    assert "soft: far" in output
    assert "aa-ct: far" in output
    # Each model has its figures, two reliability diagrams and a risk-coverage curve.
    page = (tmp_path / "out" / "report.html").read_text()
    assert page.count("<h2") == 1 + 2
    assert page.count("<svg") == 2 * 3


def test_each_file_without_splits_is_one_split_and_all_share_a_temperature(tmp_path: Path) -> None:
    near, far = columns(80, seed=1), columns(50, seed=2)
    del near["split"], far["split"]
    paths = [save(tmp_path / "snli.parquet", near), save(tmp_path / "mnli.parquet", far)]
    first, second = run(*paths, "--fit_on", "snli", folder=tmp_path / "out")["files"]
    assert first["temperature"] == second["temperature"]
    assert first["splits"]["snli"]["rows"] == 40
    assert second["splits"]["mnli"]["rows"] == 50
    scaled = apply_temperature(far["probabilities"], first["temperature"]["value"])
    assert values(second["splits"]["mnli"]["after"]) == pytest.approx(figures_of(scaled, np.array(far["label"])))


def test_other_columns_and_types(tmp_path: Path) -> None:
    table = columns()
    probabilities = np.array(table["probabilities"], dtype=np.float32)
    renamed = {
        "gold": pa.array(table["label"], pa.int8()),
        "p": pa.FixedSizeListArray.from_arrays(pa.array(probabilities.flatten()), 3),
    }
    words = [save(tmp_path / "p.parquet", renamed), "--label_column", "gold", "--probabilities_column", "p"]
    (file,) = run(*words, folder=tmp_path / "out")["files"]
    assert values(file["splits"]["p"]["before"]) == pytest.approx(
        figures_of(probabilities.astype(float), np.array(table["label"]))
    )


def spoil(table: dict[str, Any], column: str, row: int, value: Any) -> dict[str, Any]:
    table[column][row - 1] = value
    return table


BAD_ROWS = [
    ("probabilities", [0.5, 0.6, 0.1], "its probabilities sum to 1.2 and must sum to 1"),
    ("probabilities", [float("nan"), 0.5, 0.5], "its probabilities hold NaN or infinity"),
    ("probabilities", [None, 0.5, 0.5], "its probabilities hold NaN or infinity"),
    ("probabilities", [-0.5, 1.0, 0.5], "its probabilities hold -0.5"),
    ("probabilities", [0.5, 0.5], "it has 2 probabilities, and most rows have 3"),
    ("probabilities", None, "it has 0 probabilities, and most rows have 3"),
    ("label", 3, "its label 3 is not one of the classes 0 to 2"),
    ("label", -1, "its label -1 is not one of the classes 0 to 2"),
    ("label", None, "its label nan is not one of the classes 0 to 2"),
    ("split", None, "it has no split"),
]


@pytest.mark.parametrize(("column", "value", "problem"), BAD_ROWS)
def test_a_bad_row_is_named(
    column: str, value: Any, problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = save(tmp_path / "p.parquet", spoil(columns(), column, 5, value))
    folder = tmp_path / "out"
    assert run_command(["calibrate", path, "--output_dir", str(folder), *FEW]) == USER_ERROR_EXIT_CODE
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith(f"alignattn: {path}, row 5: {problem}")
    assert "--skip_bad_rows" in error
    assert not folder.exists()


def test_bad_rows_are_skipped_counted_and_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table, clean = columns(), columns()
    bad = [row + 2 for row in range(len(BAD_ROWS))]
    for row, (column, value, _) in zip(bad, BAD_ROWS, strict=True):
        spoil(table, column, row, value)
    for name in clean:
        clean[name] = [value for row, value in enumerate(clean[name], start=1) if row not in bad]
    path = save(tmp_path / "p.parquet", table)
    # The flag takes no value, so it may come before the file.
    (file,) = run("--skip_bad_rows", path, folder=tmp_path / "out")["files"]
    assert [row["row"] for row in file["bad_rows"]] == bad
    for row, (_, _, problem) in zip(file["bad_rows"], BAD_ROWS, strict=True):
        assert row["problem"].startswith(problem)
    for split, report in file["splits"].items():
        assert values(report["before"]) == pytest.approx(figures_of(*rows_of(clean, split)))
    output = capsys.readouterr().out
    assert f"left out of {path}: {len(BAD_ROWS)} bad rows" in output
    assert "the first, row 2: its probabilities sum to 1.2" in output


def test_a_split_of_one_row_has_an_interval_of_its_accuracy_alone(tmp_path: Path) -> None:
    path = save(tmp_path / "p.parquet", spoil(columns(), "split", 1, "lone"))
    (file,) = run(path, folder=tmp_path / "out")["files"]
    figures = file["splits"]["lone"]["before"]
    assert [name for name, figure in figures.items() if figure["interval"] is not None] == ["accuracy"]


def test_the_diagram_shows_the_bins() -> None:
    table = columns(500)
    bins = reliability(np.array(table["probabilities"]), table["label"], 10)
    panel = ReliabilityPanel("t", bins.confidence.tolist(), bins.accuracy.tolist(), bins.counts.tolist())
    figure = draw_reliability([panel, panel], title="two")
    assert len(figure.axes) == 4
    accuracy, gaps = (container.patches for container in figure.axes[0].containers)
    filled = [index for index in range(10) if bins.counts[index]]
    assert [bar.get_x() for bar in accuracy] == pytest.approx([index / 10 for index in filled])
    assert [bar.get_height() for bar in accuracy] == pytest.approx(bins.accuracy[filled].tolist())
    tops = [bar.get_y() + bar.get_height() for bar in gaps]
    assert tops == pytest.approx(bins.confidence[filled].tolist())
    assert [bar.get_height() for bar in figure.axes[2].patches] == bins.counts.tolist()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("{root}/regression.parquet", "{root}/regression.parquet has no column 'probabilities' (it has row, label)"),
        ("{root}/words.parquet", "column 'label' of {root}/words.parquet holds string"),
        ("{root}/nulls.parquet", "column 'probabilities' of {root}/nulls.parquet is empty"),
        ("{root}/bad.parquet --skip_bad_rows", "{root}/bad.parquet has no usable row"),
        ("{good} {root}/x/../good.parquet", "is given twice"),
        ("{good} --label_column gold", "has no column 'gold' (it has split, row, label, prediction, probabilities)"),
        ("{good} --split near middle", "--split: there is no split 'middle': choose among near, far"),
        ("{good} --fit_on lone", "has one row"),
        ("{good} {root}/other.parquet {root}/third.parquet --fit_on far", "third.parquet has no split 'far'"),
    ],
)
def test_a_mistake_is_one_line(words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "x").mkdir()
    one_row = {"label": [0], "probabilities": [[0.5, 0.5]]}
    save(tmp_path / "regression.parquet", {"row": [0], "label": [2.5]})
    save(tmp_path / "words.parquet", one_row | {"label": ["yes"]})
    save(tmp_path / "nulls.parquet", one_row | {"probabilities": pa.array([None], pa.list_(pa.float64()))})
    save(tmp_path / "bad.parquet", one_row | {"label": [7]})
    good = save(tmp_path / "good.parquet", columns())
    if "lone" in words:
        save(tmp_path / "good.parquet", spoil(columns(), "split", 1, "lone"))
    save(tmp_path / "other.parquet", columns())
    save(tmp_path / "third.parquet", one_row)
    places = {"root": str(tmp_path), "good": good}
    folder = tmp_path / "out"
    command = ["calibrate", "--output_dir", str(folder), *words.format(**places).split()]
    assert run_command(command) == USER_ERROR_EXIT_CODE
    (error,) = capsys.readouterr().err.splitlines()
    assert error.startswith("alignattn: ")
    assert message.format(**places) in error
    assert not folder.exists()


def test_the_risk_coverage_chart_has_the_curves_and_their_areas():
    table = columns(200)
    rows, labels = np.array(table["probabilities"]), np.array(table["label"])
    curve, summary = risk_coverage(rows, labels), summarise(rows, labels, resamples=20)
    charts = ScaledPredictions({"before": rows}, labels).charts({"before": summary})
    area = summary["area_under_risk_coverage"]
    ends = f"({100 * area.interval.low:.1f}–{100 * area.interval.high:.1f})"
    caption = f"risk over coverage: AURC {100 * area.value:.1f} % {ends} as saved"
    assert list(charts)[-1] == caption
    path = next(one for one in ElementTree.fromstring(charts[caption]).iter("path") if one.get("class") == "line")
    heights = np.array(re.findall(r"V([\d.]+)", path.get("d")), dtype=float)
    # Drawn heights fall in proportion as risks rise.
    assert len(heights) == len(curve.risk) - 1
    assert np.corrcoef(heights, curve.risk[1:])[0, 1] == pytest.approx(-1, abs=1e-3)


def test_the_auroc_of_confidence_between_splits_is_reported(tmp_path, capsys):
    table = columns()
    content = run(save(tmp_path / "p.parquet", table), "--in_domain", "near", folder=tmp_path / "out")
    (near, far) = (rows_of(table, split)[0] for split in ("near", "far"))
    splits = content["files"][0]["splits"]
    assert "shift_auroc" not in splits["near"]
    told = splits["far"]["shift_auroc"]["before"]
    assert told["value"] == pytest.approx(shift_auroc(near, far))
    assert told["interval"]["low"] < told["value"] < told["interval"]["high"]
    assert f"near against far, before: {100 * told['value']:.1f} %" in capsys.readouterr().out
    other = ["calibrate", str(tmp_path / "p.parquet"), "--in_domain", "nearer", "--output_dir", str(tmp_path / "other")]
    assert run_command(other) == USER_ERROR_EXIT_CODE
    assert "split 'nearer' is not reported" in capsys.readouterr().err
