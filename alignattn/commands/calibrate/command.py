"""How far confidence lies from accuracy in saved predictions, split by split, before and after temperature scaling."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import alignattn
from alignattn.commands.calibrate import CALIBRATION_FILE, CalibrateOptions
from alignattn.evaluation.calibration import (
    FIGURES,
    Estimate,
    EstimatesByState,
    apply_temperature,
    shift_auroc,
    shift_auroc_interval,
    summarise,
)
from alignattn.evaluation.calibration.predictions import Predictions, all_splits, read_predictions
from alignattn.evaluation.calibration.scaling import Temperature, fit_temperatures
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL
from alignattn.reports.diagrams import coverage_panel, reliability_panels
from alignattn.reports.plots import draw_reliability, draw_risk_coverage, write_figure
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished, write_json
from alignattn.utils.progress import counted
from alignattn.utils.publishing import published_names
from alignattn.utils.text_tables import render_table


@dataclass(frozen=True)
class ReportedSplit:
    """The rows of one split of a file that are reported.

    Attributes:
        name: of the split, after that of the file where there are several.
        file: that it is from.
        split: its name in the file.
        probabilities: `[N, C]`, by what was done to them: `before`, and `after` temperature scaling where fitted, and
            by the names of what else was.
        labels: `[N]`.
        temperature: that of `after`.
    """

    name: str
    file: Path
    split: str
    probabilities: Mapping[str, NDArray[np.float64]]
    labels: NDArray[np.int64]
    temperature: Temperature | None

    @property
    def is_other_half(self) -> bool:
        """Whether the temperature was fitted on the other half of the split."""
        fitted = self.temperature
        return fitted is not None and (fitted.file, fitted.split) == (self.file, self.split)

    @property
    def picture(self) -> str:
        """The file name of its reliability diagram."""
        return f"reliability-{self._in_file_names}.png"

    @property
    def curves(self) -> str:
        """The file name of its risk-coverage curves."""
        return f"risk-coverage-{self._in_file_names}.png"

    @property
    def _in_file_names(self) -> str:
        return re.sub(r"[^\w.]+", "-", self.name)


CalibrationReport = tuple[ReportedSplit, EstimatesByState]
ShiftsByName = Mapping[str, Mapping[str, Estimate]]
"""Of each reported split by its name and by state: the AUROC of its rows' confidence against the domain's."""


def calibrate(arguments: CalibrateOptions) -> list[CalibrationReport]:
    """Report the calibration of saved predictions: print a table, write `calibration.json` and reliability diagrams.

    Returns:
        Each split of each file and its figures, in the order of the table.
    """
    files = [
        read_predictions(
            path,
            label_column=arguments.label_column,
            probabilities_column=arguments.probabilities_column,
            skip_bad_rows=arguments.skip_bad_rows,
        )
        for path in _distinct_paths(arguments.files)
    ]
    _check_splits(files, arguments.split)
    temperatures = fit_temperatures(files, arguments.fit_on, arguments.seed, arguments.also_fit)
    parts = [
        part
        for file, name, temperature in zip(files, _short_names(files), temperatures, strict=True)
        for part in _parts(file, name, temperature, arguments.split)
    ]
    folder = Path(arguments.output_dir)
    _check_pictures(parts)
    check_free(folder, [CALIBRATION_FILE, *(name for part in parts for name in (part.picture, part.curves))])
    domains = _domains(parts, arguments.in_domain)
    reports = [(part, _summary(part, arguments)) for part in counted(parts, "bootstrap", len(parts), "split")]
    shifts = {part.name: _shift(domains[part.name], part, arguments) for part in parts if part.name in domains}
    with unfinished(folder):
        for part, summary in reports:
            draw_split(folder, part, summary, arguments.num_bins)
        write_json(folder / CALIBRATION_FILE, _content(files, temperatures, reports, shifts, arguments))
    print(
        "\n".join(
            [
                render_reports(reports),
                "",
                *_told_shifts(shifts, arguments),
                *_caption(files, temperatures, arguments),
                f"written to {folder}",
            ]
        )
    )
    return reports


def render_reports(reports: Sequence[CalibrationReport]) -> str:
    """Return two lines a split and state: the figures, and their intervals below."""
    has_temperature = any(part.temperature for part, _ in reports)
    lines = []
    for part, summary in reports:
        for state, estimates in summary.items():
            start = [part.name, *([_scaling(part, state)] if has_temperature else []), str(len(part.labels))]
            lines.append([*start, *(_number(name, estimates[name].value) for name in FIGURES)])
            lines.append([*([""] * len(start)), *(_interval(name, estimates[name]) for name in FIGURES)])
    header = [
        "split",
        *(["temperature"] if has_temperature else []),
        "rows",
        *(figure.heading for figure in FIGURES.values()),
    ]
    return render_table(header, lines)


def draw_split(folder: Path, part: ReportedSplit, summary: EstimatesByState, num_bins: int) -> None:
    """Draw a split's reliability diagram and risk-coverage curves, as saved and by all that was fitted."""
    temperature = part.temperature.value if part.temperature else None
    title = f"{part.name}, {len(part.labels)} rows"
    panels = reliability_panels(part.probabilities, part.labels, temperature, num_bins)
    write_figure(draw_reliability(panels, title=title), folder / part.picture)
    panel = coverage_panel("risk over coverage", part.probabilities, part.labels, summary, temperature)
    write_figure(draw_risk_coverage([panel], title=title), folder / part.curves)


