"""The options that a table or a user may give to the commands whose runs fill a table."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from alignattn.commands import get_command, results_of
from alignattn.utils.command import OUTPUT_DIR
from alignattn.utils.command_line import build_parser, read_words
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.meant_options import meant_option
from alignattn.utils.option import Option
from alignattn.utils.options import Options, options_of


def own_options(command: str) -> Mapping[str, Option]:
    """Return the options of a command that a table or a user may give."""
    known, withheld = options_of(get_command(command).options), {OUTPUT_DIR, *results_of(command).withheld}
    return {name: option for name, option in known.items() if name not in withheld}


def options_for(command: str) -> Mapping[str, Option]:
    """Return the options that a table of a command may give: its own, and those of the command that it needs."""
    needs = results_of(command).needs
    return {**(options_for(needs) if needs else {}), **own_options(command)}


def options_named(commands: Sequence[str], name: str) -> list[Option]:
    """Return the option of that name of each command that has it, of those whose runs fill a table; at least one."""
    of_each = [options_for(command) for command in commands]
    found = [known[name] for known in of_each if name in known]
    if not found:
        hint = meant_option(name, {known: option for options in of_each for known, option in options.items()})
        raise AlignAttnError(f"--{name} is no option of {' or '.join(commands)}{hint}")
    return found


def read_given(commands: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Return what words give by name of the options of commands whose runs fill a table, and of those they need."""
    if words and not words[0].startswith("--"):
        raise AlignAttnError(f"{words[0]!r} is no option: alignattn reproduce takes the name of one table (see --help)")
    needed = [results_of(command).needs for command in commands]
    # The first stands for all in messages.
    names = list(dict.fromkeys(name for name in (*needed, *commands) if name is not None))
    groups = [(name.replace("-", "_"), get_command(name).options) for name in names]
    options = make_dataclass("TableOptions", groups, bases=(Options,), frozen=True, kw_only=True)
    parser = build_parser(options, get_command(names[0]).prog)
    parser.known |= options_of(get_command("reproduce").options)
    return read_words(options, words, parser)


def in_digests(option: Option, value: Any) -> Any:
    """Return the one form in which a digest holds what a user gives for an option, however it is written.

    A file or folder has its whole path, for equal options to name equal data from wherever they are given.
    """
    checked = option.checked(value)
    if not isinstance(checked, tuple):
        return _plain(option, checked)
    values = [_plain(option, one) for one in checked]
    return values[0] if len(values) == 1 else values


def _plain(option: Option, value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if not isinstance(value, str):
        return value
    # A model's folder may be an id of the Hub, too: it is a folder where the words say so.
    is_path = os.sep in value or option.is_path
    return str(Path(value).resolve()) if is_path and Path(value).exists() else value
