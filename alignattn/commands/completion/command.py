"""Shell completion of all commands, by shtab."""

import argparse

import shtab

from alignattn.commands import COMMANDS, get_command
from alignattn.commands.completion import CompletionOptions
from alignattn.utils.command import Command
from alignattn.utils.options import all_options_of

COMPLETED = {"FILE": shtab.FILE, "DIR": shtab.DIRECTORY}
"""How a shell completes a value, by the value's metavar."""


def print_completion(options: CompletionOptions) -> None:
    """Print a script that completes `alignattn` in a shell."""
    parser = argparse.ArgumentParser(prog="alignattn")
    commands = parser.add_subparsers()
    for name in COMMANDS:
        _add(commands, get_command(name))
    print(shtab.complete(parser, shell=options.shell))


def _add(commands: "argparse._SubParsersAction[argparse.ArgumentParser]", command: Command) -> None:
    word = command.name.split()[-1]
    parser = commands.add_parser(word, help=command.help, parents=[command.parser(everything=True)], add_help=False)
    known = all_options_of(command.options)
    for action in parser._actions:
        option = known.get(action.dest)
        if option and option.choices:
            action.choices = option.choices
        elif option and option.placeholder in COMPLETED:
            action.complete = COMPLETED[option.placeholder]  # type: ignore[attr-defined]  # shtab's own attribute
