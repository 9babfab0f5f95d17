"""`alignattn compare`."""

from dataclasses import dataclass
from pathlib import Path

from alignattn.finetuning.run_folder import runs_folder
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, OutputDir, option
from alignattn.utils.options import Options

MIN_RUNS = 2


@dataclass(frozen=True, kw_only=True)
class CompareOptions(Options):
    """The options of `alignattn compare`."""

    runs: tuple[str, ...] = option(
        REQUIRED,
        "Run folders, or folders with one run per seed.",
        positional=True,
        metavar="RUNS",
        place=runs_folder,
    )
    baseline: str | None = option(
        None, "Run to compare the others with (default: the first).", metavar="RUNS", place=runs_folder
    )
    names: tuple[str, ...] | None = option(None, "Names of the runs (default: last parts of their paths).")
    output_dir: OutputDir = option("comparison", "Folder for the table in all formats and a picture.")

    def __post_init__(self) -> None:
        super().__post_init__()
        folders = self.folders
        if len(folders) < MIN_RUNS:
            raise AlignAttnError(f"compare needs at least {MIN_RUNS} folders of runs, the baseline first")
        if len({folder.resolve() for folder in folders}) < len(folders):
            raise AlignAttnError(f"{' '.join(self.runs)} lists a folder twice: give each once")
        if self.names is not None and (len(self.names) != len(folders) or len(set(self.names)) < len(folders)):
            raise AlignAttnError(
                f"--names {' '.join(self.names)}: give {len(folders)} different names, one for each of "
                f"{' '.join(map(str, folders))}"
            )

    @property
    def folders(self) -> list[Path]:
        """The folders to compare, the baseline first; it need not be among `runs`."""
        given = list(map(Path, self.runs))
        if self.baseline is None:
            return given
        first = Path(self.baseline)
        return [first, *(folder for folder in given if folder.resolve() != first.resolve())]


COMMAND = Command(
    "compare",
    "compare finished runs: scores, paired differences to the first run, and the options that differ",
    CompareOptions,
    run="alignattn.commands.compare.command:compare_runs",
    examples=(
        "alignattn compare runs/mrpc-soft runs/mrpc-ct --output_dir comparison",
        "alignattn compare runs/*/seed-1 --baseline runs/mrpc-soft/seed-1",
    ),
)
