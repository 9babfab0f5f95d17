"""The labelled rows that a run is calibrated on, predicted by its model in the way of `alignattn predict`."""

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from alignattn.commands.calibrate import CalibrateOptions
from alignattn.evaluation.calibration.measures import find_bad_rows
from alignattn.evaluation.calibration.predictions import Predictions
from alignattn.finetuning.examples import input_numbers, row_digests
from alignattn.finetuning.predictor import Batching, load_predictor, probabilities_of
from alignattn.finetuning.results import read_result
from alignattn.finetuning.rows import load_run_rows
from alignattn.finetuning.run_files import DATA_FILE
from alignattn.finetuning.run_folder import FinishedRun, changed_rows, check_has_classes, read_finished_run, warn_plain
from alignattn.tasks.rows import Rows, load_more_user_rows, load_task_files
from alignattn.tasks.task import TRAIN, LabelledTask
from alignattn.tasks.task_types import ImageClassification, TextClassification
from alignattn.utils.bad_rows import BadRow, list_bad_rows, numbers_without
from alignattn.utils.digests import digest_of
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.json_records import read_json
from alignattn.utils.progress import progress


@dataclass(frozen=True)
class LabelledSplit:
    """Rows to calibrate on.

    Attributes:
        path: the rows' file, or the run's folder.
        name: name of the split.
        dataset: the usable, labelled rows.
        trained: the rows that the run was trained on; None if they cannot be read.
        bad: the unusable rows.
        left_out: indices, from 0, of the bad and the unlabelled rows.
    """

    path: Path
    name: str
    dataset: datasets.Dataset
    trained: datasets.Dataset | None
    bad: Sequence[BadRow] = ()
    left_out: Collection[int] = ()


def predict_calibration_rows(options: CalibrateOptions) -> Predictions:
    """Return a run's predictions for the rows that it is calibrated on.

    Raises:
        AlignAttnError: if the run's task has no classes, or if rows are bad, have other classes or were trained on.
    """
    run = read_finished_run(Path(str(options.run)), "--run")
    check_has_classes(run.task, "`calibrate --run`")
    assert isinstance(run.task, LabelledTask)
    warn_plain(run.folder, run.options)
    split = _file_rows(run, options) if options.rows else _own_rows(run, options)
    origin, columns = str(split.path), run.task.input_columns
    numbers = np.array(list(islice(numbers_without(split.left_out), len(split.dataset))))
    trained = set() if split.trained is None else set(row_digests(split.trained, columns))
    is_new = np.array([digest not in trained for digest in row_digests(split.dataset, columns)])
    problems = {int(number): "the run was trained on it" for number in numbers[~is_new]}
    trained_on = list_bad_rows(problems, origin, len(split.dataset), skip=options.skip_bad_rows)
    dataset = split.dataset.select(np.flatnonzero(is_new))
    predictor = load_predictor(run)
    encoded = predictor.encode(dataset.select_columns(list(columns)))
    with progress("predict", len(dataset), "row") as bar:
        probabilities = probabilities_of(predictor.answers(encoded, Batching(), bar.update))
    labels = np.asarray(dataset[run.task.label_column][:])
    found = find_bad_rows(probabilities, labels)
    list_bad_rows({int(numbers[is_new][row]): text for row, text in found.items()}, origin, len(dataset), skip=None)
    labels = labels.astype(np.int64)
    present = set(labels.tolist())
    if absent := [name for number, name in enumerate(run.task.labels) if number not in present]:
        print(f"no calibration row has the label {listing(absent)}: nothing is guaranteed for it", file=sys.stderr)
    bad = sorted([*split.bad, *trained_on], key=lambda one: one.row)
    inputs = input_numbers(encoded.rows, columns)
    return Predictions(split.path, probabilities, labels, np.full(len(labels), split.name), bad, inputs)


def _own_rows(run: FinishedRun, options: CalibrateOptions) -> LabelledSplit:
    """The rows of one of the run's evaluation splits."""
    changed = changed_rows(run.options, run.folder)
    if changed is not None:
        raise AlignAttnError(
            f"{changed} has changed since {run.folder} was made, and the run may have trained on its rows: give new "
            "labelled rows with --rows"
        )
    rows, result = load_run_rows(run.options), read_result(run.folder)
    if not rows.evaluation:
        raise AlignAttnError(f"{run.folder} has no evaluation rows: give labelled rows with --rows")
    name = options.fit_on or next(iter(rows.evaluation))
    if name not in rows.evaluation:
        raise AlignAttnError(f"--fit_on: there is no split {name!r}: choose one of {', '.join(rows.evaluation)}")
    assert result is not None
    if result.best is not None or result.stopped_at is not None:
        print(
            f"{run.folder}: its checkpoint was selected on evaluation rows, so new rows may be harder than split "
            f"{name!r}: only other rows (--rows) give guarantees",
            file=sys.stderr,
        )
    return LabelledSplit(run.folder, name, rows.evaluation[name], rows.train)


def _file_rows(run: FinishedRun, options: CalibrateOptions) -> LabelledSplit:
    """The rows of the file given with `--rows`."""
    path = Path(str(options.rows))
    reading: Any = {"encoding": run.options.data.encoding, "skip_bad_rows": options.skip_bad_rows}
    if run.options.task is None:
        assert isinstance(run.task, TextClassification | ImageClassification)
        read: Rows[Any] = load_more_user_rows(run.task, path, **reading)
    else:
        read = load_task_files(run.task, path, None, **reading)
    assert read.train is not None
    try:
        changed = changed_rows(run.options, run.folder)
        if changed is not None:
            raise AlignAttnError(f"{changed} has changed since {run.folder} was made")
        trained = load_run_rows(run.options).train
    except (AlignAttnError, OSError) as error:
        trained = None
        written = read_json(run.folder / DATA_FILE)
        if digest_of(path) in [digest for name, digest in written.items() if TRAIN in name]:
            raise AlignAttnError(f"--rows {path} was trained on: give other rows") from error
        print(f"not checked whether the rows were trained on: {one_line(error)}", file=sys.stderr)
    return LabelledSplit(path, path.stem, read.train, trained, read.bad_rows.get(TRAIN, ()), read.left_out[TRAIN])
