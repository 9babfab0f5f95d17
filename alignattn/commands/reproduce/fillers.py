"""The commands whose runs fill tables, by name: each has its filler in its own room."""

from alignattn.runs.filler import Filler
from alignattn.support.registry import Entry, Registry

FILLERS = Registry(
    "command of a table",
    {
        "finetune": Entry(".finetune.filler:FinetuneFiller", ""),
        "domain-shift": Entry(".domain_shift.filler:DomainShiftFiller", ""),
        "robustness": Entry(".robustness.filler:RobustnessFiller", ""),
        "benchmark": Entry(".benchmark.filler:BenchmarkFiller", ""),
    },
    "alignattn.commands",
)


def filler_of(command: str) -> Filler:
    """Return what a command is as a filler of tables.

    Raises:
        AlignAttnError: if none of that name fills tables.
    """
    filler: Filler = FILLERS.load(command)()
    return filler