def _scaling(part: ReportedSplit, state: str) -> str:
    """What stands below `temperature`: 1 for none, and a name for what is none."""
    temperature = part.temperature.value if part.temperature else 1.0
    return {"before": f"{1:.3f}", "after": f"{temperature:.3f}"}.get(state, state)


def _distinct_paths(names: Sequence[str]) -> list[Path]:
    paths = [Path(name) for name in names]
    for index, path in enumerate(paths):
        if path.resolve() in [earlier.resolve() for earlier in paths[:index]]:
            raise AlignAttnError(f"{path} is given twice: give each file once")
    return paths


def _short_names(files: Sequence[Predictions]) -> list[str | None]:
    """What tells the files apart: their paths without the folders and the file name that all share."""
    if len(files) == 1:
        return [None]
    paths = [list(file.path.resolve().with_suffix("").parts) for file in files]
    for end in (0, -1):
        while all(len(parts) > 1 for parts in paths) and len({parts[end] for parts in paths}) == 1:
            for parts in paths:
                parts.pop(end)
    return ["/".join(parts) for parts in paths]


def _parts(
    file: Predictions, file_name: str | None, temperature: Temperature | None, wanted: Sequence[str] | None
) -> list[ReportedSplit]:
    """The reported rows of each wanted split: all, but for those that the temperature was fitted on."""
    is_reported = np.ones(len(file.labels), dtype=bool)
    if temperature and temperature.file == file.path:
        is_reported[temperature.rows] = False
    parts = []
    for split in file.split_names():
        if wanted is None or split in wanted:
            rows = is_reported & (file.splits == split)
            probabilities = {"before": file.probabilities[rows]}
            if temperature:
                probabilities["after"] = apply_temperature(file.probabilities[rows], temperature.value)
                for other, scaling in temperature.others.items():
                    probabilities[other] = scaling.apply(file.probabilities[rows])
            name = split if file_name is None else f"{file_name}: {split}"
            parts.append(ReportedSplit(name, file.path, split, probabilities, file.labels[rows], temperature))
    return parts


def _check_splits(files: Sequence[Predictions], wanted: Sequence[str] | None) -> None:
    known = all_splits(files)
    for split in wanted or ():
        if split not in known:
            raise AlignAttnError(f"--split: there is no split {split!r}: choose among {', '.join(known)}")


def _check_pictures(parts: Sequence[ReportedSplit]) -> None:
    pictures = [part.picture for part in parts]
    for part in parts:
        if pictures.count(part.picture) > 1:
            raise AlignAttnError(f"two splits would both be drawn in {part.picture}: choose one of them with --split")


def _summary(part: ReportedSplit, arguments: CalibrateOptions) -> EstimatesByState:
    options = {"num_bins": arguments.num_bins, "resamples": arguments.resamples, "seed": arguments.seed}
    return {state: summarise(rows, part.labels, **options) for state, rows in part.probabilities.items()}


