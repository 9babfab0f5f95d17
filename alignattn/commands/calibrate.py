"""`alignattn calibrate`: calibration of saved predictions or of a run, before and after temperature scaling."""

import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.evaluation.estimates import Estimate, EstimatesByState
from alignattn.finetuning.results import CALIBRATION_FOLDER, CALIBRATION_ROWS_FILE, DATA_FILE, read_result
from alignattn.finetuning.run_folder import (
    FinishedRun,
    changed_rows_file,
    check_finished,
    read_finished_run,
    warn_plain,
)
from alignattn.tasks import ImageClassification, LabelledTask, TextClassification
from alignattn.tasks.names import TRAIN
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, listing, one_line, plural
from alignattn.utils.files import check_encoding, read_json
from alignattn.utils.options import Count, InputDir, Options, OutputDir, Seed, option
from alignattn.utils.paths import digest_of, input_file_like, input_path

if TYPE_CHECKING:
    import datasets
    import numpy as np
    from markupsafe import Markup
    from numpy.typing import NDArray

    from alignattn.evaluation.calibration.decisions import Calibration
    from alignattn.evaluation.calibration.predictions import Predictions
    from alignattn.evaluation.calibration.scaling import Temperature
    from alignattn.reports.charts import ScaledPredictions
    from alignattn.tasks.rows import Rows
    from alignattn.utils.errors import BadRow

CALIBRATION_FILE = "calibration.json"
ONE_SPLIT = "a run is calibrated on one split"


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `alignattn calibrate`."""

    files: tuple[str, ...] = option(
        (),
        "Parquet files of predictions.",
        positional=True,
        metavar="PREDICTIONS",
        place=input_file_like("predictions*.parquet"),
    )
    run: InputDir | None = option(
        None,
        f"A run to calibrate for `predict`; the output goes to its folder {CALIBRATION_FOLDER}.",
        excludes={"files": "a run predicts its rows itself", "split": ONE_SPLIT, "in_domain": ONE_SPLIT},
    )
    rows: str | None = option(
        None,
        "Labelled rows that the run has not seen (default: its first evaluation split, or that of --fit_on).",
        metavar="FILE",
        place=input_path,
        requires=("run",),
        excludes={"fit_on": "the file is one split"},
    )
    encoding: str | None = option(
        None, "Encoding of the file of --rows (default: utf-8).", metavar="NAME", requires=("rows",), rare=True
    )
    output_dir: OutputDir = option("calibration", f"Folder for {CALIBRATION_FILE} and report.html.")
    # More bins and resamples take minutes and change nothing.
    num_bins: Count = option(10, "Bins of the calibration errors and of the diagrams.", high=1000)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all).")
    fit_on: str | None = option(
        None, "Fit a temperature on half of this split; report the other half.", metavar="SPLIT"
    )
    in_domain: str | None = option(
        None, "Also report the AUROC of confidence, this split against each other one.", metavar="SPLIT"
    )
    resamples: Count = option(1000, "Bootstrap resamples per interval.", high=100_000)
    seed: Seed = option(42, "Seed of the halves and of the resamples.")
    label_column: str = option("label", "Column of class numbers.")
    probabilities_column: str = option("probabilities", "Column with a list of probabilities per row.")
    skip_bad_rows: bool = option(False, "Skip and list bad rows.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_encoding(self.encoding)
        if self.run is None:
            if not self.files:
                raise AlignAttnError("nothing to calibrate: give files of predictions, or --run RUN")
            return
        check_finished(Path(self.run), "--run")
        if Path(self.output_dir) != Path(self.run) / CALIBRATION_FOLDER:
            raise AlignAttnError(f"--output_dir: `predict` reads the calibration in {self.run}: leave it out")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the output folder of a run."""
        run = values.get("run")
        return {} if run is None else {"output_dir": str(Path(run) / CALIBRATION_FOLDER)}


COMMAND = Command(
    "calibrate",
    "measure the calibration of predictions, or calibrate a run for decisions",
    CalibrateOptions,
    run="alignattn.commands.calibrate:calibrate",
    examples=(
        "alignattn calibrate runs/mrpc/predictions.parquet --fit_on validation --output_dir calibration",
        "alignattn calibrate --run runs/mrpc",
    ),
)


