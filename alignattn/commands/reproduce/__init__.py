"""`alignattn reproduce`: reproduce the papers' tables; each is a YAML file."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from alignattn.finetuning.tables import TABLES
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import REQUIRED, Count, Options, OutputDir, Processes, Seed, option, options_of
from alignattn.utils.ray_cluster import GPU_PARTS

if TYPE_CHECKING:
    from alignattn.commands.reproduce.table import Table

NUM_SEEDS = 5
ON_RAY = ("launcher=ray",)


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options):
    """The options of `alignattn reproduce`; all others are passed to the table's commands."""

    table: str = option(REQUIRED, f"{', '.join(TABLES)}, or your own YAML file.", positional=True, metavar="TABLE")
    seeds: tuple[Seed, ...] | None = option(None, "Seeds of the runs of each cell.", distinct="seed")
    num_seeds: Count | None = option(None, f"Use the seeds 1 to N (default: the table's, or {NUM_SEEDS}).", high=1000)
    tasks: tuple[str, ...] | None = option(
        None, "Columns by their tasks or pairs (default: the table's `default_tasks`, or all).", metavar="TASK"
    )
    models: tuple[str, ...] | None = option(None, "Subset of the table's models (default: all).")
    attentions: tuple[str, ...] | None = option(None, "Subset of the table's attentions (default: all).")
    note: str | None = option(None, "Sentence below the table.", metavar="TEXT")
    dry_run: bool = option(False, "List the runs with an estimate of time; run none.")
    finished_only: bool = option(
        False, "Write the table of finished runs; run none.", excludes={"dry_run": "--dry_run writes no table"}
    )
    launcher: str = option("local", "Where the runs run: local or ray.", choices=("local", "ray"))
    processes: Processes | None = option(None, "Parallel runs (default: as many as fit, or 1).")
    gpu_share: float | None = option(
        None, "GPUs per run on Ray (default: 1).", low=1 / GPU_PARTS, high=1, requires=ON_RAY
    )
    ray_address: str | None = option(
        None, "Address of a Ray cluster (default: start one).", metavar="ADDRESS", requires=ON_RAY
    )
    output_dir: OutputDir = option("results", "Folder for the runs and the tables.")
    others: tuple[str, ...] = option((), "Options of the table's commands.", rest=True, metavar="[options of its runs]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.num_seeds is not None and len(self.seeds or ()) not in (0, self.num_seeds):
            raise AlignAttnError(
                f"--num_seeds {self.num_seeds} differs from the number of --seeds: leave one of them out"
            )
        # Report errors before anything heavy is imported.
        _ = self.selected_table

    def check_places(self, *, reads: bool = True) -> None:
        """Also check the paths of the commands' options, unless there are runs, which may be finished."""
        super().check_places(reads=reads)
        # Imported here, because `--help` does not need them.
        from alignattn.commands.reproduce.experiment import owners_of
        from alignattn.commands.reproduce.folder import RUNS_FOLDER

        table = self.selected_table
        if not (self.dry_run or self.finished_only or (Path(self.output_dir) / RUNS_FOLDER).exists()):
            for name, value in table.given.items():
                for options in owners_of(table.commands, name):
                    if known := options_of(options).get(name):
                        known.check_place(value)

    @cached_property
    def selected_table(self) -> "Table":
        """The table with the given options and the selected rows and columns."""
        # Imported here: these modules read files, which `--help` does not need.
        from alignattn.commands.reproduce.experiment import read_given
        from alignattn.commands.reproduce.table import load_table

        table = load_table(self.table, kept=self.finished_only)
        table = table.with_options(read_given(table.commands, self.others))
        return table.narrowed(tasks=self.tasks, models=self.models, attentions=self.attentions)


COMMAND = Command(
    "reproduce",
    "reproduce a table of a paper: execute missing runs, and write the results next to the published numbers",
    ReproduceOptions,
    run="alignattn.commands.reproduce.command:reproduce",
    shares_folder=True,
    examples=(
        "alignattn reproduce table1 --dry_run",
        "alignattn reproduce table1 --tasks mrpc rte --attentions soft aa-ct --num_train_epochs 1",
    ),
)
