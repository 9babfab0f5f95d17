"""The files of a run's folder, and its results: `results.json`, read and written in one place."""

import math
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.tasks.metrics import metric_of
from alignattn.tasks.truncation import TruncatedRows
from alignattn.utils.console import render_table
from alignattn.utils.errors import BadRow, plural
from alignattn.utils.files import read_record
from alignattn.utils.paths import entries

if TYPE_CHECKING:
    import torch

RESULTS_FILE = "results.json"
PREDICTIONS_FILE = "predictions.parquet"

CONFIG_FILE = "config.yaml"
"""File with the options of a run."""

TASK_FILE = "task.json"
"""File with the task of a run, if a user's file defines it."""

DATA_FILE = "data.json"
"""File with the digests of a run's files."""

CALIBRATION_FOLDER = "calibration"
"""Folder of a run's calibration (`alignattn calibrate --run`)."""

CALIBRATION_ROWS_FILE = "rows.parquet"
"""File of that folder with the calibrated probabilities and the labels of the calibration rows, and the temperature."""

SEED_FOLDER_PREFIX = "seed-"

RUN_FOLDER = "run"
"""Name of a run's folder inside the folder of a command that made it."""

EVALUATION = "eval_"
NOT_SCORES = ("_runtime", "_per_second", "_model_preparation_time")
"""Prefix of transformers' names of metrics, and suffixes of those that describe the evaluation itself."""

AND = "+"
"""Separator of metrics that select together."""

