"""Calibration of saved predictions or of a run, split by split, before and after temperature scaling."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import alignattn
from alignattn.commands.calibrate import CALIBRATION_FILE, CalibrateOptions
from alignattn.commands.calibrate.decisions import decision_charts, render_decisions
from alignattn.evaluation.calibration import FIGURES, Estimate, EstimatesByState, apply_temperature
from alignattn.evaluation.calibration.decisions import Calibration, LabelledRows
from alignattn.evaluation.calibration.predictions import Predictions, all_splits, read_predictions
from alignattn.evaluation.calibration.scaling import Temperature, fit_temperatures
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL
from alignattn.finetuning.decisions import uniform_of, write_run_calibration
from alignattn.finetuning.run_files import CALIBRATION_ROWS_FILE
from alignattn.reports.diagrams import ScaledPredictions, interval_text, percent_text
from alignattn.reports.report import REPORT_FILE, Section, write_report
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished, write_json
from alignattn.utils.progress import counted
from alignattn.utils.publishing import publishable, published_names
from alignattn.utils.text_tables import render_table

FIGURES_NOTE = f"Below each figure its {CONFIDENCE_LEVEL:.0%} bootstrap interval."


@dataclass(frozen=True)
class ReportedSplit:
    """The reported rows of one split of a file.

    Attributes:
        name: name of the split, after that of the file if there are several files.
        file: the file of the split.
        split: name of the split in the file.
        rows: predictions of the rows, as saved and after each fitted scaling.
        fitted: the fitted temperature; None if none was requested.
    """

    name: str
    file: Path
    split: str
    rows: ScaledPredictions
    fitted: Temperature | None

    @property
    def is_other_half(self) -> bool:
        """Whether the temperature was fitted on the other half of the split."""
        return self.fitted is not None and (self.fitted.file, self.fitted.split) == (self.file, self.split)


CalibrationReport = tuple[ReportedSplit, EstimatesByState]
ShiftsByName = Mapping[str, Mapping[str, Estimate]]
"""AUROC of confidence, in-domain rows against the rows of each reported split, by split and state."""


def calibrate(arguments: CalibrateOptions) -> list[CalibrationReport]:
    """Report the calibration of saved predictions or of a run: print a table, and write `calibration.json` and a page.

    Returns:
        Each reported split and its figures, in the order of the table.
    """
    folder, fit_on = Path(arguments.output_dir), arguments.fit_on
    if arguments.run is None:
        files = [
            read_predictions(
                path,
                label_column=arguments.label_column,
                probabilities_column=arguments.probabilities_column,
                skip_bad_rows=arguments.skip_bad_rows,
            )
            for path in _distinct_paths(arguments.files)
        ]
    else:
        _check_not_calibrated(folder)
        # Imported here, because it imports torch, which saved predictions do not need.
        from alignattn.commands.calibrate.run_rows import predict_calibration_rows

        predictions = predict_calibration_rows(arguments)
        files, (fit_on,) = [predictions], predictions.split_names()
    files = [file.distinct(arguments.seed) for file in files]
    _check_splits(files, arguments.split)
    temperatures = fit_temperatures(files, fit_on, arguments.seed, arguments.also_fit)
    parts = [
        part
        for file, name, temperature in zip(files, _short_names(files), temperatures, strict=True)
        for part in _parts(file, name, temperature, arguments.split)
    ]
    check_free(folder, [CALIBRATION_FILE, REPORT_FILE])
    domains = _domains(parts, arguments.in_domain)
    drawn = {"resamples": arguments.resamples, "seed": arguments.seed}
    reports = [
        (part, part.rows.estimates(num_bins=arguments.num_bins, **drawn))
        for part in counted(parts, "bootstrap", len(parts), "split")
    ]
    shifts = {
        part.name: domains[part.name].rows.shifts_to(part.rows, **drawn) for part in parts if part.name in domains
    }
    with unfinished(folder):
        sections = [Section(title=part.name, charts=part.rows.charts(one, arguments.num_bins)) for part, one in reports]
        decided: list[str] = []
        if arguments.run is not None:
            calibration = _calibration(files[0], temperatures[0])
            decided, charts = render_decisions(calibration), decision_charts(calibration)
            held_out = f"{len(calibration.held_out.labels)} held-out rows"
            sections.append(Section(title="What is answered", notes=[held_out], charts=charts))
        title = f"Calibration of {', '.join(part.name for part, _ in reports)}"
        header, rows = figure_cells(reports)
        figures = Section(title="Figures", notes=[FIGURES_NOTE], header=header, rows=rows)
        write_report(folder / REPORT_FILE, title, {}, [figures, *sections])
        write_json(folder / CALIBRATION_FILE, _content(files, temperatures, reports, shifts, arguments))
        if arguments.run is not None:
            write_run_calibration(folder, calibration)
    print(
        "\n".join(
            [
                render_table(header, rows),
                "",
                *_shift_lines(shifts, arguments),
                *_caption(files, temperatures, arguments),
                *decided,
                f"written to {folder}",
            ]
        )
    )
    return reports


def _check_not_calibrated(folder: Path) -> None:
    if (folder / CALIBRATION_ROWS_FILE).is_file():
        raise AlignAttnError(f"{folder} exists: the run is calibrated already; remove the folder to calibrate it again")


def _calibration(rows: Predictions, temperature: Temperature | None) -> Calibration:
    """Return the calibration of a run: its temperature and both halves of the rows."""
    assert temperature is not None
    assert rows.inputs is not None
    uniform = uniform_of(rows.inputs)
    scaled = apply_temperature(rows.probabilities, temperature.value)
    is_fitted = np.isin(np.arange(len(rows.labels)), temperature.rows)
    sides = (is_fitted, ~is_fitted)
    halves = (LabelledRows(scaled[side], rows.labels[side], uniform[side]) for side in sides)
    return Calibration(temperature.value, *halves)


def figure_cells(reports: Sequence[CalibrationReport]) -> tuple[list[str], list[list[str]]]:
    """Return the header, and two lines per split and state: the figures, and their intervals below."""
    has_temperature = any(part.fitted for part, _ in reports)
    lines = []
    for part, summary in reports:
        scalings = {"before": f"{1:.3f}", "after": f"{part.fitted.value if part.fitted else 1:.3f}"}
        for state, estimates in summary.items():
            scaling = [scalings.get(state, state)] if has_temperature else []
            start = [part.name, *scaling, str(len(part.rows.labels))]
            numbers, intervals = [], []
            for name, figure in FIGURES.items():
                digits, factor = (1, 100) if figure.is_share else (3, 1)
                numbers.append(f"{factor * estimates[name].value:.{digits}f}")
                intervals.append(interval_text(estimates[name], digits, factor))
            lines += [[*start, *numbers], [*([""] * len(start)), *intervals]]
    temperature = ["temperature"] if has_temperature else []
    return ["split", *temperature, "rows", *(figure.heading for figure in FIGURES.values())], lines


def _distinct_paths(names: Sequence[str]) -> list[Path]:
    paths = [Path(name) for name in names]
    for index, path in enumerate(paths):
        if path.resolve() in [earlier.resolve() for earlier in paths[:index]]:
            raise AlignAttnError(f"{path} is given twice: give each file once")
    return paths


def _short_names(files: Sequence[Predictions]) -> list[str | None]:
    """Names of the files: their paths without the leading and trailing parts that all share."""
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
    """The reported rows of each requested split, without the rows that the temperature was fitted on."""
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
            scaled = ScaledPredictions(probabilities, file.labels[rows], temperature.value if temperature else None)
            name = split if file_name is None else f"{file_name}: {split}"
            parts.append(ReportedSplit(name, file.path, split, scaled, temperature))
    return parts


def _check_splits(files: Sequence[Predictions], wanted: Sequence[str] | None) -> None:
    known = all_splits(files)
    for split in wanted or ():
        if split not in known:
            raise AlignAttnError(f"--split: there is no split {split!r}: choose among {', '.join(known)}")


def _domains(parts: Sequence[ReportedSplit], split: str | None) -> dict[str, ReportedSplit]:
    """The in-domain part for each other part, by the other's name: that of the same file, or else the only one."""
    own = {part.file: part for part in parts if part.split == split}
    if split is None:
        return {}
    if not own:
        names = ", ".join(dict.fromkeys(part.split for part in parts))
        raise AlignAttnError(f"--in_domain: split {split!r} is not reported: choose among {names}")
    others = [part for part in parts if part.split != split]
    if len(own) > 1 and any(part.file not in own for part in others):
        raise AlignAttnError(
            f"--in_domain: several files have a split {split!r}, and others do not: give those files separately"
        )
    only = next(iter(own.values()))
    return {part.name: own.get(part.file, only) for part in others}