@dataclass(frozen=True)
class ReportedSplit:
    """The reported rows of one split of a file.

    Attributes:
        name: name of the split, after that of the file if there are several files.
        file: the file of the split.
        split: name of the split in the file.
        rows: predictions of the rows, as saved and after temperature scaling.
        fitted: the fitted temperature; None if none was requested.
    """

    name: str
    file: Path
    split: str
    rows: "ScaledPredictions"
    fitted: "Temperature | None"


CalibrationReport = tuple[ReportedSplit, EstimatesByState]


def calibrate(options: CalibrateOptions) -> list[CalibrationReport]:
    """Report the calibration of saved predictions or of a run: print a table, and write `calibration.json` and a page.

    Returns:
        Each reported split and its figures, in the order of the table.
    """
    import numpy as np

    from alignattn.evaluation.calibration import apply_temperature
    from alignattn.evaluation.calibration.decisions import Calibration, LabelledRows
    from alignattn.evaluation.calibration.predictions import read_predictions
    from alignattn.evaluation.calibration.scaling import fit_temperatures
    from alignattn.evaluation.calibration.summary import interval_notes
    from alignattn.finetuning.decisions import uniform_of, write_run_calibration
    from alignattn.reports.charts import percent_text
    from alignattn.reports.pages import REPORT_FILE, Section, write_report
    from alignattn.utils.console import counted, render_table
    from alignattn.utils.files import write_json
    from alignattn.utils.paths import check_free, unfinished

    folder, fit_on = Path(options.output_dir), options.fit_on
    if options.run is None:
        paths = [Path(name) for name in options.files]
        for index, path in enumerate(paths):
            if path.resolve() in [earlier.resolve() for earlier in paths[:index]]:
                raise AlignAttnError(f"{path} is given twice: give each file once")
        columns = {"label_column": options.label_column, "probabilities_column": options.probabilities_column}
        files = [read_predictions(path, **columns, skip_bad_rows=options.skip_bad_rows) for path in paths]
    elif (folder / CALIBRATION_ROWS_FILE).is_file():
        raise AlignAttnError(f"{folder} exists: the run is calibrated already; remove the folder to calibrate it again")
    else:
        files = [predict_calibration_rows(options)]
        (fit_on,) = files[0].split_names()
    files = [file.distinct(options.seed) for file in files]
    splits = list(dict.fromkeys(name for file in files for name in file.split_names()))
    for split in options.split or ():
        if split not in splits:
            raise AlignAttnError(f"--split: there is no split {split!r}: choose among {', '.join(splits)}")
    temperatures = fit_temperatures(files, fit_on, options.seed)
    reported_splits = _reported_splits(files, temperatures, options.split)
    check_free(folder, [CALIBRATION_FILE, REPORT_FILE])
    # The in-domain rows for a split are those of its file, or else the only ones.
    in_domain = {reported.file: reported for reported in reported_splits if reported.split == options.in_domain}
    out_of_domain = (
        []
        if options.in_domain is None
        else [reported for reported in reported_splits if reported.split != options.in_domain]
    )
    if options.in_domain is not None and not in_domain:
        names = ", ".join(dict.fromkeys(reported.split for reported in reported_splits))
        raise AlignAttnError(f"--in_domain: split {options.in_domain!r} is not reported: choose among {names}")
    if len(in_domain) > 1 and any(reported.file not in in_domain for reported in out_of_domain):
        raise AlignAttnError(
            f"--in_domain: several files have a split {options.in_domain!r}, and others do not: give those files "
            "separately"
        )
    resampling = {"resamples": options.resamples, "seed": options.seed}
    reports = [
        (reported, reported.rows.estimates(num_bins=options.num_bins, **resampling))
        for reported in counted(reported_splits, "bootstrap", len(reported_splits), "split")
    ]
    # AUROC of confidence, in-domain rows against the rows of each reported split, by split and state.
    shifts: dict[str, Any] = {}
    for reported in out_of_domain:
        reference = in_domain.get(reported.file) or next(iter(in_domain.values()))
        shifts[reported.name] = reference.rows.shifts_to(reported.rows, **resampling)
    header, rows = figure_cells(reports)
    intervals = interval_notes("Below each figure", options.num_bins, options.resamples)
    decision_lines: list[str] = []
    with unfinished(folder):
        sections = [Section(title="Figures", notes=intervals, header=header, rows=rows)]
        for reported, summary in reports:
            sections.append(Section(title=reported.name, charts=reported.rows.charts(summary, options.num_bins)))
        if options.run is not None:
            file, temperature = files[0], temperatures[0]
            assert temperature is not None
            assert file.inputs is not None
            scaled, uniform = apply_temperature(file.probabilities, temperature.value), uniform_of(file.inputs)
            is_fitted = np.isin(np.arange(len(file.labels)), temperature.rows)
            halves = (LabelledRows(scaled[half], file.labels[half], uniform[half]) for half in (is_fitted, ~is_fitted))
            calibration = Calibration(temperature.value, *halves)
            decision_lines, charts = render_decisions(calibration), decision_charts(calibration)
            held_out = f"{len(calibration.held_out.labels)} held-out rows"
            sections.append(Section(title="What is answered", notes=[held_out], charts=charts))
        title = f"Calibration of {', '.join(reported.name for reported, _ in reports)}"
        write_report(folder / REPORT_FILE, title, {}, sections)
        write_json(folder / CALIBRATION_FILE, _content(files, temperatures, reports, shifts, options))
        if options.run is not None:
            write_run_calibration(folder, calibration)
    shift_lines = [
        f"AUROC of the largest probability, {options.in_domain} against {name}, {state}: "
        f"{percent_text(estimate, unit=' %')}; 50 % is uninformative"
        for name, estimates in shifts.items()
        for state, estimate in estimates.items()
    ]
    fitted = {temperature.file: temperature for temperature in temperatures if temperature}
    caption = [
        *intervals,
        "Brier: sum over the classes, 0 to 2. NLL: nats.",
        *(
            f"{file.repeated} of the {file.repeated + len(file.labels)} rows of {file.path} repeat another's input: "
            "one row of each input, drawn by --seed, counts."
            for file in files
            if file.repeated
        ),
        *(temperature.describe() for temperature in fitted.values()),
        *(
            f"left out of {file.path}: {plural(len(file.bad_rows), 'bad row')}, listed in {CALIBRATION_FILE}; the "
            f"first, {file.bad_rows[0]}"
            for file in files
            if file.bad_rows
        ),
    ]
    print("\n".join([render_table(header, rows), "", *shift_lines, *caption, *decision_lines, f"written to {folder}"]))
    return reports


