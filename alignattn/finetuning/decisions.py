"""Decisions of a calibrated run: prediction sets, abstention, and the file of calibration rows that they need."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from alignattn.evaluation.calibration.decisions import (
    ABSTENTION_DELTA,
    LAC,
    MIN_SHIFT_ROWS,
    SET_SCORES,
    SHIFT_LEVEL,
    Abstention,
    Array,
    Calibration,
    LabelledRows,
)
from alignattn.evaluation.calibration.scaling import apply_temperature
from alignattn.finetuning.examples import INPUT_BITS
from alignattn.finetuning.results import CALIBRATION_FOLDER, CALIBRATION_ROWS_FILE
from alignattn.finetuning.run_folder import FinishedRun
from alignattn.tasks import LabelledTask
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing
from alignattn.utils.parquet import read_parquet

SET, DECISION = "set", "decision"
"""Columns of decisions."""

ABSTAIN = "abstain"
"""The decision to give no answer."""

HELD_OUT, LABEL, PROBABILITIES, UNIFORM = "held_out", "label", "probabilities", "uniform"
"""Columns of the file of calibration rows."""

UNIFORM_BITS = 48
"""Bits of an input's number that make a uniform number; they fit into a float."""

TEMPERATURE = b"temperature"
"""Key of the temperature in the file's metadata."""


@dataclass(frozen=True)
class Decisions:
    """The decisions to make on each row.

    Attributes:
        calibration: the calibration of the run.
        labels: the names of the classes.
        coverage: the probability that a row's set contains its label; None for no sets.
        max_error: the target error rate among the answered rows; None for no abstention.
        sets: the score of the sets, one of `SET_SCORES`.
    """

    calibration: Calibration
    labels: Sequence[str]
    coverage: float | None = None
    max_error: float | None = None
    sets: str = LAC

    def __post_init__(self) -> None:
        if self.sets not in SET_SCORES:
            raise AlignAttnError(f"sets {self.sets!r}: choose one of {', '.join(SET_SCORES)}")
        if self.max_error is not None and not 0 < self.max_error < 1:
            raise AlignAttnError(f"max_error {self.max_error} must be above 0 and below 1")
        if self.max_error is not None and ABSTAIN in self.labels:
            raise AlignAttnError(f"max_error: a class is called {ABSTAIN!r}, the name of no answer: rename it")
        if self.coverage is not None:
            _ = self.quantile

    @cached_property
    def quantile(self) -> float:
        """The maximum score of the classes in a set."""
        assert self.coverage is not None
        return self.calibration.quantile(self.coverage, self.sets)

    @cached_property
    def abstention(self) -> Abstention | None:
        """The threshold above which rows are answered; None if no threshold reaches the target error rate."""
        assert self.max_error is not None
        return self.calibration.abstention(self.max_error)

    def columns(self, probabilities: Array, uniform: Array | None = None) -> dict[str, pa.Array]:
        """Return the columns of decisions.

        Args:
            probabilities: `[N, C]`, calibrated.
            uniform: numbers `[N]` that randomise APS, as from `uniform_of`; None = random.
        """
        found: dict[str, pa.Array] = {}
        if self.coverage is not None:
            drawn = np.random.default_rng().random(len(probabilities)) if uniform is None else uniform
            scores = SET_SCORES[self.sets](probabilities, drawn)
            order = np.argsort(-probabilities, axis=1, kind="stable")
            is_member = np.take_along_axis(scores <= self.quantile, order, axis=1)
            names = pa.array(self.labels, pa.string()).take(pa.array(order[is_member]))
            ends = np.concatenate([[0], is_member.sum(axis=1).cumsum()]).astype(np.int32)
            found[SET] = pa.ListArray.from_arrays(ends, names)
        if self.max_error is not None:
            threshold = math.inf if self.abstention is None else self.abstention.threshold
            answers = np.where(probabilities.max(axis=1) >= threshold, probabilities.argmax(axis=1), len(self.labels))
            found[DECISION] = pa.array([*self.labels, ABSTAIN]).take(pa.array(answers))
        return found

    def remarks(self) -> Iterator[str]:
        """Yield a line on each guarantee."""
        rows = len(self.calibration.held_out.labels)
        if self.coverage is not None:
            yield (
                f"coverage {self.coverage:g}: a row's set ({self.sets.upper()}) contains its label with probability "
                f"{100 * self.coverage:g} % if the row is drawn like the {rows} calibration rows; the probability is a "
                "mean over draws of such calibration rows"
            )
        if self.max_error is None:
            return
        found, certainty = self.abstention, f"{100 * (1 - ABSTENTION_DELTA):g} %"
        if found is None:
            yield (
                f"max_error {self.max_error:g}: no row is answered. The {rows} calibration rows do not show with "
                f"{certainty} certainty that answers have this error rate: "
                f"{self.calibration.reason_none(self.max_error)}"
            )
        else:
            yield (
                f"max_error {self.max_error:g}: rows with a confidence of at least {found.threshold:.4g} are answered. "
                f"Of {rows} calibration rows {found.answered} are, {found.errors} wrongly "
                f"({100 * found.errors / found.answered:.2g} %). With {certainty} certainty over the draw of the "
                f"calibration rows, at most {100 * self.max_error:g} % of the answers to rows like them are wrong"
            )


