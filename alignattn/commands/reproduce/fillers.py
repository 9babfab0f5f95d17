"""The commands whose runs fill tables: those with a `FILLER` in the module `filler` of their room."""

from collections.abc import Mapping
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from alignattn.commands import COMMANDS, get_command
from alignattn.runs.filler import OUTPUT_DIR, Filler
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import Option, did_you_mean, options_of


def filler_of(command: str) -> Filler:
    """Return what a command is as a filler of tables."""
    get_command(command)
    module = f"{COMMANDS[command]}.filler"
    if find_spec(module) is None:
        raise AlignAttnError(f"alignattn {command} fills no tables")
    filler: Filler = import_module(module).FILLER
    return filler


def own_options(command: str) -> Mapping[str, Option]:
    """Return the options of a command that a table or a user may give, by their name in tables."""
    filler = filler_of(command)
    withheld = {OUTPUT_DIR, *filler.withheld}
    known = options_of(get_command(command).options).values()
    own = [replace(option, name=filler.in_tables.get(option.name, option.name)) for option in known]
    return {option.name: option for option in own if option.name not in withheld}


def options_for(command: str) -> Mapping[str, Option]:
    """Return the options that a table of a command may give: its own, and those of the command that it needs."""
    needs = filler_of(command).needs
    return {**(options_for(needs) if needs else {}), **own_options(command)}


def check_option(command: str, name: str, value: Any) -> None:
    """Check an option that a table of a command gives."""
    known = options_for(command)
    if name not in known:
        raise AlignAttnError(f"--{name} is no option of {command}{did_you_mean(name, known)}")
    known[name].checked(value)
