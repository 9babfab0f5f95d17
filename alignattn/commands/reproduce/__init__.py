"""`alignattn reproduce`: the papers' tables as data, what fills each cell, and what was measured beside it."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources

import yaml

from alignattn.runs.training_options import LARGEST_SEED
from alignattn.support.command import Command
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import REQUIRED, Options, option

TABLES = resources.files(__name__) / "tables"
LAUNCHERS = ("local", "ray")


def table_names() -> list[str]:
    """Return the names of the tables that there are."""
    return sorted(path.name.removesuffix(".yaml") for path in TABLES.iterdir())


def table_titles() -> dict[str, str]:
    """Return the titles of the tables that there are, by name."""
    contents = {name: (TABLES / f"{name}.yaml").read_text(encoding="utf-8") for name in table_names()}
    return {name: yaml.safe_load(content)["title"] for name, content in contents.items()}


@dataclass(frozen=True, kw_only=True)
class ReproduceOptions(Options):
    """The options of `alignattn reproduce`; every other one is given to the commands that fill the table."""

    table: str = option(REQUIRED, f"One of {', '.join(table_names())}.", positional=True, metavar="TABLE")
    num_seeds: int = option(5, "Runs of each cell, with the seeds 1 to N.", low=1)
    seeds: tuple[int, ...] | None = option(
        None, "In place of --num_seeds: the seeds of each cell.", low=0, high=LARGEST_SEED, distinct="seed"
    )
    tasks: tuple[str, ...] | None = option(None, "Tasks or pairs, of the table's (default: all).", metavar="TASK")
    models: tuple[str, ...] | None = option(None, "Models, of the table's (default: all).")
    attentions: tuple[str, ...] | None = option(None, "Attentions, of the table's (default: all).")
    note: str | None = option(None, "A sentence to stand below the table.", metavar="TEXT")
    dry_run: bool = option(False, "Run nothing: list the runs, with an estimate of time.")
    launcher: str = option("local", "Where the runs run: local or ray.", choices=LAUNCHERS)
    processes: int | None = option(
        None, "Runs at once (default: one for each GPU, or one; with Ray as many as fit).", low=1
    )
    ray_address: str | None = option(None, "Of a Ray cluster (default: an embedded one).", metavar="ADDRESS")
    output_dir: str = option("results", "Folder for the runs and the tables.", metavar="DIR")
    others: tuple[str, ...] = option((), "Options of the commands that fill the table.", rest=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.seeds is not None and len(self.seeds) == 1:
            count = self.seeds[0]
            raise AlignAttnError(f"--seeds lists seeds, as 1 2 3; how many a cell has is --num_seeds {count}")

    @property
    def all_seeds(self) -> Sequence[int]:
        """The seeds of each cell."""
        return self.seeds or range(1, self.num_seeds + 1)


COMMAND = Command(
    "reproduce",
    "a table of a paper, measured: what is missing of it is run, and written beside the published figures",
    ReproduceOptions,
    run="alignattn.commands.reproduce.command:reproduce",
    examples=(
        "alignattn reproduce table1 --dry_run",
        "alignattn reproduce table1 --tasks mrpc rte --attentions soft aa-ct --num_train_epochs 1",
    ),
)