def uniform_of(inputs: NDArray[np.uint64]) -> Array:
    """Return the uniform numbers `[N]` that randomise APS, made from `input_numbers`, so equal rows have equal sets.

    Exchangeable rows stay exchangeable with a number that is a function of their inputs, so the coverage holds.
    """
    return (inputs >> np.uint64(INPUT_BITS - UNIFORM_BITS)).astype(np.float64) / 2**UNIFORM_BITS


def run_decisions(
    run: FinishedRun,
    temperature: float | None,
    coverage: float | None = None,
    max_error: float | None = None,
    sets: str = LAC,
) -> Decisions:
    """Return the decisions of a calibrated run.

    Args:
        run: the run, whose folder contains the calibration.
        temperature: the temperature that the user gives; None = that of the calibration.
        coverage: as in `Decisions`.
        max_error: likewise.
        sets: likewise.

    Raises:
        AlignAttnError: if the task has no classes, or the run is not calibrated, or the calibration has another
            temperature or fewer rows than the coverage needs.
    """
    what, folder = "coverage" if coverage is not None else "max_error", run.folder
    run.check_has_classes(what)
    calibration = read_run_calibration(run)
    if calibration is None:
        raise AlignAttnError(f"{what}: {folder} is not calibrated: run `alignattn calibrate --run {folder}` first")
    if temperature not in (None, calibration.temperature):
        raise AlignAttnError(
            f"{what}: {folder} is calibrated with temperature {calibration.temperature:.4g}, not {temperature:.4g}: "
            "leave the temperature out"
        )
    assert isinstance(run.task, LabelledTask)
    return Decisions(calibration, run.task.labels, coverage, max_error, sets)


def shift_warning(calibration: Calibration, probabilities: Array, temperature: float | None, origin: str) -> str | None:
    """Return a warning if rows are unlike the calibration rows; None otherwise.

    Args:
        calibration: the calibration of the run.
        probabilities: `[N, C]` of the rows; fewer than `MIN_SHIFT_ROWS` are not tested.
        temperature: the temperature that their logits were divided by; None if they were not.
        origin: where the rows come from, for the message.
    """
    if len(probabilities) < MIN_SHIFT_ROWS:
        return None
    p_value = calibration.shift(apply_temperature(probabilities, calibration.temperature / (temperature or 1)))
    if p_value >= SHIFT_LEVEL:
        return None
    return (
        f"{origin}: the predictions are distributed unlike those of the calibration rows (p {p_value:.2g}, false-alarm "
        f"rate {100 * SHIFT_LEVEL:g} %): temperature, sets and error rates may not hold for these rows"
    )


def write_run_calibration(folder: Path, calibration: Calibration) -> None:
    """Write a calibration to `folder`, the calibration folder of a run."""
    sides = {False: calibration.fitted, True: calibration.held_out}
    columns = {
        HELD_OUT: np.repeat(list(sides), [len(rows.labels) for rows in sides.values()]),
        LABEL: np.concatenate([rows.labels for rows in sides.values()]),
        PROBABILITIES: [row for rows in sides.values() for row in rows.probabilities],
        UNIFORM: np.concatenate([rows.uniform for rows in sides.values()]),
    }
    table = pa.table(columns).replace_schema_metadata({TEMPERATURE: repr(calibration.temperature)})
    with replacing(folder / CALIBRATION_ROWS_FILE) as temporary:
        pq.write_table(table, temporary)


def read_run_calibration(run: FinishedRun) -> Calibration | None:
    """Return the calibration of a run; None if it has none.

    Raises:
        AlignAttnError: if the file is damaged or has another number of classes.
    """
    path, task = run.folder / CALIBRATION_FOLDER / CALIBRATION_ROWS_FILE, run.task
    if not isinstance(task, LabelledTask) or not path.is_file():
        return None
    advice = f"remove {path.parent} and run `alignattn calibrate --run {run.folder}` again"
    table = read_parquet(path, advice)
    try:
        temperature = float(table.schema.metadata[TEMPERATURE])
        probabilities = np.stack(table[PROBABILITIES].to_numpy()).astype(np.float64)
        labels, uniform, is_held_out = (np.asarray(table[name].to_numpy()) for name in (LABEL, UNIFORM, HELD_OUT))
    except (KeyError, TypeError, ValueError) as error:
        raise AlignAttnError(f"{path} is not a file of `alignattn calibrate`: {advice}") from error
    if probabilities.shape[1] != task.num_labels:
        raise AlignAttnError(f"{path} has {probabilities.shape[1]} classes, and the run {task.num_labels}: {advice}")
    sides = (~is_held_out, is_held_out)
    return Calibration(temperature, *(LabelledRows(probabilities[one], labels[one], uniform[one]) for one in sides))
