"""The formats of a measured table: the texts of cells, bold numbers, and the escaping of every text."""

import csv
import io
import re
from collections.abc import Callable
from dataclasses import replace
from html import unescape
from pathlib import Path

import pandas as pd
import pytest
from measured_table import (
    ACCURACY,
    CELLS,
    ECE,
    MRPC,
    NASTY,
    NOISE,
    OUT_OF_MEMORY,
    SURVIVES,
    cell,
    differs,
    measured_table,
    with_cell,
)

from alignattn.evaluation.statistics.comparison import Comparison
from alignattn.reports.table import Cell, ResultTable, filled
from alignattn.reports.writers import to_csv, to_html, to_latex, to_markdown, to_text, write_table

UNESCAPED_BAR = re.compile(r"(?<!\\)\|")
LATEX_MARKUP = re.compile(r"\\(?:[&%$#_{}]|[A-Za-z]+)")


def markdown_cells(line: str) -> list[str]:
    return [cell.strip() for cell in UNESCAPED_BAR.split(line)[1:-1]]


def markdown_tables(table: ResultTable) -> list[list[list[str]]]:
    """Return the tables of the Markdown format as lines of cells, header first."""
    blocks = [block.splitlines() for block in to_markdown(table).split("\n\n") if block.startswith("|")]
    return [[markdown_cells(line) for line in block if not line.startswith("| ---")] for block in blocks]


def unescaped(markdown: str) -> str:
    return unescape(re.sub(r"\\(.)", r"\1", markdown))


def body(table: ResultTable) -> list[list[str]]:
    return markdown_tables(table)[0][1:]


def text_of(changed: Cell) -> str:
    """Return the text of the cell of aa-gan's accuracy on MRPC, replaced by `changed`."""
    return body(with_cell(measured_table(), changed))[1][1]


def test_a_cell_is_mean_and_deviation_beside_the_published_number() -> None:
    soft, gan, ct = body(measured_table())
    assert soft == ["soft", "72.00 ± 2.00 (86.5)", "12.00 ± 2.00", "0.250", "2,000.0"]
    assert gan == ["aa-gan", "**82.00 ± 2.00** (87.5)", "22.00 ± 2.00†", "–", "3,000.0"]
    assert [unescaped(cell) for cell in ct] == [
        "aa-ct, λ = 1 & <b>_%",
        "76.00 ± 1.41, 2 of 3 [1]",
        "**7.00 ± 2.00**",
        "failed [1] (0.36)",
        "failed [2]",
    ]


def test_a_number_of_a_constant_prediction_is_marked() -> None:
    plain = measured_table()
    table = with_cell(plain, cell("gan", MRPC, ACCURACY, 0.8, 0.8, 0.8, is_constant=True))
    assert body(table)[1][1] == "80.00 ± 0.00°"
    for form in (to_markdown, to_text):
        assert ("the same for every row" in form(table), "the same for every row" in form(plain)) == (True, False)
    assert r"80.00 $\pm$ 0.00$^\circ$" in to_latex(table)


@pytest.mark.parametrize(
    ("comparison", "expected"),
    [
        (differs(0.1, SURVIVES), "**82.00 ± 2.00**"),
        (differs(-0.1, SURVIVES), "82.00 ± 2.00†"),
        (differs(0.1, NOISE), "82.00 ± 2.00"),
        (differs(0.1, 0.05), "82.00 ± 2.00"),
        (differs(0.1, None), "82.00 ± 2.00"),
        (Comparison(0.1, None, 0.001, None, "a test", 3), "82.00 ± 2.00"),
        (None, "82.00 ± 2.00"),
    ],
)
def test_bold_is_what_survives_for_the_better(comparison: Comparison | None, expected: str) -> None:
    assert text_of(cell("gan", MRPC, ACCURACY, 0.80, 0.82, 0.84, comparison=comparison)) == expected


def test_where_lower_is_better_a_rise_is_for_the_worse() -> None:
    table = measured_table()
    fall = cell("gan", MRPC, ECE, 0.05, comparison=differs(-0.1, SURVIVES))
    assert body(table)[1][2] == "22.00 ± 2.00†"
    assert body(with_cell(table, fall))[1][2] == "**5.00**"


def test_a_cell_without_values_is_a_dash_whether_or_not_its_row_was_published() -> None:
    assert text_of(cell("gan", MRPC, ACCURACY, state="missing", published="87.5")) == "– (87.5)"
    assert text_of(cell("gan", MRPC, ACCURACY, state="missing")) == "–"
    assert text_of(cell("gan", MRPC, ACCURACY, 0.8, state="missing")) == "80.00, 1 of 3"