def _reported_splits(
    files: "Sequence[Predictions]", temperatures: "Sequence[Temperature | None]", wanted: Sequence[str] | None
) -> list[ReportedSplit]:
    """Return the rows of each requested split, without those that its temperature was fitted on."""
    import numpy as np

    from alignattn.reports.charts import ScaledPredictions

    # Several files are named by their paths, without the leading and trailing parts that all share.
    names = [list(file.path.resolve().with_suffix("").parts) for file in files]
    for end in (0, -1):
        while all(len(name) > 1 for name in names) and len({name[end] for name in names}) == 1:
            for name in names:
                name.pop(end)
    reported_splits = []
    for file, name, temperature in zip(files, names, temperatures, strict=True):
        is_reported = np.ones(len(file.labels), dtype=bool)
        if temperature and temperature.file == file.path:
            is_reported[temperature.rows] = False
        for split in file.split_names():
            if wanted is None or split in wanted:
                rows = is_reported & (file.splits == split)
                probabilities, labels = file.probabilities[rows], file.labels[rows]
                scaled = ScaledPredictions({"before": probabilities}, labels)
                if temperature:
                    scaled = ScaledPredictions.by_temperature(probabilities, labels, temperature.value)
                called = split if len(files) == 1 else f"{'/'.join(name)}: {split}"
                reported_splits.append(ReportedSplit(called, file.path, split, scaled, temperature))
    return reported_splits


