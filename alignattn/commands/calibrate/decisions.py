"""Decisions of a calibrated run: tables and charts for choosing a coverage or an error rate."""

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from alignattn.evaluation.calibration.decisions import (
    ABSTENTION_DELTA,
    SET_SCORES,
    Calibration,
    rows_needed,
)
from alignattn.reports.charts import line_chart
from alignattn.utils.text_tables import render_table

COVERAGES = (0.8, 0.9, 0.95, 0.99)
ERROR_RATES = (0.01, 0.02, 0.05, 0.1, 0.2)
"""Levels of the tables; `predict` accepts any."""

DRAWN_COVERAGES = np.arange(0.5, 1, 0.01).round(2)


def render_decisions(calibration: Calibration) -> list[str]:
    """Return the tables of sets and of abstention as lines.

    The held-out rows determine quantiles and thresholds. The sets are counted on the other half, as on new rows.
    """
    rows = len(calibration.held_out.labels)
    sets = []
    for coverage in COVERAGES:
        for method in SET_SCORES:
            if rows < (needed := rows_needed(coverage)):
                sets.append([f"{coverage:g}", method, f"needs {needed} held-out rows", "", ""])
                continue
            sizes, is_covered = _sets(calibration, coverage, method)
            cells = [f"{100 * is_covered.mean():.1f}", f"{sizes.mean():.2f}", f"{100 * (sizes == 1).mean():.1f}"]
            sets.append([f"{coverage:g}", method, *cells])
    answers = []
    for max_error in ERROR_RATES:
        found = calibration.abstention(max_error)
        cells = ["none", "0.0", ""]
        if found is not None:
            shares = found.answered / found.rows, found.errors / found.answered
            cells = [f"{found.threshold:.4g}", *(f"{100 * share:.1f}" for share in shares)]
        answers.append([f"{max_error:g}", *cells])
    certainty = f"{100 * (1 - ABSTENTION_DELTA):g} %"
    return [
        "",
        f"Sets (--coverage) from {rows} held-out rows, counted on the {len(calibration.fitted.labels)} rows that "
        "fitted the temperature:",
        render_table(["coverage", "sets", "with the label %", "classes per set", "one class %"], sets),
        "",
        f"Answers (--max_error) on the held-out rows. With {certainty} certainty over their draw, at most max_error of "
        "the answers to new rows are wrong; wrong % is an estimate:",
        render_table(["max_error", "confidence from", "answered %", "wrong %"], answers),
        "",
    ]


def decision_charts(calibration: Calibration) -> dict[str, Markup]:
    """Return charts of risk and of coverage against the share of answered rows, by caption.

    A set answers a row if it has one class. The curves of sets start at a coverage equal to the accuracy, at least 0.5:
    only above the accuracy does more coverage cost answers.
    """
    candidates = [one for one in calibration.candidates() if one.answered]
    shares = [one.answered / one.rows for one in candidates]
    risk = {
        "wrong": list(zip(shares, [one.errors / one.answered for one in candidates], strict=True)),
        f"{100 * (1 - ABSTENTION_DELTA):g} % bound at each confidence alone": list(
            zip(shares, [one.bound for one in candidates], strict=True)
        ),
    }
    lowest = max(DRAWN_COVERAGES[0], 1 - calibration.held_out.is_wrong.mean())
    rows = len(calibration.held_out.labels)
    wanted = [one for one in DRAWN_COVERAGES.tolist() if one >= lowest and rows_needed(one) <= rows]
    coverage = {}
    for method in SET_SCORES:
        found = [_sets(calibration, one, method) for one in wanted]
        coverage[method] = [(float((sizes == 1).mean()), float(covered.mean())) for sizes, covered in found]
    charts = {
        "answers above a confidence": (risk, "risk: share of wrong answers"),
        "sets of one class": (coverage, "coverage: share of sets with the label"),
    }
    return {
        caption: line_chart(lines, title=caption, x_label="share of rows answered", y_label=label)
        for caption, (lines, label) in charts.items()
        if any(lines.values())
    }


def _sets(calibration: Calibration, coverage: float, method: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The size of each row's set, for the rows that fitted the temperature, and whether it contains the label."""
    rows = calibration.fitted
    is_member = SET_SCORES[method](rows.probabilities, rows.uniform) <= calibration.quantile(coverage, method)
    return is_member.sum(axis=1), np.asarray(is_member[np.arange(len(rows.labels)), rows.labels])
