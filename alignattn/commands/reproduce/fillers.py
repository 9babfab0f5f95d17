"""The commands whose runs fill tables: those with a `FILLER` in the module `filler` of their room."""

from importlib import import_module
from importlib.util import find_spec

from alignattn.commands import COMMANDS, get_command
from alignattn.runs.filler import OUTPUT_DIR, Filler
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import options_of


def filler_of(command: str) -> Filler:
    """Return what a command is as a filler of tables.

    Raises:
        AlignAttnError: if there is no such command, or it fills no tables.
    """
    get_command(command)
    module = f"{COMMANDS[command]}.filler"
    if find_spec(module) is None:
        raise AlignAttnError(f"alignattn {command} fills no tables")
    filler: Filler = import_module(module).FILLER
    return filler


def own_option_names(command: str) -> frozenset[str]:
    """Return the options of a command that a table or a user may give."""
    filler = filler_of(command)
    names = options_of(get_command(command).options).keys() - {OUTPUT_DIR} - filler.withheld
    return frozenset(filler.in_tables.get(name, name) for name in names)


def option_names(command: str) -> frozenset[str]:
    """Return the options that a table of a command may give: its own, and those of the command that it needs."""
    needs = filler_of(command).needs
    return own_option_names(command) | (option_names(needs) if needs else frozenset())