def test_each_reason_is_told_once_with_its_number() -> None:
    text = to_text(measured_table())
    assert text.count(OUT_OF_MEMORY) == 1
    assert f"[1] failed: {OUT_OF_MEMORY}" in text.splitlines()
    assert "[2] failed: another reason" in text.splitlines()


@pytest.mark.parametrize("render", [to_markdown, to_text, to_latex])
def test_the_sources_the_notes_and_the_marks_are_explained(render: Callable[[ResultTable], str]) -> None:
    text = render(measured_table())
    for words in (
        "MiniLM, 3 seeds",
        "Zhang et al. 2021; ALBERT-base",
        "is 0.01",
        "better than soft",
        "worse than soft",
    ):
        assert words in text


def test_a_row_with_another_baseline_than_soft_names_it() -> None:
    (own,) = (one for one in CELLS if one.row == "aa-gan" and one.heading == "MRPC accuracy (%)")
    cells = [replace(one, names_baseline=True, baseline="other") if one is own else one for one in CELLS]
    table = replace(measured_table(), cells=cells)
    text = to_text(table)
    assert "better than soft (or the row that its difference is to)" in text
    assert "worse than soft (or the row that its difference is to)" in text
    assert "aa-gan, to other" in text
    assert "other" in set(table.frame()["compared_with"])


def test_only_marks_that_occur_are_explained() -> None:
    plain = [replace(one, comparison=None, state="done", values={1: 0.7}, published=None) for one in CELLS]
    text = to_text(replace(measured_table(), cells=plain, published_source=None, notes=[]))
    for words in ("±", "†", "better", "not measured", "failed", "2 of 3", "ublished"):
        assert words not in text


def test_a_table_in_which_nothing_survives_says_so() -> None:
    noisy = [replace(one, comparison=one.comparison and differs(0.1)) for one in CELLS]
    text = to_markdown(replace(measured_table(), cells=noisy))
    assert "No number is significantly better than that of soft" in text
    assert "**" not in text


def test_differences_come_with_interval_p_and_test() -> None:
    header, *lines = markdown_tables(measured_table())[1]
    assert header == ["row", "column", "difference", "95 % interval", "detectable", "p", "corrected p", "seeds", "test"]
    shown = [[unescaped(cell) for cell in line] for line in lines]
    assert len(shown) == sum(one.comparison is not None for one in CELLS)
    assert shown[0] == [
        *("aa-gan", "MRPC accuracy (%)", "+10.00 points", "[+9.00, +11.00]", "1.40", "0.002", "0.012", "3", "a test"),
    ]
    assert shown[2][2:4] == ["+1,000.0 MiB", "[+1,000.0, +1,000.0]"]
    assert shown[-1][2:7] == ["−5.00 points", "[−6.00, −4.00]", "1.40", "< 0.001", "< 0.001"]


def test_what_cannot_be_tested_is_a_dash() -> None:
    untested = Comparison(0.1, None, None, None, "one seed: nothing is tested", 1)
    table = with_cell(measured_table(), cell("gan", MRPC, ACCURACY, 0.8, comparison=untested))
    assert markdown_tables(table)[1][1][3:7] == ["–", "–", "–", "–"]


def test_markdown_escapes_what_would_be_markup() -> None:
    text = to_markdown(measured_table())
    assert "<script>" not in text
    assert {len(line) for table in markdown_tables(measured_table()) for line in table} == {5, 9}
    assert unescaped(text).count(NASTY) == 3


def test_csv_gives_the_numbers_back() -> None:
    lines = list(csv.DictReader(io.StringIO(to_csv(measured_table()))))
    assert len(lines) == len(CELLS)
    for line, one in zip(lines, CELLS, strict=True):
        factor = 100 if line["unit"] == "percent" else 1
        assert line["state"] == one.state
        assert line["published"] == (one.published or "")
        assert line["reason"] == (one.reason or "")
        assert int(line["seeds"]) == len(one.values)
        assert [float(value) for value in line["values"].split()] == pytest.approx([factor * v for v in one.numbers])
        if one.values:
            assert float(line["mean"]) == pytest.approx(factor * sum(one.numbers) / len(one.numbers))
        else:
            assert line["mean"] == ""
        if one.comparison is not None and one.comparison.interval is not None:
            assert float(line["difference"]) == pytest.approx(factor * one.comparison.difference)
            assert float(line["difference_low"]) == pytest.approx(factor * one.comparison.interval.low)


