"""The predictions of a run, kept in its folder, and the scores of their rows."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alignattn.evaluation.statistics.example_scores import (
    ExampleScores,
    example_scores,
    mean_of_ratios,
    mean_scores,
    ratio_of_sums,
)
from alignattn.finetuning.logs import STATE_FILE, read_log_history
from alignattn.finetuning.results import PREDICTIONS_FILE
from alignattn.tasks.answers.squad_metric import SquadVersion, exact_and_f1
from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.metrics import metric_of
from alignattn.tasks.names import PROBABILITIES
from alignattn.tasks.sequence_to_sequence import ERROR_RATE, EXACT
from alignattn.tasks.tags.entities import SCORES, score_parts
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing
from alignattn.utils.parquet import INPUT_COLUMN, read_parquet

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


def with_split(table: pa.Table, split: str) -> pa.Table:
    """Return predictions with the name of their split in each row."""
    return table.add_column(0, "split", pa.array([split] * table.num_rows, pa.string()))


def with_inputs(table: pa.Table, rows: "datasets.Dataset", columns: Sequence[str]) -> pa.Table:
    """Return predictions of classes with the number of each row's input, by which `calibrate` finds repeated rows."""
    if PROBABILITIES not in table.column_names:
        return table
    return table.append_column(INPUT_COLUMN, pa.array(input_numbers(rows, columns)))


def input_numbers(dataset: "datasets.Dataset", columns: Sequence[str]) -> NDArray[np.uint64]:
    """Return a number per row `[N]`, equal for rows with equal values in the columns."""
    digests = (digest[: INPUT_BITS // 8] for digest in row_digests(dataset, columns))
    return np.fromiter((int.from_bytes(digest) for digest in digests), np.uint64, len(dataset))


def row_digests(dataset: "datasets.Dataset", columns: Sequence[str]) -> Iterator[bytes]:
    """Yield a digest of some columns of each row, of the same size for a picture as for a word.

    A picture is its file's content, not its path.
    """
    inputs: Any = dataset.select_columns(list(columns)).with_format("arrow")
    for part in inputs.iter(ROWS_AT_ONCE):
        for row in part.to_pylist():
            values = [_content(row[name]) for name in columns]
            yield hashlib.blake2b(repr(values).encode(errors="surrogateescape")).digest()


def _content(value: Any) -> Any:
    if not (isinstance(value, dict) and value.keys() == {"bytes", "path"}):
        return value
    return Path(value["path"]).read_bytes() if value["bytes"] is None and value["path"] else value["bytes"]


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
    if NO_ANSWER_COLUMN in predictions.column_names:
        return _answer_examples(metric, predictions)
    if EDITS_COLUMN in predictions.column_names:
        return _written_examples(metric, predictions)
    label_type = predictions["label"].type
    if pa.types.is_list(label_type) and pa.types.is_string(label_type.value_type):
        return _tag_examples(metric, predictions)
    if pa.types.is_list(label_type) and pa.types.is_integer(label_type.value_type):
        return _label_examples(metric, predictions)
    if metric_of(metric).function is None or label_type.num_fields:
        return None
    return example_scores(metric, predictions["label"].to_numpy(), predictions["prediction"].to_numpy())


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


def _written_examples(metric: str, predictions: Any) -> ExampleScores | None:
    rows, edits = predictions["row"].to_numpy(), predictions[EDITS_COLUMN].to_numpy()
    if metric == ERROR_RATE:
        return ExampleScores(rows, ratio_of_sums, (edits, predictions[LENGTH_COLUMN].to_numpy()))
    return mean_scores(rows, edits == 0) if metric == EXACT else None


def _label_examples(metric: str, predictions: Any) -> ExampleScores | None:
    """Return the scores of rows with several labels, as in `alignattn.tasks.text_classification.multi_label_scores`."""
    rows = predictions["row"].to_numpy()
    labels, found = (np.stack(predictions[name].to_numpy()) for name in ("label", "prediction"))
    right, counted = 2 * labels * found, labels + found
    match metric:
        case "accuracy":
            return mean_scores(rows, (labels == found).all(axis=1))
        case "micro_f1":
            return ExampleScores(rows, ratio_of_sums, (right.sum(axis=1), counted.sum(axis=1)))
        case "macro_f1":
            return ExampleScores(rows, mean_of_ratios, (*right.T, *counted.T))
    return None


def _tag_examples(metric: str, predictions: Any) -> ExampleScores | None:
    if metric not in SCORES:
        return None
    tags = zip(predictions["prediction"].to_pylist(), predictions["label"].to_pylist(), strict=True)
    parts = np.array([score_parts(metric, found, gold) for found, gold in tags])
    return ExampleScores(predictions["row"].to_numpy(), ratio_of_sums, (parts[:, 0], parts[:, 1]))


def _answer_examples(metric: str, predictions: Any) -> ExampleScores | None:
    if metric not in ("exact", "f1"):
        return None
    answers, golds = predictions["prediction"].to_pylist(), predictions["label"].to_pylist()
    # The official scripts of both versions differ for empty answers, which only unanswerable questions have.
    version: SquadVersion = "2.0" if any(not gold for gold in golds) else "1.1"
    pairs = [exact_and_f1(answer, gold, version) for answer, gold in zip(answers, golds, strict=True)]
    return mean_scores(predictions["row"].to_numpy(), [exact if metric == "exact" else f1 for exact, f1 in pairs])
