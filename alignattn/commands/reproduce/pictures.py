"""The pictures of a run on a table's page, drawn once: drawing takes longer than all else of a finished table."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from alignattn import __version__
from alignattn.finetuning.logs import training_curves_svg
from alignattn.reports.diagrams import reliability_svg
from alignattn.reports.plots.drawing import can_draw
from alignattn.reports.result_reader import UNREADABLE, RunReport
from alignattn.utils.files import write_json
from alignattn.utils.json_records import read_json

PICTURES_FILE = "pictures.json"
"""File of a run's folder: its pictures by title, and the SHA-256 of their content."""

CURVES_TITLE, RELIABILITY_TITLE = "Training curves", "Reliability diagram"


def pictures_of(report: RunReport, folder: Path) -> Mapping[str, str]:
    """Return the SVG documents of a run by title: training curves, a reliability diagram.

    Args:
        report: of the run.
        folder: of the run; what was drawn is kept there, as long as the report and the version are the same.

    Without matplotlib there are those alone that are kept.
    """
    content = hashlib.sha256(json.dumps([__version__, list(map(dict, report.log_history))], sort_keys=True).encode())
    for numbers in report.probabilities or ():
        content.update(numbers.tobytes())
    digest = content.hexdigest()
    with suppress(*UNREADABLE):
        kept = read_json(folder / PICTURES_FILE)
        if kept["of"] == digest:
            return dict(kept["by_title"])
    if not can_draw():
        return {}
    curves = training_curves_svg(report.log_history)
    pictures = {} if curves is None else {CURVES_TITLE: curves}
    if report.probabilities is not None:
        pictures[RELIABILITY_TITLE] = reliability_svg(*report.probabilities)
    # A table is also made of runs in a folder that takes no file.
    with suppress(OSError):
        write_json(folder / PICTURES_FILE, {"of": digest, "by_title": pictures})
    return pictures