def test_pandas_reads_the_csv_as_the_frame() -> None:
    frame = measured_table().frame()
    numbers = list(frame.select_dtypes("number"))
    assert {"mean", "standard_deviation", "seeds", "difference", "p_value", "corrected_p_value"} <= set(numbers)
    read = pd.read_csv(
        io.StringIO(to_csv(measured_table())), keep_default_na=False, na_values=dict.fromkeys(numbers, "")
    )
    pd.testing.assert_frame_equal(read[numbers], frame[numbers], check_dtype=False)
    words = ["row", "column", "measure", "reason", "test", "runs"]
    assert read[words].to_numpy().tolist() == frame[words].fillna("").to_numpy().tolist()
    assert frame["verdict"].dropna().to_list() == ["better", "worse", "better"]


def test_latex_is_balanced_and_escaped() -> None:
    text = to_latex(measured_table())
    assert text.isascii()
    nested = [("begin", "table"), ("begin", "tabular"), ("end", "tabular"), ("end", "table")]
    assert re.findall(r"\\(begin|end)\{(\w+)\}", text) == nested * 2
    comment, *lines = text.splitlines()
    assert comment.startswith("%")
    for line in lines:
        bare = LATEX_MARKUP.sub("", line.removesuffix(r"\\"))
        assert not set(bare) & set("%#_^~<>\\"), line
        assert bare.count("{") == bare.count("}"), line
        assert bare.count("$") % 2 == 0, line


def test_latex_rows_have_a_cell_for_each_column() -> None:
    first, second = re.findall(r"\\midrule\n(.*?)\\bottomrule", to_latex(measured_table()), re.DOTALL)
    for rows, columns in ((first, 5), (second, 9)):
        for line in rows.strip().splitlines():
            assert len(re.findall(r"(?<!\\)&", line)) == columns - 1
    assert r"\textbf{82.00 $\pm$ 2.00} (87.5)" in first
    assert r"aa-ct, $\lambda$ = 1 \& \textless{}b\textgreater{}\_\%" in first


def test_the_terminal_marks_with_a_star() -> None:
    lines = to_text(measured_table()).splitlines()
    gan = next(line for line in lines if line.startswith("aa-gan"))
    assert re.split(r" {2,}", gan) == ["aa-gan", "82.00 ± 2.00 * (87.5)", "22.00 ± 2.00†", "–", "3,000.0"]


def test_all_forms_are_written_and_replace_older_ones(tmp_path: Path) -> None:
    (tmp_path / "table1.md").write_text("old")
    paths = write_table(tmp_path, measured_table())
    assert [path.name for path in paths] == [f"table1{suffix}" for suffix in (".md", ".csv", ".tex", ".html", ".png")]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert paths[0].read_text(encoding="utf-8") == to_markdown(measured_table())
    assert paths[2].read_text(encoding="utf-8") == to_latex(measured_table())


def test_without_matplotlib_the_picture_alone_is_missing(without_matplotlib, tmp_path: Path, caplog) -> None:
    (tmp_path / "table1.png").write_bytes(b"old")
    paths = write_table(tmp_path, measured_table())
    assert [path.suffix for path in paths] == [".md", ".csv", ".tex", ".html"]
    assert sorted(tmp_path.iterdir()) == sorted(paths)
    assert "alignattn[plots]" in caplog.text


def test_a_page_numbers_runs_without_a_seed() -> None:
    table = measured_table()
    runs = {digest: replace(run, facts={"passes": "20"}) for digest, run in table.runs.items()}
    assert ', done">1</a>' in to_html(replace(table, runs=runs))


def test_nothing_breaks_out_of_a_page() -> None:
    page = to_html(measured_table())
    assert page.startswith("<!doctype html>")
    assert "<script>alert" not in page
    assert page.count("&lt;script&gt;alert") > len(CELLS)


def test_an_undefined_score_names_its_run():
    runs = cell("soft", MRPC, ACCURACY).runs
    scores = {1: 0.5, 2: None, 3: 0.7}
    runs = {seed: replace(one, results={"pearson": scores[seed]}) for seed, one in runs.items()}
    found = filled(cell("soft", MRPC, ACCURACY, runs=runs), ["pearson"])
    assert found.state == "failed"
    assert found.reason.startswith(f"{runs[2].title}: pearson is undefined")