def figure_cells(reports: Sequence[CalibrationReport]) -> tuple[list[str], list[list[str]]]:
    """Return the header, and two lines per split and state: the figures, and their intervals below."""
    from alignattn.evaluation.calibration import FIGURES
    from alignattn.reports.charts import interval_text

    has_temperature = any(reported.fitted for reported, _ in reports)
    lines = []
    for reported, summary in reports:
        for state, estimates in summary.items():
            value = reported.fitted.value if reported.fitted and state == "after" else 1
            start = [reported.name, *([f"{value:.3f}"] if has_temperature else []), str(len(reported.rows.labels))]
            numbers, intervals = [], []
            for name, figure in FIGURES.items():
                digits, factor = (1, 100) if figure.is_share else (3, 1)
                numbers.append(f"{factor * estimates[name].value:.{digits}f}")
                intervals.append(interval_text(estimates[name], digits, factor))
            lines += [[*start, *numbers], [*([""] * len(start)), *intervals]]
    temperature = ["temperature"] if has_temperature else []
    return ["split", *temperature, "rows", *(figure.heading for figure in FIGURES.values())], lines


def _content(
    files: "Sequence[Predictions]",
    temperatures: "Sequence[Temperature | None]",
    reports: Sequence[CalibrationReport],
    shifts: Mapping[str, Mapping[str, Estimate]],
    options: CalibrateOptions,
) -> dict[str, Any]:
    """Return the content of `calibration.json`; shares are fractions, not percentages."""
    import alignattn
    from alignattn.utils.paths import publishable, published_names

    settings = {name: value for name, value in asdict(options).items() if name not in ("files", "output_dir")}
    paths = [file.path for file in files]
    names = dict(zip(paths, published_names(list(map(str, paths))), strict=True))
    contents = []
    for file, temperature in zip(files, temperatures, strict=True):
        splits: dict[str, Any] = {}
        for reported, summary in reports:
            if reported.file == file.path:
                fitted, shift = reported.fitted, shifts.get(reported.name, {})
                splits[reported.split] = {
                    "rows": len(reported.rows.labels),
                    # The temperature was fitted on the other half of the split.
                    "is_other_half": fitted is not None
                    and (fitted.file, fitted.split) == (reported.file, reported.split),
                    **{state: {name: asdict(one) for name, one in ones.items()} for state, ones in summary.items()},
                    **({"shift_auroc": {state: asdict(one) for state, one in shift.items()}} if shift else {}),
                }
        contents.append(
            {
                "file": names[file.path],
                "temperature": temperature and temperature.to_dict(names[temperature.file]),
                "bad_rows": [bad.to_dict() for bad in file.bad_rows],
                "repeated_rows": file.repeated,
                "splits": splits,
            }
        )
    return {"alignattn": alignattn.__version__, "settings": publishable(settings), "files": contents}


def render_decisions(calibration: "Calibration") -> list[str]:
    """Return the tables of sets and of abstention as lines, at some levels; `predict` accepts any.

    The held-out rows determine quantiles and thresholds. The sets are counted on the other half, as on new rows.
    """
    from alignattn.evaluation.calibration.decisions import ABSTENTION_DELTA, SET_SCORES, answers_needed, rows_needed
    from alignattn.utils.console import render_table

    rows = len(calibration.held_out.labels)
    sets = []
    for coverage in (0.8, 0.9, 0.95, 0.99):
        for method in SET_SCORES:
            if rows < (needed := rows_needed(coverage)):
                sets.append([f"{coverage:g}", method, f"needs {needed} held-out rows", "", ""])
                continue
            sizes, is_covered = _sets(calibration, coverage, method)
            cells = [f"{100 * is_covered.mean():.1f}", f"{sizes.mean():.2f}", f"{100 * (sizes == 1).mean():.1f}"]
            sets.append([f"{coverage:g}", method, *cells])
    answers = []
    for max_error in (0.01, 0.02, 0.05, 0.1, 0.2):
        found = calibration.abstention(max_error)
        needed = answers_needed(max_error)
        cells = ["none" if rows >= needed else f"none: needs {needed} held-out rows", "0.0", ""]
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