REPORTED_PACKAGES = ("alignattn", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class BestModel:
    """The step of the best checkpoint, which is the model of the run.

    Attributes:
        step: the step after which it was evaluated and saved.
        metric: the metric that chose it, with its split if there are several.
        value: the value of the metric, or of the first of several, at that step.
    """

    step: int
    metric: str
    value: float

    def __str__(self) -> str:
        return f"step {self.step}, the best by {self.metric} ({score_text(self.metric.split(AND)[0], self.value)})"


@dataclass(frozen=True)
class StartResult:
    """The finished run whose model another started from.

    Attributes:
        run: the folder, as it may be published.
        task: the task of the run.
        attention: the attention it was trained with.
        seed: the seed of the run.
        sha256: the digest of its weights, config and tokenizer.
    """

    run: str
    task: str
    attention: str
    seed: int
    sha256: str

    def __str__(self) -> str:
        return f"{self.run}, a run of {self.task} ({self.attention}, seed {self.seed}; sha256 {self.sha256[:12]})"


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        task: the task's name.
        model: the model as it may be published: the last part of a folder's absolute path.
        attention: the preset's name.
        attention_config: the fields of its `AttentionConfig`.
        seed: the seed of initialisation, dropout and row order.
        metrics: the scores by evaluation split and metric; fractions, not percentages, or errors; None if undefined.
        thresholds: the thresholds of some metrics, tuned on the rows that they score, by split and metric.
        train_rows: rows trained on.
        evaluation_rows: rows by evaluation split.
        dropped_rows: unlabelled rows left out, by split.
        bad_rows: rows left out because something is wrong with them, each with its number and its problem, by split.
        derived_splits: how a split that the data set lacks was made, or which part of a split is used, by split.
        train_runtime: seconds of training; in a resumed run, of all its processes, each until the checkpoint that the
            next one resumes from.
        train_samples_per_second: training rows per second; in a resumed run, since it was resumed.
        training: the last logged loss, task_loss, align_loss, learning rate and diagnostics; None for a value that is
            not finite.
        parameters: counts: `total`, `trainable`, `alignment` (its networks) and `attention_function`.
        embeddings: the origin of the word vectors of a model that is not pretrained; None for others.
        versions: the versions of Python and the packages.
        device: the device it ran on.
        labels: the names of the classes or tags in the order of their numbers; empty where there are none.
        constant_prediction: the one class that is predicted for every row, by split: such a model learned
            nothing, whatever its scores are.
        best: the step of the model, if the best was loaded at the end.
        stopped_at: the step after which early stopping ended the training, if it did.
        truncated_rows: the rows that reach --max_length, by split.
        trained_rows: evaluation rows with the inputs of a training row, by split; counted for files of texts.
        classes: precision, recall and F1 (fractions) and number of labels of each class, by split and name.
        class_weights: the factor of each class in the task's loss; empty where all are 1.
        slices: `rows` and metrics of each value of `--slice_by`, by split.
        start: the run that it started from, if its model is one.
        precision: the types in which it computed; empty in results of earlier versions.
        max_length: the maximum of tokens per row; None in results of earlier versions.
    """

    task: str
    model: str
    attention: str
    attention_config: dict[str, Any]
    seed: int
    metrics: dict[str, dict[str, float | None]]
    thresholds: dict[str, dict[str, float]]
    train_rows: int
    evaluation_rows: dict[str, int]
    dropped_rows: dict[str, int]
    bad_rows: dict[str, list[dict[str, Any]]]
    derived_splits: dict[str, str]
    train_runtime: float
    train_samples_per_second: float
    training: dict[str, float | None]
    parameters: dict[str, int]
    embeddings: dict[str, Any] | None
    versions: dict[str, str]
    device: str
    labels: list[str]
    constant_prediction: dict[str, str]
    best: BestModel | None
    stopped_at: int | None
    truncated_rows: dict[str, TruncatedRows] = field(default_factory=dict)
    trained_rows: dict[str, int] = field(default_factory=dict)
    classes: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    class_weights: dict[str, float] = field(default_factory=dict)
    slices: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    start: StartResult | None = None
    precision: str = ""
    max_length: int | None = None


def has_begun(folder: Path) -> bool:
    """Return whether a run left anything to lose in its folder, which exists: a checkpoint or its results."""
    return not entries(folder) <= {CONFIG_FILE, TASK_FILE, DATA_FILE}


def read_result(folder: Path) -> RunResult | None:
    """Return the result of the run in `folder`, or None if it has not finished; raises as `read_record` does."""
    return read_record(folder / RESULTS_FILE, RunResult, "run")


def package_versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on.

    Args:
        more: further packages that this result depends on.
    """
    return {name: version(name) for name in (*REPORTED_PACKAGES, *more)} | {"python": sys.version.split()[0]}


def device_name(device: "torch.device") -> str:
    """Return a device's name."""
    # Reading a result must not wait for the import of torch.
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def score_text(name: str, value: float | None) -> str:
    """Return a metric as a percentage, as the papers print it; for an error, in the unit of the scores."""
    if value is None or math.isnan(value):
        return "undefined"
    return f"{value:.4g}" if metric_of(name).is_error else f"{100 * value:.2f}"


CLASS_SCORES = ("precision", "recall", "f1")
MAX_CLASSES_SHOWN = 12
MAX_NAME = 40
"""Characters of a class's name in the printed table."""


def class_cells(classes: Mapping[str, Mapping[str, float]], most: int) -> list[list[str]]:
    """Return the name, scores and rows of each class; of more than `most` classes, of those with the lowest F1.

    A class without evaluation rows has no scores, which `results.json` sets to 0 as scikit-learn does.
    """
    shown = list(classes)
    if len(shown) > most:
        shown = sorted(shown, key=lambda name: (not classes[name]["support"], classes[name]["f1"]))[:most]
    return [
        [
            name,
            *(score_text(score, scores[score]) if scores["support"] else "–" for score in CLASS_SCORES),
            f"{scores['support']:,.0f}",
        ]
        for name, scores in ((name, classes[name]) for name in shown)
    ]


def render_metrics(result: RunResult) -> str:
    """Return the metrics of a run in lines, percentages as the papers print them."""
    lines = [
        f"  {result.task} {split}: " + ", ".join(f"{name} {score_text(name, value)}" for name, value in scores.items())
        for split, scores in result.metrics.items()
    ]
    for split, classes in result.classes.items():
        cells = [[name[:MAX_NAME], *scores] for name, *scores in class_cells(classes, MAX_CLASSES_SHOWN)]
        table = render_table(["class", *CLASS_SCORES, "rows"], cells).splitlines()
        lines += [f"  {line}" for line in (f"{split}, by class:", *table)]
        if len(cells) < len(classes):
            lines.append(f"  the lowest F1 of {len(classes)} classes; the others: {RESULTS_FILE}")
    lines += [
        f"  {split}: {', '.join(names)} undefined for these labels, and null in {RESULTS_FILE}"
        for split, scores in result.metrics.items()
        if (names := [name for name, value in scores.items() if value is None])
    ]
    if result.start is not None:
        lines.append(f"  started from {result.start}")
    if result.best is not None:
        lines.append(f"  the model is that of {result.best}")
    if result.stopped_at is not None:
        lines.append(f"  training was stopped early, after step {result.stopped_at}")
    lines += [
        f"  {split}: {answer} is predicted for every row: the model learned nothing. Try in this order: another "
        "--learning_rate, more steps (--num_train_epochs), a look at whether the labels fit their rows"
        for split, answer in result.constant_prediction.items()
    ]
    lines += [f"  split {split}: {how}" for split, how in result.derived_splits.items()]
    lines += [
        f"  left out of {split}: {plural(len(bad), 'bad row')}, listed in {RESULTS_FILE}; the first, {BadRow(**bad[0])}"
        for split, bad in result.bad_rows.items()
    ]
    lines += [
        f"  left out of {split}: {plural(count, 'row')} without a label"
        for split, count in result.dropped_rows.items()
        if count
    ]
    return "\n".join(lines)
