"""`alignattn uncertainty`."""

from dataclasses import dataclass

from alignattn.finetuning.run_folder import run_folder
from alignattn.utils.command import Command, TableResults
from alignattn.utils.option import REQUIRED, Count, InputDir, OutputDir, Seed, option
from alignattn.utils.options import Options

UNCERTAINTY_FILE, PREDICTIONS_FILE = "uncertainty.json", "predictions.parquet"

PASSES, LEVEL = 20, 0.05
"""The constants of `alignattn.evaluation.calibration.passes`, whose import needs SciPy."""

MAX_PASSES, MAX_BINS, MAX_RESAMPLES = 10_000, 1000, 100_000
"""Larger values take minutes and change nothing."""


@dataclass(frozen=True, kw_only=True)
class UncertaintyOptions(Options):
    """The options of `alignattn uncertainty`."""

    run: str = option(REQUIRED, "Run folder of a classifier.", metavar="DIR", place=run_folder)
    output_dir: OutputDir = option("uncertainty", f"Folder for {UNCERTAINTY_FILE}, {PREDICTIONS_FILE} and report.html.")
    passes: int = option(PASSES, "Forward passes with dropout.", low=2, high=MAX_PASSES)
    level: float = option(LEVEL, "p-value below which the two likeliest classes differ.", above=0, high=1)
    noise: float = option(1.0, "Input noise, relative to each feature's standard deviation; 0: none.", low=0)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all of the run's).")
    max_eval_samples: Count | None = option(None, "The first N rows of each split (default: all).")
    data_dir: InputDir | None = option(None, "Folder of Parquet files of rows (default: the run's).")
    batch_size: Count | None = option(None, "Batch size (default: the run's).")
    num_bins: Count = option(10, "Bins of the calibration error and of the diagrams.", high=MAX_BINS)
    resamples: Count = option(1000, "Bootstrap resamples per interval.", high=MAX_RESAMPLES)
    seed: Seed = option(42, "Seed of dropout, noise and resamples.")


COMMAND = Command(
    "uncertainty",
    "measure whether a model is certain where it is right (PAvPU), on clean and on noisy inputs",
    UncertaintyOptions,
    run="alignattn.commands.uncertainty.command:uncertainty",
    results=TableResults(
        UNCERTAINTY_FILE,
        needs="finetune",
        withheld=("run", "seed", "data_dir"),
    ),
    examples=("alignattn uncertainty --run runs/mrpc --output_dir uncertainty",),
)
