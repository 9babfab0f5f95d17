"""The predictions of a run, kept in its folder, the scores of their rows, and of slices: rows with the same value."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alignattn.evaluation.statistics.example_scores import (
    POSITIVE_CLASS,
    ExampleScores,
    example_scores,
    mean_of_ratios,
    mean_scores,
    ratio_of_sums,
)
from alignattn.finetuning.logs import STATE_FILE, read_log_history
from alignattn.finetuning.results import PREDICTIONS_FILE
from alignattn.tasks.answers.squad_metric import SquadVersion, exact_and_f1
from alignattn.tasks.labels import UNLABELLED, parse_label
from alignattn.tasks.metrics import METRICS, metric_of
from alignattn.tasks.names import PROBABILITIES
from alignattn.tasks.sequence_to_sequence import ERROR_RATE, EXACT
from alignattn.tasks.tags.entities import SCORES, score_parts
from alignattn.tasks.task import Task
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing
from alignattn.utils.parquet import read_parquet
from alignattn.utils.paths import digest_of

if TYPE_CHECKING:
    import datasets

NO_ANSWER_COLUMN = "no_answer_score"
"""A column that only predictions of question answering have."""
EDITS_COLUMN, LENGTH_COLUMN = "edits", "length"
"""Columns of generated sequences: edits to the nearest reference, and the reference's length."""

ROWS_AT_ONCE = 1024
"""Rows that are read at a time to make digests."""

INPUT_BITS = 64
"""Bits of an input's number."""

SHARES = ("accuracy", EXACT, "exact_match")
"""Metrics that are the share of right rows, multiples of one row."""


class NotKeptError(AlignAttnError):
    """Raised if the predictions of a finished run are missing, for example because only small files were kept."""


def write_predictions(folder: Path, tables: Sequence[pa.Table]) -> None:
    """Write the predictions of the splits to `predictions.parquet`."""
    with replacing(folder / PREDICTIONS_FILE) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary)


