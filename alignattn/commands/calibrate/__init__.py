"""`alignattn calibrate`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from alignattn.finetuning.run_files import CALIBRATION_FOLDER
from alignattn.finetuning.run_folder import check_finished
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import Count, InputDir, OutputDir, Seed, option
from alignattn.utils.options import Options
from alignattn.utils.places import input_file_like, input_path

CALIBRATION_FILE = "calibration.json"

SCALING_NAMES = ("vector", "isotonic")
"""The names in `alignattn.evaluation.calibration.SCALINGS`, whose import needs SciPy."""
ALSO_HELP = "Further fits on the same half: vector, isotonic."
RUN_HELP = f"A run to calibrate for `predict`; the output goes to its folder {CALIBRATION_FOLDER}."
ONE_SPLIT = "a run is calibrated on one split"

MAX_BINS, MAX_RESAMPLES = 1000, 100_000
"""More take minutes and change nothing."""


@dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `alignattn calibrate`."""

    files: tuple[str, ...] = option(
        (),
        "Parquet files of predictions.",
        positional=True,
        metavar="PREDICTIONS",
        place=input_file_like("predictions*.parquet"),
    )
    run: InputDir | None = option(
        None,
        RUN_HELP,
        excludes={"files": "a run predicts its rows itself", "split": ONE_SPLIT, "in_domain": ONE_SPLIT},
    )
    rows: str | None = option(
        None,
        "Labelled rows that the run has not seen (default: its first evaluation split, or that of --fit_on).",
        metavar="FILE",
        place=input_path,
        requires=("run",),
        excludes={"fit_on": "the file is one split"},
    )
    output_dir: OutputDir = option("calibration", f"Folder for {CALIBRATION_FILE} and report.html.")
    num_bins: Count = option(10, "Bins of the calibration errors and of the diagrams.", high=MAX_BINS)
    split: tuple[str, ...] | None = option(None, "Splits to report (default: all).")
    fit_on: str | None = option(
        None, "Fit a temperature on half of this split; report the other half.", metavar="SPLIT"
    )
    also_fit: tuple[str, ...] = option(
        (), ALSO_HELP, choices=SCALING_NAMES, distinct="method", requires=("fit_on", "run")
    )
    in_domain: str | None = option(
        None, "Also report the AUROC of confidence, this split against each other one.", metavar="SPLIT"
    )
    resamples: Count = option(1000, "Bootstrap resamples per interval.", high=MAX_RESAMPLES)
    seed: Seed = option(42, "Seed of the halves and of the resamples.")
    label_column: str = option("label", "Column of class numbers.")
    probabilities_column: str = option("probabilities", "Column with a list of probabilities per row.")
    skip_bad_rows: bool = option(False, "Skip and list bad rows.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run is None:
            if not self.files:
                raise AlignAttnError("nothing to calibrate: give files of predictions, or --run RUN")
            return
        check_finished(Path(self.run), "--run")
        if Path(self.output_dir) != Path(self.run) / CALIBRATION_FOLDER:
            raise AlignAttnError(f"--output_dir: `predict` reads the calibration in {self.run}: leave it out")

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the output folder of a run."""
        run = values.get("run")
        return {} if run is None else {"output_dir": str(Path(run) / CALIBRATION_FOLDER)}


COMMAND = Command(
    "calibrate",
    "measure the calibration of predictions, or calibrate a run for decisions",
    CalibrateOptions,
    run="alignattn.commands.calibrate.command:calibrate",
    examples=(
        "alignattn calibrate runs/mrpc/predictions.parquet --fit_on validation --output_dir calibration",
        "alignattn calibrate --run runs/mrpc",
    ),
)