def decision_charts(calibration: "Calibration") -> "dict[str, Markup]":
    """Return charts of risk and of coverage against the share of answered rows, by caption.

    A set answers a row if it has one class. The curves of sets start at a coverage equal to the accuracy, at least 0.5:
    only above the accuracy does more coverage cost answers.
    """
    import numpy as np

    from alignattn.evaluation.calibration.decisions import ABSTENTION_DELTA, SET_SCORES, rows_needed
    from alignattn.reports.charts import line_chart

    candidates = [candidate for candidate in calibration.candidates() if candidate.answered]
    shares = [candidate.answered / candidate.rows for candidate in candidates]
    risk = {
        "wrong": list(zip(shares, [candidate.errors / candidate.answered for candidate in candidates], strict=True)),
        f"{100 * (1 - ABSTENTION_DELTA):g} % bound at each confidence alone": list(
            zip(shares, [candidate.bound for candidate in candidates], strict=True)
        ),
    }
    levels = np.arange(0.5, 1, 0.01).round(2)
    lowest = max(levels[0], 1 - calibration.held_out.is_wrong.mean())
    rows = len(calibration.held_out.labels)
    wanted = [level for level in levels.tolist() if level >= lowest and rows_needed(level) <= rows]
    coverage = {}
    for method in SET_SCORES:
        sets = [_sets(calibration, level, method) for level in wanted]
        coverage[method] = [(float((sizes == 1).mean()), float(covered.mean())) for sizes, covered in sets]
    charts = {
        "answers above a confidence": (risk, "risk: share of wrong answers"),
        "sets of one class": (coverage, "coverage: share of sets with the label"),
    }
    return {
        caption: line_chart(lines, title=caption, x_label="share of rows answered", y_label=label)
        for caption, (lines, label) in charts.items()
        if any(lines.values())
    }


def _sets(calibration: "Calibration", coverage: float, method: str) -> "tuple[NDArray[np.int64], NDArray[np.bool_]]":
    """Return the size of each row's set, for the rows that fitted the temperature, and whether it has the label."""
    import numpy as np

    from alignattn.evaluation.calibration.decisions import SET_SCORES

    rows = calibration.fitted
    is_member = SET_SCORES[method](rows.probabilities, rows.uniform) <= calibration.quantile(coverage, method)
    return is_member.sum(axis=1), np.asarray(is_member[np.arange(len(rows.labels)), rows.labels])


@dataclass(frozen=True)
class LabelledSplit:
    """Rows to calibrate a run on.

    Attributes:
        path: the rows' file, or the run's folder.
        name: name of the split.
        dataset: the usable, labelled rows.
        of_run: the rows that the run was trained and evaluated on; None if they cannot be read.
        bad: the unusable rows.
        left_out: indices, from 0, of the bad and the unlabelled rows.
    """

    path: Path
    name: str
    dataset: "datasets.Dataset"
    of_run: "Rows[Any] | None"
    bad: "Sequence[BadRow]" = ()
    left_out: Collection[int] = ()


