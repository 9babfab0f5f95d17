"""The commands, one room each: adding one is its room and its line here."""

from collections.abc import Mapping
from importlib import import_module

from alignattn.support.command import Command
from alignattn.support.errors import AlignAttnError, did_you_mean

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
    "benchmark": "alignattn.commands.benchmark",
    "demo": "alignattn.commands.demo",
    "list": "alignattn.commands.list",
    "completion": "alignattn.commands.completion",
}
"""The module of each, whose `COMMAND` says all about it."""


def get_command(name: str) -> Command:
    """Return a command."""
    if name not in COMMANDS:
        hint = did_you_mean(name, COMMANDS) or f": choose one of {', '.join(COMMANDS)}"
        raise AlignAttnError(f"unknown command {name!r}{hint}")
    command: Command = import_module(COMMANDS[name]).COMMAND
    return command
