"""The options that a table or a user may set for the commands whose runs fill a table."""

import os
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from alignattn.commands import get_command, results_of
from alignattn.utils.command import OUTPUT_DIR
from alignattn.utils.command_line import build_parser, read_words
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.option import Option
from alignattn.utils.options import Options, all_options_of, find_option


def table_option(command: str, name: str) -> Option | None:
    """Return a command's option with this name; None if it has none that a table or a user may set."""
    withheld = {OUTPUT_DIR, *results_of(command).withheld}
    return None if name in withheld else find_option(get_command(command).options, name)


def options_with_name(commands: Sequence[str], name: str) -> list[Option]:
    """Return the option with this name of each of a table's commands that has it; raises `AlignAttnError` if none has.

    The options of the command that a command needs count as its own.
    """
    found: list[Option] = []
    for command in commands:
        needs = results_of(command).needs
        found += filter(None, [table_option(command, name) or (table_option(needs, name) if needs else None)])
    if not found:
        known = {other for command in commands for other in all_options_of(get_command(command).options)}
        raise AlignAttnError(f"--{name} is not an option of {' or '.join(commands)}{did_you_mean(name, known)}")
    return found


def read_given(commands: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Parse words into options, by name, of a table's commands and of the commands that these depend on."""
    if words and not words[0].startswith("--"):
        raise AlignAttnError(
            f"{words[0]!r} is not an option: alignattn reproduce expects the name of one table (see --help)"
        )
    needed = [results_of(command).needs for command in commands]
    # Messages name the first.
    names = list(dict.fromkeys(name for name in (*needed, *commands) if name is not None))
    groups = [(name.replace("-", "_"), get_command(name).options) for name in names]
    options = make_dataclass("TableOptions", groups, bases=(Options,), frozen=True, kw_only=True)
    return read_words(options, words, build_parser(options, get_command(names[0]).prog))


def digest_value(option: Option, value: Any) -> Any:
    """Return the canonical form of an option's value, which a digest contains.

    The path of an existing file or folder becomes absolute, so that equal options name equal data from any folder.
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
    # A model's name without a separator may be a Hub id, even if a folder has that name.
    is_path = os.sep in value or option.is_path
    path = Path(value)
    if not (is_path and path.exists()):
        return value
    # The target of a linked file, such as a blob of a cache, has no suffix that tells the format.
    return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())