def _shift_lines(shifts: ShiftsByName, arguments: CalibrateOptions) -> list[str]:
    return [
        f"AUROC of the largest probability, {arguments.in_domain} against {name}, {state}: "
        f"{percent_text(one, unit=' %')}; 50 % is uninformative"
        for name, estimates in shifts.items()
        for state, one in estimates.items()
    ]


def _content(
    files: Sequence[Predictions],
    temperatures: Sequence[Temperature | None],
    reports: Sequence[CalibrationReport],
    shifts: ShiftsByName,
    arguments: CalibrateOptions,
) -> dict[str, Any]:
    """The content of `calibration.json`; shares are fractions, not percentages."""
    own = {name: value for name, value in asdict(arguments).items() if name not in ("files", "output_dir")}
    paths = [file.path for file in files]
    names = dict(zip(paths, published_names(list(map(str, paths))), strict=True))
    contents = [
        {
            "file": names[file.path],
            "temperature": temperature and temperature.to_dict(names[temperature.file]),
            "bad_rows": [asdict(bad) for bad in file.bad_rows],
            "repeated_rows": file.repeated,
            "splits": {
                part.split: _split_content(part, summary, shifts.get(part.name, {}))
                for part, summary in reports
                if part.file == file.path
            },
        }
        for file, temperature in zip(files, temperatures, strict=True)
    ]
    return {"alignattn": alignattn.__version__, "settings": publishable(own), "files": contents}


