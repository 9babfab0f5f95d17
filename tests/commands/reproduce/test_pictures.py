"""The pictures of a run of a table are drawn once, and again where the run tells something else."""

import json
from dataclasses import replace

import numpy as np
import pytest

from alignattn.commands.reproduce.pictures import CURVES_TITLE, PICTURES_FILE, RELIABILITY_TITLE, pictures_of
from alignattn.reports.result_reader import RunReport

REPORT = RunReport(
    log_history=[{"step": step, "epoch": step / 3, "loss": 1 / step} for step in (1, 2, 3)],
    probabilities=(np.array([[0.8, 0.2], [0.4, 0.6], [0.9, 0.1]]), np.array([0, 1, 1])),
)


@pytest.fixture
def marked(tmp_path):
    """A run's folder whose kept pictures bear a mark that nothing draws."""
    pictures_of(REPORT, tmp_path)
    kept = json.loads((tmp_path / PICTURES_FILE).read_text())
    kept["by_title"][CURVES_TITLE] = "<svg>marked</svg>"
    (tmp_path / PICTURES_FILE).write_text(json.dumps(kept))
    return tmp_path


def test_what_was_drawn_is_drawn_no_second_time(marked):
    pictures = pictures_of(REPORT, marked)
    assert pictures[CURVES_TITLE] == "<svg>marked</svg>"
    assert pictures[RELIABILITY_TITLE].startswith("<svg")


@pytest.mark.parametrize(
    "report",
    [
        replace(REPORT, log_history=[{"step": 1, "epoch": 1.0, "loss": 0.5}]),
        replace(REPORT, probabilities=(REPORT.probabilities[0], np.array([0, 0, 1]))),
    ],
    ids=["other curves", "other labels"],
)
def test_a_run_that_tells_something_else_is_drawn_anew(report, marked):
    assert pictures_of(report, marked)[CURVES_TITLE] != "<svg>marked</svg>"
    assert pictures_of(report, marked) == json.loads((marked / PICTURES_FILE).read_text())["by_title"]


def test_a_damaged_file_is_written_anew(tmp_path):
    (tmp_path / PICTURES_FILE).write_text('{"of": ')
    pictures = pictures_of(REPORT, tmp_path)
    assert pictures == json.loads((tmp_path / PICTURES_FILE).read_text())["by_title"]


def test_a_folder_that_takes_no_file_takes_no_picture_away(tmp_path):
    (tmp_path / "run").write_text("a file where a folder is wanted")
    assert pictures_of(REPORT, tmp_path / "run").keys() == {CURVES_TITLE, RELIABILITY_TITLE}


def test_what_nothing_is_told_of_has_no_pictures(tmp_path):
    assert pictures_of(RunReport(), tmp_path) == {}


def test_without_matplotlib_nothing_is_drawn_or_kept(without_matplotlib, tmp_path):
    assert pictures_of(REPORT, tmp_path) == {}
    assert not (tmp_path / PICTURES_FILE).exists()


def test_without_matplotlib_what_was_drawn_is_shown(marked, without_matplotlib):
    assert pictures_of(REPORT, marked)[CURVES_TITLE] == "<svg>marked</svg>"
