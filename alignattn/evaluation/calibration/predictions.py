"""Saved probabilities: a Parquet file with one row per prediction, checked row by row."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from alignattn.evaluation.calibration.measures import find_bad_rows
from alignattn.utils.errors import AlignAttnError, BadRow, list_bad_rows
from alignattn.utils.parquet import INPUT_COLUMN, read_parquet
from alignattn.utils.paths import check_file


@dataclass(frozen=True)
class Predictions:
    """The rows of a file that can be scored.

    Attributes:
        path: the file.
        probabilities: `[N, C]`.
        labels: `[N]`.
        splits: `[N]`, the split of each row; the file's stem if it has no split column.
        bad_rows: the skipped rows.
        inputs: `[N]`, numbers that are equal for rows with the same input; None if unknown.
        repeated: number of rows that repeat the input of another and were left out.
    """

    path: Path
    probabilities: NDArray[np.float64]
    labels: NDArray[np.int64]
    splits: NDArray[np.str_]
    bad_rows: Sequence[BadRow]
    inputs: NDArray[np.uint64] | None = None
    repeated: int = 0

    def distinct(self, seed: int) -> "Predictions":
        """Return one row of each input in each split, drawn by the seed; all rows if inputs are unknown.

        Repeated rows would stand in both halves of a split, and count several times in what these rows show.
        """
        if self.inputs is None:
            return self
        order = np.random.default_rng(seed).permutation(len(self.labels))
        _, splits = np.unique(self.splits, return_inverse=True)
        keys = np.stack([splits.astype(np.uint64), self.inputs], axis=1)[order]
        kept = np.sort(order[np.unique(keys, axis=0, return_index=True)[1]])
        return replace(
            self,
            probabilities=self.probabilities[kept],
            labels=self.labels[kept],
            splits=self.splits[kept],
            inputs=self.inputs[kept],
            repeated=len(order) - len(kept),
        )

    def split_names(self) -> list[str]:
        """Return the splits in the order of the file."""
        return list(dict.fromkeys(self.splits.tolist()))


def read_predictions(
    path: Path, *, label_column: str, probabilities_column: str, skip_bad_rows: bool | None = None
) -> Predictions:
    """Read a file of saved probabilities.

    Args:
        path: a Parquet file.
        label_column: the column of class numbers.
        probabilities_column: the column of probabilities, a list per row.
        skip_bad_rows: instead of refusing the file, skip rows without a split, with a label that is no class, with
            probabilities that are no distribution, or with another number of probabilities than most rows.
    """
    check_file(path, "give a file of predictions")
    table = read_parquet(path)
    if table.num_rows == 0:
        raise AlignAttnError(f"{path} has no rows: give a file of predictions")

    def column(name: str, option: str) -> pa.Array:
        if name not in table.column_names:
            raise AlignAttnError(
                f"{path} has no column {name!r} (it has {', '.join(table.column_names)}): name another with {option} "
                "(only tasks with one class per row have probabilities)"
            )
        values = table[name].combine_chunks()
        # Depending on the version of pyarrow, this is an array or a chunked array of one chunk.
        return values.chunk(0) if isinstance(values, pa.ChunkedArray) else values

    lists = column(probabilities_column, "--probabilities_column")
    list_type = lists.type
    label_values = column(label_column, "--label_column")
    if not (pa.types.is_integer(label_values.type) or pa.types.is_floating(label_values.type)):
        raise AlignAttnError(f"column {label_column!r} of {path} holds {label_values.type} and must hold class numbers")
    # A missing label is NaN.
    labels = label_values.to_numpy(zero_copy_only=False).astype(np.float64)
    is_list = pa.types.is_list(list_type) or pa.types.is_large_list(list_type) or pa.types.is_fixed_size_list(list_type)
    if not is_list or not (pa.types.is_floating(list_type.value_type) or pa.types.is_integer(list_type.value_type)):
        raise AlignAttnError(
            f"column {probabilities_column!r} of {path} holds {list_type} and must hold a list of probabilities a row"
        )
    # A missing list has no probabilities.
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if not lengths.any():
        raise AlignAttnError(
            f"column {probabilities_column!r} of {path} is empty: give a file of predictions of classes"
        )
    num_classes = Counter(lengths[lengths > 0].tolist()).most_common(1)[0][0]
    regular = np.flatnonzero(lengths == num_classes)
    flat = pc.list_flatten(lists.take(pa.array(regular))).to_numpy(zero_copy_only=False)
    probabilities = flat.astype(np.float64).reshape(len(regular), num_classes)
    splits = table["split"].to_pylist() if "split" in table.column_names else [path.stem] * len(lists)
    problems = {row: "it has no split" for row, split in enumerate(splits) if split is None}
    problems |= {
        int(row): f"it has {lengths[row]} probabilities, and most rows have {num_classes}"
        for row in np.flatnonzero(lengths != num_classes)
    }
    problems |= {
        int(regular[index]): problem for index, problem in find_bad_rows(probabilities, labels[regular]).items()
    }
    bad_rows = list_bad_rows(problems, str(path), len(lists), skip=skip_bad_rows)
    good = np.array([row not in problems for row in regular.tolist()])
    inputs = None
    if INPUT_COLUMN in table.column_names:
        raw_inputs = table[INPUT_COLUMN].combine_chunks()
        if pa.types.is_dictionary(raw_inputs.type):
            raw_inputs = raw_inputs.dictionary_decode()
        # pandas writes texts as large strings.
        kinds = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
        # The inputs are known if the column tells that of each row.
        if not raw_inputs.null_count and any(is_kind(raw_inputs.type) for is_kind in kinds):
            input_codes = np.unique(raw_inputs.to_numpy(zero_copy_only=False), return_inverse=True)[1]
            inputs = input_codes[regular[good]].astype(np.uint64)
    return Predictions(
        path,
        probabilities[good],
        labels[regular[good]].astype(np.int64),
        np.array([str(splits[row]) for row in regular[good]]),
        bad_rows,
        inputs,
    )
