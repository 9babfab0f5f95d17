"""The registry of commands, each a package."""

from collections.abc import Iterator, Mapping
from importlib import import_module

from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.options import options_of

COMMANDS: Mapping[str, str] = {
    "finetune": "alignattn.commands.finetune",
    "predict": "alignattn.commands.predict",
    "domain-shift": "alignattn.commands.domain_shift",
    "robustness": "alignattn.commands.robustness",
    "inspect": "alignattn.commands.inspect",
    "figure": "alignattn.commands.figure",
    "compare": "alignattn.commands.compare",
    "balance": "alignattn.commands.balance",
    "reproduce": "alignattn.commands.reproduce",
    "calibrate": "alignattn.commands.calibrate",
    "uncertainty": "alignattn.commands.uncertainty",
    "benchmark": "alignattn.commands.benchmark",
    "demo": "alignattn.commands.demo",
    "list": "alignattn.commands.list",
    "completion": "alignattn.commands.completion",
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


def all_commands() -> Iterator[Command]:
    """Yield every command, each before its subcommands."""
    for name in COMMANDS:
        command = get_command(name)
        yield command
        yield from command.subcommands.values()


def commands_with_option(option: str) -> list[str]:
    """Return the names of the commands with this named option, positional ones excluded."""
    known = {command.name: options_of(command.options) for command in all_commands()}
    return [name for name, options in known.items() if option in options and not options[option].positional]
