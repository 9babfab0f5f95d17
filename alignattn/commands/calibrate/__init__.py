"""`alignattn calibrate`."""

from dataclasses import dataclass

from alignattn.utils.command import Command
from alignattn.utils.option import REQUIRED, Count, OutputDir, Seed, option
from alignattn.utils.options import Options
from alignattn.utils.places import input_file_like

CALIBRATION_FILE = "calibration.json"

SCALING_NAMES = ("vector", "isotonic")
"""The names in `alignattn.evaluation.calibration.SCALINGS`, whose import needs SciPy."""
ALSO_HELP = "Further fits on the same half: vector, isotonic."

MAX_BINS, MAX_RESAMPLES = 1000, 100_000
"""More take minutes and change nothing."""


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `alignattn calibrate`."""

    files: tuple[str, ...] = option(
        REQUIRED,
        "Parquet files of predictions.",
        positional=True,
        metavar="PREDICTIONS",
        place=input_file_like("predictions*.parquet"),
    )
    output_dir: OutputDir = option("calibration", f"Folder for {CALIBRATION_FILE} and one diagram per split.")
    num_bins: Count = option(10, "Bins of the calibration errors and of the diagrams.", high=MAX_BINS)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all).")
    fit_on: str | None = option(None, "Fit a temperature on half of it; report the other half.", metavar="SPLIT")
    also_fit: tuple[str, ...] = option((), ALSO_HELP, choices=SCALING_NAMES, distinct="method", requires=("fit_on",))
    in_domain: str | None = option(
        None, "Also report the AUROC of confidence, this split against each other one.", metavar="SPLIT"
    )
    resamples: Count = option(1000, "Bootstrap resamples per interval.", high=MAX_RESAMPLES)
    seed: Seed = option(42, "Seed of the halves and of the resamples.")
    label_column: str = option("label", "Column of class numbers.")
    probabilities_column: str = option("probabilities", "Column with a list of probabilities per row.")
    skip_bad_rows: bool = option(False, "Skip and list bad rows.")


COMMAND = Command(
    "calibrate",
    "measure the calibration of saved predictions: a table and reliability diagrams",
    CalibrateOptions,
    run="alignattn.commands.calibrate.command:calibrate",
    draws=True,
    examples=("alignattn calibrate runs/mrpc/predictions.parquet --fit_on validation --output_dir calibration",),
)
