"""Read and check the predictions that a program wrote, and score them as `finetune` scores its own."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import SUM_TOLERANCE
from alignattn.finetuning.examples import with_split
from alignattn.tasks.labelled import PREDICTION, measure
from alignattn.tasks.labels import parse_label
from alignattn.tasks.processor import row_numbers
from alignattn.tasks.reading import read_file
from alignattn.tasks.rows import Rows
from alignattn.tasks.task import PROBABILITIES, LabelledTask
from alignattn.utils.errors import AlignAttnError, listing, shown

ID = "id"
"""Column that numbers the rows to predict."""

FILES = ("predictions.csv", "predictions.jsonl", "predictions.parquet")


@dataclass(frozen=True)
class ScoredSplit:
    """A split's predictions.

    Attributes:
        table: the predictions in the format of `finetune`.
        metrics: the metrics of the task, by name.
    """

    table: pa.Table
    metrics: dict[str, float]


def read_predictions(folder: Path, rows: Rows[Any], said: str) -> dict[str, ScoredSplit]:
    """Return the predictions of each split, scored.

    Args:
        folder: the folder that the program wrote to.
        rows: the rows; the program predicts their evaluation splits, one after another.
        said: the end of the program's output, for the message if it wrote nothing.

    Raises:
        AlignAttnError: unless there is one prediction per row, each a class number or a score.
    """
    paths = [folder / name for name in FILES if (folder / name).is_file()]
    if len(paths) != 1:
        wrote = "none of" if not paths else "more than one of"
        raise AlignAttnError(f"the program wrote {wrote} {', '.join(FILES)} to {folder}{'' if paths else said}")
    (path,) = paths
    dataset, task = read_file(path), rows.task
    if missing := [name for name in (ID, PREDICTION) if name not in dataset.column_names]:
        raise AlignAttnError(f"{path} has no column {missing[0]!r} (it has {listing(dataset.column_names)})")
    count = sum(map(len, rows.evaluation.values()))
    order = _order(path, dataset[ID][:], count)
    predicted = _predicted(path, task, dataset[PREDICTION][:])[order]
    columns = {PREDICTION: predicted}
    if PROBABILITIES in dataset.column_names and not task.is_regression:
        columns[PROBABILITIES] = _probabilities(path, task, dataset[PROBABILITIES][:])[order]
    scored, start = {}, 0
    for split, evaluated in rows.evaluation.items():
        labels = np.asarray(evaluated[task.label_column][:])
        own = {name: values[start : start + len(labels)] for name, values in columns.items()}
        start += len(labels)
        table = {"row": row_numbers(evaluated), "label": pa.array(labels), PREDICTION: pa.array(own[PREDICTION])}
        if PROBABILITIES in own:
            table[PROBABILITIES] = pa.array(list(own[PROBABILITIES]))
        scored[split] = ScoredSplit(with_split(pa.table(table), split), measure(task, own[PREDICTION], labels))
    return scored


def _order(path: Path, ids: Sequence[Any], count: int) -> NDArray[np.int64]:
    """Return the index in the file of each row to predict."""
    places: dict[int, int] = {}
    for place, value in enumerate(ids):
        number = parse_label(value)
        if not isinstance(number, int | float) or number not in range(count):
            raise AlignAttnError(f"{path}: id {shown(value)} of row {place + 1} is not one of 0 to {count - 1}")
        if number in places:
            raise AlignAttnError(
                f"{path}: id {int(number)} occurs twice, in rows {places[int(number)] + 1} and {place + 1}"
            )
        places[int(number)] = place
    if len(places) < count:
        first = next(number for number in range(count) if number not in places)
        raise AlignAttnError(f"{path} lacks {count - len(places)} of the {count} rows, the first with id {first}")
    return np.array([places[number] for number in range(count)])


def _predicted(path: Path, task: LabelledTask, values: Sequence[Any]) -> NDArray[Any]:
    """Return the class numbers or scores in the order of the file."""
    expected = "a finite score" if task.is_regression else f"a class number from 0 to {task.num_labels - 1}"
    numbers = [parse_label(value, is_score=task.is_regression) for value in values]
    for place, number in enumerate(numbers):
        is_number = isinstance(number, int | float) and math.isfinite(number)
        if not is_number or not (task.is_regression or number in range(task.num_labels)):
            classes = "" if task.is_regression else f" ({listing(task.labels)})"
            raise AlignAttnError(
                f"{path}: prediction {shown(values[place])} of row {place + 1} is not {expected}{classes}"
            )
    return np.array(numbers, dtype=np.float64 if task.is_regression else np.int64)


def _probabilities(path: Path, task: LabelledTask, values: Sequence[Any]) -> NDArray[np.float64]:
    """Return the probabilities of all classes, `[N, C]`, in the order of the file."""
    rows = []
    for place, value in enumerate(values):
        try:
            row = np.asarray(json.loads(value) if isinstance(value, str) else value, dtype=np.float64)
        except (ValueError, TypeError):
            row = np.empty(0)
        # NaN fails every comparison.
        if row.shape != (task.num_labels,) or not ((row >= 0) & (abs(row.sum() - 1) <= SUM_TOLERANCE)).all():
            raise AlignAttnError(
                f"{path}: probabilities {shown(value)} of row {place + 1} are not a list of {task.num_labels} with the "
                "sum 1"
            )
        rows.append(row)
    return np.stack(rows)