def predict_calibration_rows(options: CalibrateOptions) -> "Predictions":
    """Return a run's predictions for the rows that it is calibrated on, in the way of `alignattn predict`.

    Raises:
        AlignAttnError: if the run's task has no classes, or if rows are bad, have other classes or were trained on.
    """
    # Imported here, because torch is slow to import, and saved predictions do not need it.
    import numpy as np

    from alignattn.evaluation.calibration.measures import find_bad_rows
    from alignattn.evaluation.calibration.predictions import Predictions
    from alignattn.finetuning.examples import input_numbers, row_digests
    from alignattn.finetuning.predictor import Batching, load_predictor, probabilities_of
    from alignattn.utils.console import progress
    from alignattn.utils.errors import list_bad_rows, numbers_without

    run = read_finished_run(Path(str(options.run)), "--run")
    run.check_has_classes("`calibrate --run`")
    assert isinstance(run.task, LabelledTask)
    warn_plain(run.folder, run.options)
    split = _file_rows(run, options) if options.rows else _own_rows(run, options)
    origin = str(split.path)
    row_numbers = np.array(list(islice(numbers_without(split.left_out), len(split.dataset))))
    trained_digests = set() if split.of_run is None else set(row_digests(split.of_run.train, run.task))
    digests = list(row_digests(split.dataset, run.task))
    is_new = np.array([digest not in trained_digests for digest in digests])
    overlap_problems = {int(number): "the run was trained on it" for number in row_numbers[~is_new]}
    trained_on = list_bad_rows(overlap_problems, origin, len(split.dataset), skip=options.skip_bad_rows)
    result = read_result(run.folder)
    assert result is not None
    if split.of_run is not None and (result.best is not None or result.stopped_at is not None):
        evaluated = chain.from_iterable(row_digests(rows, run.task) for rows in split.of_run.evaluation.values())
        if not set(digests).isdisjoint(evaluated):
            print(
                f"{run.folder}: its checkpoint was selected on rows of {split.name!r}, so new rows may be harder: only "
                "other rows (--rows) give guarantees",
                file=sys.stderr,
            )
    dataset = split.dataset.select(np.flatnonzero(is_new))
    predictor = load_predictor(run)
    encoded = predictor.encode(dataset.select_columns(list(run.task.input_columns)))
    with progress("predict", len(dataset), "row") as bar:
        probabilities = probabilities_of(predictor.answers(encoded, Batching(), bar.update))
    labels = np.asarray(dataset[run.task.label_column][:])
    problems = find_bad_rows(probabilities, labels)
    list_bad_rows(
        {int(row_numbers[is_new][row]): text for row, text in problems.items()}, origin, len(dataset), skip=None
    )
    labels = labels.astype(np.int64)
    present_labels = set(labels.tolist())
    if absent := [name for label, name in enumerate(run.task.labels) if label not in present_labels]:
        print(f"no calibration row has the label {listing(absent)}: nothing is guaranteed for it", file=sys.stderr)
    bad_rows = sorted([*split.bad, *trained_on], key=lambda bad_row: bad_row.row)
    inputs = input_numbers(encoded.rows, run.task)
    return Predictions(split.path, probabilities, labels, np.full(len(labels), split.name), bad_rows, inputs)


def _own_rows(run: FinishedRun, options: CalibrateOptions) -> LabelledSplit:
    """Return the rows of one of the run's evaluation splits."""
    from alignattn.finetuning.rows import load_run_rows

    changed = changed_rows_file(run.options, run.folder)
    if changed is not None:
        raise AlignAttnError(
            f"{changed} has changed since {run.folder} was made, and the run may have trained on its rows: give new "
            "labelled rows with --rows"
        )
    rows = load_run_rows(run.options)
    if not rows.evaluation:
        raise AlignAttnError(f"{run.folder} has no evaluation rows: give labelled rows with --rows")
    name = options.fit_on or next(iter(rows.evaluation))
    if name not in rows.evaluation:
        raise AlignAttnError(f"--fit_on: there is no split {name!r}: choose one of {', '.join(rows.evaluation)}")
    return LabelledSplit(run.folder, name, rows.evaluation[name], rows)


def _file_rows(run: FinishedRun, options: CalibrateOptions) -> LabelledSplit:
    """Return the rows of the file given with `--rows`."""
    from alignattn.finetuning.rows import load_run_rows
    from alignattn.tasks.rows import load_more_user_rows, load_task_files

    path = Path(str(options.rows))
    reading: Any = {"encoding": options.encoding, "skip_bad_rows": options.skip_bad_rows}
    if run.options.task is None:
        assert isinstance(run.task, TextClassification | ImageClassification)
        read: Any = load_more_user_rows(run.task, path, **reading)
    else:
        read = load_task_files(run.task, path, None, **reading)
    of_run: Rows[Any] | None = None
    try:
        changed = changed_rows_file(run.options, run.folder)
        if changed is not None:
            raise AlignAttnError(f"{changed} has changed since {run.folder} was made")
        of_run = load_run_rows(run.options)
    except (AlignAttnError, OSError) as error:
        written = read_json(run.folder / DATA_FILE)
        if digest_of(path) in [digest for name, digest in written.items() if TRAIN in name]:
            raise AlignAttnError(f"--rows {path} was trained on: give other rows") from error
        print(f"not checked whether the rows were trained on: {one_line(error)}", file=sys.stderr)
    return LabelledSplit(path, path.stem, read.train, of_run, read.bad_rows.get(TRAIN, ()), read.left_out[TRAIN])