def _domains(parts: Sequence[ReportedSplit], split: str | None) -> dict[str, ReportedSplit]:
    """Of each part out of the domain by its name the part in it: that of its own file, or the only one."""
    own = {part.file: part for part in parts if part.split == split}
    if split is None:
        return {}
    if not own:
        names = ", ".join(dict.fromkeys(part.split for part in parts))
        raise AlignAttnError(f"--in_domain: split {split!r} is not reported: choose among {names}")
    others = [part for part in parts if part.split != split]
    if len(own) > 1 and any(part.file not in own for part in others):
        raise AlignAttnError(
            f"--in_domain: several files have a split {split!r}, and another has none: give them apart"
        )
    only = next(iter(own.values()))
    return {part.name: own.get(part.file, only) for part in others}


def _shift(domain: ReportedSplit, part: ReportedSplit, arguments: CalibrateOptions) -> dict[str, Estimate]:
    estimates = {}
    for state in domain.probabilities:
        if state not in part.probabilities:
            continue
        sides = domain.probabilities[state], part.probabilities[state]
        interval = shift_auroc_interval(*sides, resamples=arguments.resamples, seed=arguments.seed)
        estimates[state] = Estimate(shift_auroc(*sides), interval)
    return estimates


def _told_shifts(shifts: ShiftsByName, arguments: CalibrateOptions) -> list[str]:
    lines = []
    for name, estimates in shifts.items():
        for state, one in estimates.items():
            ends = f" ({100 * one.interval.low:.1f}–{100 * one.interval.high:.1f})" if one.interval else ""
            lines.append(
                f"AUROC of the largest probability, {arguments.in_domain} against {name}, {state}: "
                f"{100 * one.value:.1f} %{ends}; 50 % tells nothing"
            )
    return lines


def _number(name: str, value: float) -> str:
    return f"{100 * value:.1f}" if FIGURES[name].is_share else f"{value:.3f}"


def _interval(name: str, estimate: Estimate) -> str:
    if estimate.interval is None:
        return ""
    return f"{_number(name, estimate.interval.low)}–{_number(name, estimate.interval.high)}"


def _content(
    files: Sequence[Predictions],
    temperatures: Sequence[Temperature | None],
    reports: Sequence[CalibrationReport],
    shifts: ShiftsByName,
    arguments: CalibrateOptions,
) -> dict[str, Any]:
    """What `calibration.json` holds; shares are fractions, not percentages."""
    settings = {name: value for name, value in asdict(arguments).items() if name not in ("files", "output_dir")}
    paths = [file.path for file in files]
    names = dict(zip(paths, published_names(list(map(str, paths))), strict=True))
    contents = [
        {
            "file": names[file.path],
            "temperature": temperature and temperature.to_dict(names[temperature.file]),
            "bad_rows": [asdict(bad) for bad in file.bad_rows],
            "splits": {
                part.split: _split_content(part, summary, shifts.get(part.name, {}))
                for part, summary in reports
                if part.file == file.path
            },
        }
        for file, temperature in zip(files, temperatures, strict=True)
    ]
    return {"alignattn": alignattn.__version__, "settings": settings, "files": contents}


def _split_content(part: ReportedSplit, summary: EstimatesByState, shift: Mapping[str, Estimate]) -> dict[str, Any]:
    figures = {
        state: {name: asdict(estimate) for name, estimate in estimates.items()} for state, estimates in summary.items()
    }
    told = {"shift_auroc": {state: asdict(estimate) for state, estimate in shift.items()}} if shift else {}
    return {
        "rows": len(part.labels),
        "is_other_half": part.is_other_half,
        "picture": part.picture,
        "curves": part.curves,
        **figures,
        **told,
    }


def _caption(
    files: Sequence[Predictions], temperatures: Sequence[Temperature | None], arguments: CalibrateOptions
) -> list[str]:
    fitted = {temperature.file: temperature for temperature in temperatures if temperature}
    skipped = [file for file in files if file.bad_rows]
    return [
        f"Below each figure its {CONFIDENCE_LEVEL:.0%} bootstrap interval, {arguments.resamples} resamples of rows. "
        f"Calibration errors: {arguments.num_bins} bins;",
        "noise makes them larger, which their intervals (method basic) allow for: they may lie below their figure,",
        "and on few rows they are too short.",
        "Brier: sum over the classes, 0 to 2. NLL: nats.",
        *(temperature.describe() for temperature in fitted.values()),
        *(
            f"left out of {file.path}: {len(file.bad_rows)} bad row(s), listed in {CALIBRATION_FILE}; the first, row "
            f"{file.bad_rows[0].row}: {file.bad_rows[0].problem}"
            for file in skipped
        ),
    ]