def _split_content(part: ReportedSplit, summary: EstimatesByState, shift: Mapping[str, Estimate]) -> dict[str, Any]:
    figures = {
        state: {name: asdict(estimate) for name, estimate in estimates.items()} for state, estimates in summary.items()
    }
    shifts = {"shift_auroc": {state: asdict(estimate) for state, estimate in shift.items()}} if shift else {}
    return {
        "rows": len(part.rows.labels),
        "is_other_half": part.is_other_half,
        **figures,
        **shifts,
    }


def _caption(
    files: Sequence[Predictions], temperatures: Sequence[Temperature | None], arguments: CalibrateOptions
) -> list[str]:
    fitted = {temperature.file: temperature for temperature in temperatures if temperature}
    skipped = [file for file in files if file.bad_rows]
    return [
        f"Below each figure its {CONFIDENCE_LEVEL:.0%} bootstrap interval, {arguments.resamples} resamples of rows. "
        f"Calibration errors: {arguments.num_bins} bins;",
        "noise inflates them, and their intervals (basic bootstrap) correct for it, so they may lie below the value,",
        "and are too short on few rows.",
        "Brier: sum over the classes, 0 to 2. NLL: nats.",
        *(
            f"{file.repeated} of the {file.repeated + len(file.labels)} rows of {file.path} repeat another's input: "
            "one row of each input, drawn by --seed, counts."
            for file in files
            if file.repeated
        ),
        *(temperature.describe() for temperature in fitted.values()),
        *(
            f"left out of {file.path}: {len(file.bad_rows)} bad row(s), listed in {CALIBRATION_FILE}; the first, row "
            f"{file.bad_rows[0].row}: {file.bad_rows[0].problem}"
            for file in skipped
        ),
    ]
