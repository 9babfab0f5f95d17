"""`alignattn predict`."""

import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from alignattn.finetuning.data_options import BEAMS_HELP, MAX_BEAMS
from alignattn.finetuning.run_folder import check_finished
from alignattn.utils import places
from alignattn.utils.command import Command
from alignattn.utils.compression import check_encoding
from alignattn.utils.errors import AlignAttnError, check_installed
from alignattn.utils.option import REQUIRED, Count, InputDir, OutputDir, OutputFile, Processes, option
from alignattn.utils.options import Options, options_of
from alignattn.utils.shard import WHOLE, Shard

STANDARD_STREAM = "-"
FORMATS = (".csv", ".tsv", ".jsonl", ".parquet")
PICTURES = (".png", ".svg", ".pdf")
LOCAL, RAY = "local", "ray"

SET_NAMES = ("lac", "aps")
"""The names in `alignattn.evaluation.calibration.decisions.SET_SCORES`, whose import needs SciPy."""
SETS_HELP = "lac: the smallest sets if probabilities are true; aps: larger sets for harder rows."

OF_A_FOLDER = ("output_dir", "shard", "launcher")
OF_A_FILE = ("output_file", "explain")
ON_RAY = (f"launcher={RAY}",)
MANY_GROUP, PICTURE_GROUP = "many files", "picture"
"""Groups in the help."""


def _rows(label: str, value: str) -> None:
    if value != STANDARD_STREAM:
        places.input_path(label, value)


@dataclass(frozen=True, kw_only=True)
class PredictOptions(Options):
    """The options of `alignattn predict`."""

    run: InputDir = option(REQUIRED, "Folder of a finished run.")
    file: str | None = option(
        None,
        "New rows in a format of finetune; - for standard input; or a folder of Parquet files.",
        metavar="FILE",
        place=_rows,
    )
    text: tuple[str, ...] | None = option(
        None, "Texts to predict; for pairs, both.", metavar="TEXT", excludes={"file": "each says what to predict"}
    )
    output_file: OutputFile | None = option(
        None, f"{', '.join(FORMATS)} (default: next to the file; standard output for --text and -).", endings=FORMATS
    )
    encoding: str | None = option(None, "Encoding of a text file (default: utf-8).", metavar="NAME")
    top_k: Count | None = option(None, "Classes or answers per row (default: all classes; one answer).")
    coverage: float | None = option(
        None, "Also give sets of classes that contain the label with this probability.", above=0, below=1
    )
    sets: str = option("lac", SETS_HELP, choices=SET_NAMES, requires=("coverage",))
    max_error: float | None = option(
        None, "Also give decisions: a class or abstain, with at most this error rate.", above=0, below=1
    )
    temperature: str | None = option(None, "A number, or the calibration.json of `alignattn calibrate`.", metavar="T")
    num_beams: Count | None = option(
        None, f"{BEAMS_HELP.removesuffix('.')} (default: the run's).", high=MAX_BEAMS, metavar="N"
    )
    skip_bad_rows: bool = option(False, "Leave predictions of bad rows empty.")
    batch_size: Count | None = option(None, "Batch size (default: by the device).")
    in_order: bool = option(False, "Use the run's evaluation batches, for bitwise equal numbers.")
    output_dir: OutputDir | None = option(
        None, "Folder for the predictions of a folder (default: next to it).", group=MANY_GROUP
    )
    shard: str = option(str(WHOLE), "Predict one part of the files, such as 3/8.", group=MANY_GROUP, metavar="N/COUNT")
    launcher: str = option(
        LOCAL, f"{LOCAL}, or {RAY}: distribute files over a cluster.", group=MANY_GROUP, choices=(LOCAL, RAY)
    )
    processes: Processes | None = option(
        None, "Files predicted in parallel (default: as many as fit).", group=MANY_GROUP, requires=ON_RAY
    )
    ray_address: str | None = option(
        None, "Address of a Ray cluster (default: start one).", group=MANY_GROUP, requires=ON_RAY
    )
    explain: OutputFile | None = option(
        None, "Draw a head's attention in the first row.", group=PICTURE_GROUP, endings=PICTURES
    )
    layer: int | None = option(
        None, "Layer of that head, from 0 (default: the last).", group=PICTURE_GROUP, low=0, requires=("explain",)
    )
    head: int = option(0, "Head, from 0.", group=PICTURE_GROUP, low=0, requires=("explain",))

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.part, self.temperature_number
        check_encoding(self.encoding)
        if self.file is None and self.text is None:
            raise AlignAttnError("nothing to predict: give --file FILE, or --text TEXT")
        if self.explain is not None:
            check_installed("matplotlib", "plots", "--explain")
        if self.file is not None:
            _rows("--file", self.file)
        check_finished(Path(self.run), "--run")
        known = options_of(type(self))
        for name in OF_A_FILE if self.is_folder else OF_A_FOLDER:
            if getattr(self, name) != known[name].default:
                other = "one file or texts" if self.is_folder else "a folder of Parquet files, as --file"
                raise AlignAttnError(f"--{name} is for {other}: leave it out")

    @property
    def is_folder(self) -> bool:
        """Whether the rows are the Parquet files of a folder; a folder of class folders counts as one file."""
        return self.file is not None and next(Path(self.file).rglob(f"*{FORMATS[-1]}"), None) is not None

    @property
    def decides(self) -> bool:
        """Whether sets or decisions are requested."""
        return self.coverage is not None or self.max_error is not None

    @cached_property
    def part(self) -> Shard:
        """The requested shard."""
        return Shard.parse(self.shard)

    @cached_property
    def temperature_number(self) -> float | None:
        """The temperature given as a number; None for a file, or without `--temperature`."""
        if self.temperature is None:
            return None
        try:
            number = float(self.temperature)
        except ValueError:
            return None
        if not (math.isfinite(number) and number > 0):
            raise AlignAttnError(f"--temperature {self.temperature} must be a finite number, above 0")
        return number


COMMAND = Command(
    "predict",
    "predict new rows with a finished run: classes, scores, answers, tags, choices",
    PredictOptions,
    run="alignattn.commands.predict.command:predict",
    # Several calls may each predict a part of a folder's files.
    shares_folder=True,
    examples=(
        "alignattn predict --run runs/mrpc --file new.csv --output_file predicted.csv",
        'alignattn predict --run runs/mrpc --text "He said so ." "So he said ."',
        "alignattn predict --run runs/mrpc --file new.csv --coverage 0.9 --max_error 0.05",
        "alignattn predict --run runs/mrpc --file parts --output_dir predicted --shard 3/8",
    ),
)
