"""What a run measured: `results.json`, read and written in one place."""

import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from alignattn.support.json_records import read_record

CONFIG_FILE = "config.yaml"
RESULTS_FILE = "results.json"
PREDICTIONS_FILE = "predictions.parquet"

REPORTED_PACKAGES = ("alignattn", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class RunResult:
    """One finished run.

    Attributes:
        task: the task's name.
        model: the model as it may be published: a folder by its name.
        attention: the preset's name.
        attention_config: the fields of its `AttentionConfig`.
        seed: the seed of initialisation, dropout and row order.
        metrics: by evaluation split, by metric; fractions, not percentages.
        thresholds: limits that some metrics were tuned to on the rows that they are of, by split, by metric.
        train_rows: rows trained on.
        evaluation_rows: rows by evaluation split.
        dropped_rows: unlabelled rows left out, by split.
        bad_rows: rows left out because something is wrong with them, each with its number and its problem, by split.
        derived_splits: how an evaluation split came about that the data set does not have, by its name.
        train_runtime: seconds of training; of a run that was resumed, those since then.
        train_samples_per_second: rows trained on a second.
        training: the last logged loss, task_loss, align_loss, learning rate and diagnostics; None for what was
            not finite.
        parameters: how many: `total`, `trainable`, and those of the alignment's own networks.
        embeddings: where the word vectors of a model that is not pretrained come from; None for others.
        versions: of Python and the packages.
        device: what it ran on.
    """

    task: str
    model: str
    attention: str
    attention_config: dict[str, Any]
    seed: int
    metrics: dict[str, dict[str, float]]
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

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as plain JSON types."""
        return asdict(self)


def read_result(folder: Path) -> RunResult | None:
    """Return the result of the run in `folder`, or None if it has not finished; raises as `read_record` does."""
    return read_record(folder / RESULTS_FILE, RunResult, "run")


def package_versions(more: Sequence[str] = ()) -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on.

    Args:
        more: packages that it depends on and others do not.
    """
    return {name: version(name) for name in (*REPORTED_PACKAGES, *more)} | {"python": sys.version.split()[0]}


def device_name(device: torch.device) -> str:
    """Return what a device is, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"


def render_metrics(result: RunResult) -> str:
    """Return the metrics of a run in lines, percentages as the papers print them."""
    lines = [
        f"  {result.task} {split}: " + ", ".join(f"{name} {100 * value:.2f}" for name, value in scores.items())
        for split, scores in result.metrics.items()
    ]
    lines += [f"  split {split}: {how}" for split, how in result.derived_splits.items()]
    lines += [
        f"  left out of {split}: {len(bad)} bad row(s), listed in {RESULTS_FILE}; the first, row {bad[0]['row']}: "
        f"{bad[0]['problem']}"
        for split, bad in result.bad_rows.items()
    ]
    return "\n".join(lines)
