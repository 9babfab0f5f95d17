"""Prediction sets, abstention and shift warnings on real predictions, over random splits.

The figures are in `docs/measurements/decisions.md`.

    python benchmarks/decisions.py --run runs/qqp --task qqp --other twitterppdb --data_dir ../shared/data

Each split halves the in-domain rows: one half calibrates as `alignattn calibrate --run` does, the other is new. All
rows of the other domain are also new.
"""

import argparse
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from datasets import concatenate_datasets
from numpy.typing import NDArray

from alignattn.evaluation.calibration import apply_temperature, fit_temperature, log_probabilities
from alignattn.evaluation.calibration.decisions import (
    SET_SCORES,
    SHIFT_LEVEL,
    Calibration,
    LabelledRows,
)
from alignattn.finetuning.predictor import Batching, Predictor, load_run, probabilities_of
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.rows import load_rows, max_samples

COVERAGES, ERROR_RATES = (0.8, 0.9, 0.95), (0.05, 0.1, 0.2)
SAMPLES = (10, 20, 50, 100, 500)
"""Numbers of rows of the files on which the shift test is tried."""
TRIES = 20
"""Number of files of each size per split."""


def predicted(
    predictor: Predictor, task_name: str, data_dir: str, count: int, splits: Sequence[str] = ()
) -> tuple[NDArray, NDArray]:
    """Return probabilities and labels of rows of a task's first evaluation split, or of the named splits together."""
    task = TASKS[task_name]
    task = replace(task, evaluation_splits=tuple(splits) or task.evaluation_splits[:1])
    loaded = load_rows(task, need_train=False, data_dir=data_dir)
    rows = max_samples(loaded.task, concatenate_datasets(list(loaded.evaluation.values())), count)
    inputs = rows.select_columns(list(task.input_columns))
    inputs = inputs.rename_columns(dict(zip(task.input_columns, predictor.task.input_columns, strict=True)))
    return probabilities_of(predictor.answers(predictor.encode(inputs), Batching())), np.array(rows[task.label_column])


def calibrated(probabilities: NDArray, labels: NDArray, uniform: NDArray) -> Calibration:
    """Return a calibration from rows in random order; the first half fits the temperature."""
    half = len(labels) // 2
    temperature = fit_temperature(log_probabilities(probabilities[:half]), labels[:half])
    scaled = apply_temperature(probabilities, temperature)
    sides = (slice(half), slice(half, None))
    return Calibration(temperature, *(LabelledRows(scaled[one], labels[one], uniform[one]) for one in sides))


def measure(found: dict, calibration: Calibration, side: str, new: LabelledRows, rng: np.random.Generator) -> None:
    """Append the measures of a calibration's decisions on new rows to their lists."""
    index = np.arange(len(new.labels))
    for method, scores in SET_SCORES.items():
        members = scores(new.probabilities, new.uniform)
        for coverage in COVERAGES:
            sets = members <= calibration.quantile(coverage, method)
            found[f"{method} {coverage}", "covered", side].append(sets[index, new.labels].mean())
            found[f"{method} {coverage}", "size", side].append(sets.sum(axis=1).mean())
    for rate in ERROR_RATES:
        chosen = calibration.abstention(rate)
        is_answered = new.confidence >= (2 if chosen is None else chosen.threshold)
        found[f"max_error {rate}", "answered", side].append(is_answered.mean())
        if is_answered.any():
            wrong = new.is_wrong[is_answered].mean()
            found[f"max_error {rate}", "wrong", side].append(wrong)
            found[f"max_error {rate}", "above", side].append(wrong > rate)
    for size in (size for size in SAMPLES if size <= len(index)):
        for _ in range(TRIES):
            rows = new.probabilities[rng.choice(len(index), size, replace=False)]
            found[f"shift {size} rows", "warned", side].append(calibration.shift(rows) < SHIFT_LEVEL)


def main() -> None:
    """Print the means over splits as a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", required=True)
    parser.add_argument("--task", required=True)
    parser.add_argument("--other", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--evaluation_splits", nargs="+", default=())
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--splits", type=int, default=20)
    options = parser.parse_args()
    predictor = load_run(Path(options.run))
    inside, labels = predicted(predictor, options.task, options.data_dir, options.rows, options.evaluation_splits)
    outside, other_labels = predicted(predictor, options.other, options.data_dir, options.rows)
    found = defaultdict(list)
    for split in range(options.splits):
        rng = np.random.default_rng(split)
        order = rng.permutation(len(labels))
        kept, new = np.array_split(order, 2)
        calibration = calibrated(inside[kept], labels[kept], rng.random(len(kept)))
        for side, probabilities, truth in (("in", inside[new], labels[new]), ("out", outside, other_labels)):
            scaled = apply_temperature(probabilities, calibration.temperature)
            rows = LabelledRows(scaled, truth, rng.random(len(truth)))
            measure(found, calibration, side, rows, rng)
    print(
        f"{options.task} -> {options.other}: {len(labels)} and {len(other_labels)} rows, accuracy "
        f"{(inside.argmax(axis=1) == labels).mean():.3f} and {(outside.argmax(axis=1) == other_labels).mean():.3f}, "
        f"{options.splits} splits"
    )
    print("| | measure | in | sd over splits | out |\n|---|---|---|---|---|")
    for name, measure_name, side in found:
        if side == "in":
            ours, theirs = found[name, measure_name, "in"], found.get((name, measure_name, "out"), [np.nan])
            print(f"| {name} | {measure_name} | {np.mean(ours):.3f} | {np.std(ours):.3f} | {np.mean(theirs):.3f} |")


if __name__ == "__main__":
    main()
