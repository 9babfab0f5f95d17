"""The labelled rows that a run is calibrated on, predicted by its model as `alignattn predict` does."""

import sys
from collections.abc import Collection, Sequence
from itertools import islice
from pathlib import Path

import datasets
import numpy as np

from alignattn.commands.calibrate import CalibrateOptions
from alignattn.evaluation.calibration.decisions import Array
from alignattn.evaluation.calibration.measures import find_bad_rows
from alignattn.evaluation.calibration.predictions import Predictions
from alignattn.finetuning.decisions import row_digests, uniform_of
from alignattn.finetuning.predictor import Batching, load_predictor, probabilities_of
from alignattn.finetuning.results import read_result
from alignattn.finetuning.rows import load_run_rows
from alignattn.finetuning.run_files import DATA_FILE
from alignattn.finetuning.run_folder import FinishedRun, check_has_classes, read_finished_run, warn_plain
from alignattn.tasks.rows import load_task_files
from alignattn.tasks.task import TRAIN, LabelledTask
from alignattn.utils.bad_rows import BadRow, list_bad_rows, numbers_without
from alignattn.utils.digests import digest_of
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.json_records import read_json
from alignattn.utils.progress import progress


def predict_calibration_rows(options: CalibrateOptions) -> tuple[Predictions, Array]:
    """Return the predictions of a run for the rows that it is calibrated on, and the uniform numbers of these, `[N]`.

    Raises:
        AlignAttnError: if the run's task has no classes, or the rows are bad, of other classes, or trained on.
    """
    run = read_finished_run(Path(str(options.run)), "--run")
    check_has_classes(run.task, "`calibrate --run`")
    assert isinstance(run.task, LabelledTask)
    warn_plain(run.folder, run.options)
    path, split, dataset, numbers, bad = _file_rows(run, options) if options.rows else _own_rows(run, options)
    predictor = load_predictor(run)
    encoded = predictor.encode(dataset.select_columns(list(run.task.input_columns)))
    with progress("predict", len(dataset), "row") as bar:
        probabilities = probabilities_of(predictor.answers(encoded, Batching(), bar.update))
    labels = np.asarray(dataset[run.task.label_column][:])
    problems = {numbers[row]: problem for row, problem in find_bad_rows(probabilities, labels).items()}
    list_bad_rows(problems, str(path), len(dataset), skip=None)
    labels = labels.astype(np.int64)
    present = set(labels.tolist())
    if absent := [name for number, name in enumerate(run.task.labels) if number not in present]:
        print(f"no calibration row has the label {listing(absent)}: nothing is guaranteed for it", file=sys.stderr)
    predictions = Predictions(path, probabilities, labels, np.full(len(labels), split), bad)
    return predictions, uniform_of(encoded.rows, run.task.input_columns)


_Read = tuple[Path, str, datasets.Dataset, Sequence[int], Sequence[BadRow]]
"""Where rows are from, the name of their split, the good ones and their numbers from 0, and the bad ones."""


def _own_rows(run: FinishedRun, options: CalibrateOptions) -> _Read:
    """The rows of a split that the run was evaluated on."""
    rows, result = load_run_rows(run.options), read_result(run.folder)
    if not rows.evaluation:
        raise AlignAttnError(f"{run.folder} has no evaluation rows: give labelled rows with --rows")
    split = options.fit_on or next(iter(rows.evaluation))
    if split not in rows.evaluation:
        raise AlignAttnError(f"--fit_on: there is no split {split!r}: choose one of {', '.join(rows.evaluation)}")
    assert result is not None
    if result.best is not None or result.stopped_at is not None:
        print(
            f"{run.folder}: evaluation rows chose its checkpoint, so new rows may be harder than split {split!r}: only "
            "other rows (--rows) give guarantees",
            file=sys.stderr,
        )
    return _untrained(run, options, run.folder, split, rows.evaluation[split], rows.train)


def _file_rows(run: FinishedRun, options: CalibrateOptions) -> _Read:
    """The rows of the user's file."""
    path = Path(str(options.rows))
    encoding, skip = run.options.data.encoding, options.skip_bad_rows
    read = load_task_files(run.task, path, None, skip_bad_rows=skip, encoding=encoding)
    assert read.train is not None
    try:
        trained = load_run_rows(run.options).train
    except (AlignAttnError, OSError) as error:
        trained = None
        written = read_json(run.folder / DATA_FILE)
        if digest_of(path) in [digest for name, digest in written.items() if TRAIN in name]:
            raise AlignAttnError(f"--rows {path} was trained on: give other rows") from error
        print(f"not checked whether the rows were trained on: {one_line(error)}", file=sys.stderr)
    bad, left_out = read.bad_rows.get(TRAIN, ()), read.left_out[TRAIN]
    return _untrained(run, options, path, path.stem, read.train, trained, bad, left_out)


def _untrained(
    run: FinishedRun,
    options: CalibrateOptions,
    path: Path,
    split: str,
    dataset: datasets.Dataset,
    trained: datasets.Dataset | None,
    bad: Sequence[BadRow] = (),
    left_out: Collection[int] = (),
) -> _Read:
    """The rows whose inputs are not those of a training row; others are bad."""
    numbers = list(islice(numbers_without(left_out), len(dataset)))
    known = set() if trained is None else set(row_digests(trained, run.task.input_columns))
    seen = {row for row, found in enumerate(row_digests(dataset, run.task.input_columns)) if found in known}
    problems = {numbers[row]: "the run was trained on it" for row in seen}
    trained_on = list_bad_rows(problems, str(path), len(dataset), skip=options.skip_bad_rows)
    kept = [row for row in range(len(dataset)) if row not in seen]
    if seen:
        dataset = dataset.select(kept)
    everything = sorted([*bad, *trained_on], key=lambda one: one.row)
    return path, split, dataset, [numbers[row] for row in kept], everything
