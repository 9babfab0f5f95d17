"""The registry of commands, each a module, or a package if it is large."""

from collections.abc import Mapping
from importlib import import_module

from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.options import options_of

COMMANDS: Mapping[str, str] = {
    "finetune": "alignattn.commands.finetune",
    "predict": "alignattn.commands.predict",
    "export": "alignattn.commands.export",
    "serve": "alignattn.commands.serve",
    "domain-shift": "alignattn.commands.domain_shift",
    "robustness": "alignattn.commands.robustness",
    "inspect": "alignattn.commands.inspect",
    "figure": "alignattn.commands.figure",
    "compare": "alignattn.commands.compare",
    "balance": "alignattn.commands.balance",
    "reproduce": "alignattn.commands.reproduce",
    "calibrate": "alignattn.commands.calibrate",
    "uncertainty": "alignattn.commands.uncertainty",
    "list": "alignattn.commands.list",
}
"""The module of each command; its `COMMAND` describes it."""


def get_command(name: str) -> Command:
    """Return a command; raises `AlignAttnError` if there is none of this name."""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f": choose one of {', '.join(COMMANDS)}"
        raise AlignAttnError(f"unknown command {name!r}{hint}")
    command: Command = import_module(COMMANDS[name]).COMMAND
    return command


def results_of(name: str) -> TableResults:
    """Return how a table reads the results of a command; raises `AlignAttnError` if no table can."""
    results = get_command(name).results
    if results is None:
        raise AlignAttnError(f"the results of alignattn {name} cannot fill a table")
    return results


def commands_with_option(option: str) -> list[str]:
    """Return the names of the commands with this named option, positional ones excluded."""
    known = {name: options_of(get_command(name).options) for name in COMMANDS}
    return [name for name, options in known.items() if option in options and not options[option].positional]
