"""`alignattn list`."""

from dataclasses import dataclass

from alignattn.utils.command import Command
from alignattn.utils.option import option
from alignattn.utils.options import Options

WHAT = ("slots", "presets", "tasks", "models", "tables")


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    """The options of `alignattn list`."""

    what: tuple[str, ...] = option(
        WHAT, f"{', '.join(WHAT)} (default: all).", choices=WHAT, positional=True, metavar="WHAT"
    )


COMMAND = Command(
    "list",
    "list the slots, presets, tasks, models and tables, with their sources",
    ListOptions,
    run="alignattn.commands.list.command:print_lists",
    examples=("alignattn list slots presets",),
)