def input_numbers(dataset: "datasets.Dataset", task: Task) -> NDArray[np.uint64]:
    """Return a number per row `[N]`, equal for rows with equal inputs."""
    digests = (digest[: INPUT_BITS // 8] for digest in row_digests(dataset, task))
    return np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(dataset))


def trained_rows(train: "datasets.Dataset", evaluation: "Mapping[str, datasets.Dataset]", task: Task) -> dict[str, int]:
    """Return for each split the number of its rows with the inputs of a training row, without splits that have none."""
    trained = set(row_digests(train, task))
    counts = {
        split: sum(digest in trained for digest in row_digests(dataset, task)) for split, dataset in evaluation.items()
    }
    return {split: count for split, count in counts.items() if count}


def row_digests(dataset: "datasets.Dataset", task: Task) -> Iterator[bytes]:
    """Yield a digest of a task's inputs of each row, of the same size for a picture as for a word.

    A file is its content, not its path.
    """
    inputs: Any = dataset.select_columns(list(task.input_columns)).with_format("arrow")
    for part in inputs.iter(ROWS_AT_ONCE):
        for row in part.to_pylist():
            if task.file_column is not None:
                held = row[task.file_column]
                if isinstance(held, dict):
                    held = held["path"] if held["bytes"] is None else held["bytes"]
                is_file = isinstance(held, str)
                row[task.file_column] = digest_of(Path(held)) if is_file else hashlib.sha256(held).hexdigest()
            values = [row[name] for name in task.input_columns]
            yield hashlib.blake2b(repr(values).encode(errors="surrogateescape")).digest()


def read_split(folder: Path, split: str) -> Any:
    """Return the predictions of a split as a table.

    Raises:
        NotKeptError: if the run has no predictions.
    """
    if not (folder / PREDICTIONS_FILE).is_file():
        raise NotKeptError(f"a run has no {PREDICTIONS_FILE}: only its results were kept")
    return read_parquet(folder / PREDICTIONS_FILE, filters=[("split", "==", split)])


def read_probabilities(folder: Path, split: str | None) -> tuple[Any, Any] | None:
    """Return the probabilities `[N, C]` of a split and its labels `[N]`.

    None if there are no probabilities, or a row has no class as its label, such as a question whose answer is none.
    """
    if split is None or not (folder / PREDICTIONS_FILE).is_file():
        return None
    if PROBABILITIES not in pq.read_schema(folder / PREDICTIONS_FILE).names:
        return None
    rows = read_split(folder, split)
    labels = rows["label"].to_numpy()
    return None if labels.min() == UNLABELLED else (np.stack(rows[PROBABILITIES].to_numpy()), labels)


def read_logs(folder: Path) -> Sequence[Mapping[str, Any]]:
    """Return the training log of a run; empty if it kept none."""
    return read_log_history(folder) if (folder / STATE_FILE).is_file() else []


def metric_examples(metric: str, predictions: Any) -> ExampleScores | None:
    """Return the row scores of a metric of predictions; None if the metric is not a statistic of rows."""
    label_type = predictions["label"].type
    if not label_type.num_fields and {NO_ANSWER_COLUMN, EDITS_COLUMN}.isdisjoint(predictions.column_names):
        if metric_of(metric).function is None:
            return None
        return example_scores(metric, predictions["label"].to_numpy(), predictions["prediction"].to_numpy())

    rows = predictions["row"].to_numpy()
    if NO_ANSWER_COLUMN in predictions.column_names:
        if metric not in ("exact", "f1"):
            return None
        answers, golds = predictions["prediction"].to_pylist(), predictions["label"].to_pylist()
        # The official scripts of both versions differ for empty answers, which only unanswerable questions have.
        version: SquadVersion = "2.0" if any(not gold for gold in golds) else "1.1"
        pairs = [exact_and_f1(answer, gold, version) for answer, gold in zip(answers, golds, strict=True)]
        return mean_scores(rows, [exact if metric == "exact" else f1 for exact, f1 in pairs])

    if EDITS_COLUMN in predictions.column_names:
        edits = predictions[EDITS_COLUMN].to_numpy()
        if metric == ERROR_RATE:
            return ExampleScores(rows, ratio_of_sums, (edits, predictions[LENGTH_COLUMN].to_numpy()))
        return mean_scores(rows, edits == 0) if metric == EXACT else None

    if pa.types.is_list(label_type) and pa.types.is_string(label_type.value_type):
        if metric not in SCORES:
            return None
        tags = zip(predictions["prediction"].to_pylist(), predictions["label"].to_pylist(), strict=True)
        parts = np.array([score_parts(metric, found, gold) for found, gold in tags])
        return ExampleScores(rows, ratio_of_sums, (parts[:, 0], parts[:, 1]))

    if pa.types.is_list(label_type) and pa.types.is_integer(label_type.value_type):
        # Several labels, as in `alignattn.tasks.text_classification.multi_label_scores`.
        labels, found = (np.stack(predictions[name].to_numpy()) for name in ("label", "prediction"))
        right, counted = 2 * labels * found, labels + found
        if metric == "accuracy":
            return mean_scores(rows, (labels == found).all(axis=1))
        if metric == "micro_f1":
            return ExampleScores(rows, ratio_of_sums, (right.sum(axis=1), counted.sum(axis=1)))
        return ExampleScores(rows, mean_of_ratios, (*right.T, *counted.T)) if metric == "macro_f1" else None

    return None


def mean_predictions(tables: Sequence[pa.Table]) -> pa.Table:
    """Return the predictions of a deep ensemble (Lakshminarayanan et al. 2017, section 2.4): the mean of the runs.

    Args:
        tables: the predictions of the same split by each run: probabilities of classes, or scores.

    Raises:
        AlignAttnError: if the rows or labels differ, or the predictions have no mean.
    """
    first = tables[0]
    for table in tables:
        if not (table["row"].equals(first["row"]) and table["label"].equals(first["label"])):
            raise AlignAttnError("an ensemble needs runs on the same rows and labels")
    if PROBABILITIES in first.column_names:
        rows = [np.stack(table[PROBABILITIES].to_numpy()) for table in tables]
        if len({probabilities.shape for probabilities in rows}) > 1:
            raise AlignAttnError("an ensemble needs runs with the same labels")
        mean = np.mean(rows, axis=0)
        columns = {"prediction": pa.array(mean.argmax(axis=1)), PROBABILITIES: pa.array(list(mean))}
    elif pa.types.is_floating(first["prediction"].type):
        columns = {"prediction": pa.array(np.mean([table["prediction"].to_numpy() for table in tables], axis=0))}
    else:
        raise AlignAttnError("an ensemble averages probabilities or scores, and these predictions have neither")
    return pa.table({"row": first["row"], "label": first["label"], **columns})


MAX_NUMBERS = 10
"""A column with more distinct numbers is split at its quartiles."""
MIN_DIGITS, MAX_DIGITS = 6, 17
"""Significant digits of a quarter's ends in its name; 17 distinguish any two numbers of 64 bits."""
MAX_SLICES = 50
"""If a column has more values, the slices are those with the most rows."""
MISSING = "(missing)"

SliceScores = Mapping[str, Mapping[str, ExampleScores]]
"""The row scores by slice and metric."""


def slices_of(values: Sequence[Any]) -> dict[str, NDArray[np.int64]]:
    """Return the row indices of each slice by name; slices are in the order of their values, missing values last.

    Args:
        values: the values of the column, one per row; a number may be written as text, as in a CSV file.
    """
    missing = (value is None or value != value or str(value).strip() == "" for value in values)
    parsed = [None if is_missing else parse_label(value) for is_missing, value in zip(missing, values, strict=True)]
    numbers = {value for value in parsed if value is not None and not isinstance(value, str)}
    names = {value: str(value) for value in parsed if value is not None}
    if len(numbers) == len(names) > MAX_NUMBERS:
        # As the quarters' ends: not every integer of 64 bits is a float.
        parsed = [None if value is None else float(value) for value in parsed]
        names = _quarters(np.array([value for value in parsed if value is not None]))
    ordered = sorted(names, key=lambda value: (isinstance(value, str), value))
    rows: dict[str, list[int]] = {name: [] for name in (*(names[value] for value in ordered), MISSING)}
    for row, value in enumerate(parsed):
        rows[MISSING if value is None else names[value]].append(row)
    largest = sorted(rows, key=lambda name: -len(rows[name]))[:MAX_SLICES]
    return {name: np.array(rows[name]) for name in rows if name in largest and rows[name]}


def _quarters(values: NDArray[np.float64]) -> dict[Any, str]:
    """Return for each value the range of its quarter, as text."""
    distinct = np.unique(values)
    quarter = np.searchsorted(np.quantile(values, (0.25, 0.5, 0.75)), distinct)
    parts = [distinct[quarter == number] for number in np.unique(quarter)]
    is_whole = bool((distinct == np.trunc(distinct)).all())
    for digits in range(MIN_DIGITS, MAX_DIGITS + 1):  # close numbers differ in late digits only
        form = ".0f" if is_whole else f".{digits}g"
        names = [f"{part[0]:{form}} to {part[-1]:{form}}" for part in parts]
        if len(set(names)) == len(parts):
            break
    return {value: name for part, name in zip(parts, names, strict=True) for value in part.tolist()}


def slice_examples(
    predictions: pa.Table, slices: Mapping[str, NDArray[np.int64]], metrics: Sequence[str]
) -> SliceScores:
    """Return the row scores of each metric that is a statistic of rows, by slice.

    A metric that is undefined for the rows of a slice is left out: a correlation, also Matthews', if all have one
    label, and F1 without a row of class 1, true or predicted.

    Args:
        predictions: the predictions of all rows, in their order.
        slices: the slices, as from `slices_of`.
        metrics: the names of the metrics.
    """
    scores: dict[str, dict[str, ExampleScores]] = {}
    for slice_name, rows in slices.items():
        part = predictions.take(pa.array(rows))
        undefined: set[str] = set()
        if part["label"].type.num_fields == 0:
            labels = part["label"].unique().to_pylist()
            undefined = {name for name, metric in METRICS.items() if metric.needs_variation and len(labels) == 1}
            if POSITIVE_CLASS not in {*labels, *part["prediction"].unique().to_pylist()}:
                undefined.add("f1")
        found = {metric: metric_examples(metric, part) for metric in metrics if metric not in undefined}
        scores[slice_name] = {metric: examples for metric, examples in found.items() if examples is not None}
    return scores


def measured_slices(scores: SliceScores) -> dict[str, dict[str, float]]:
    """Return the number of rows and the metrics of each slice."""
    return {
        name: {"rows": len(next(iter(of_slice.values())).examples)}
        | {metric: one.value for metric, one in of_slice.items()}
        for name, of_slice in scores.items()
        if of_slice
    }
