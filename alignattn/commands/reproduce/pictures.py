"""The pictures of a run on a table's page, drawn once: drawing takes longer than all else of a finished table."""

import hashlib
import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from alignattn import __version__
from alignattn.finetuning.logs import training_curves_svg
from alignattn.reports.diagrams import reliability_svg
from alignattn.reports.result_reader import RunReport
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json
from alignattn.utils.json_records import read_record

PICTURES_FILE = "pictures.json"
"""In the folder of a run that a table needs."""

CURVES_TITLE, RELIABILITY_TITLE = "Training curves", "Reliability diagram"


@dataclass(frozen=True)
class Pictures:
    """What was drawn of a run.

    Attributes:
        of: SHA-256 of what is drawn and of the version that draws it.
        by_title: SVG documents.
    """

    of: str
    by_title: Mapping[str, str] = field(default_factory=dict)


def pictures_of(report: RunReport, folder: Path) -> Mapping[str, str]:
    """Return the SVG documents of a run by title: training curves, a reliability diagram.

    Args:
        report: of the run.
        folder: of the run; what was drawn is kept there, as long as the report is the same.
    """
    digest = _digest(report)
    with suppress(AlignAttnError, OSError):
        kept = read_record(folder / PICTURES_FILE, Pictures, "draw")
        if kept is not None and kept.of == digest:
            return kept.by_title
    pictures = Pictures(digest, _drawn(report))
    # A full disk, or another's folder, takes no table from its reader.
    with suppress(OSError):
        write_json(folder / PICTURES_FILE, asdict(pictures))
    return pictures.by_title


def _drawn(report: RunReport) -> dict[str, str]:
    curves = training_curves_svg(report.log_history)
    pictures = {} if curves is None else {CURVES_TITLE: curves}
    if report.probabilities is not None:
        pictures[RELIABILITY_TITLE] = reliability_svg(*report.probabilities)
    return pictures


def _digest(report: RunReport) -> str:
    content = hashlib.sha256(json.dumps([__version__, list(map(dict, report.log_history))], sort_keys=True).encode())
    for numbers in report.probabilities or ():
        content.update(numbers.tobytes())
    return content.hexdigest()
