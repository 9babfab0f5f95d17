"""`alignattn calibrate`."""

from dataclasses import dataclass

from alignattn.support.command import Command
from alignattn.support.options import REQUIRED, Options, option

CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `alignattn calibrate`."""

    files: tuple[str, ...] = option(REQUIRED, "Parquet files of predictions.", positional=True, metavar="PREDICTIONS")
    output_dir: str = option(
        "calibration", f"Folder for {CALIBRATION_FILE} and one reliability diagram a split.", metavar="DIR"
    )
    num_bins: int = option(10, "Bins of the calibration errors and of the diagrams.", low=1)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all).")
    fit_on: str | None = option(
        None, "Split on one half of which a temperature is fitted; the other half is reported.", metavar="SPLIT"
    )
    resamples: int = option(1000, "Bootstrap resamples behind each interval.", low=1)
    seed: int = option(42, "Seed of the halves and of the resamples.", low=0)
    label_column: str = option("label", "Column of class numbers.")
    probabilities_column: str = option("probabilities", "Column of a list of probabilities a row.")
    skip_bad_rows: bool = option(False, "Leave bad rows out, and list them.")


COMMAND = Command(
    "calibrate",
    "how far confidence is from accuracy in saved predictions, as a table and reliability diagrams",
    CalibrateOptions,
    run="alignattn.commands.calibrate.command:calibrate",
    examples=("alignattn calibrate runs/mrpc/predictions.parquet --fit_on validation --output_dir calibration",),
)
