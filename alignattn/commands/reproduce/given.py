"""The options that a table or a user may set for the commands whose runs fill a table."""

import os
from collections.abc import Sequence
from dataclasses import make_dataclass
from pathlib import Path
from typing import Any

from alignattn.commands import get_command, results_of
from alignattn.utils.command import OUTPUT_DIR
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.options import (
    Options,
    build_parser,
    checked_values,
    option_names,
    options_of,
    read_words,
)


def is_table_option(command: str, name: str) -> bool:
    """Return whether a command has an option of this name that a table or a user may set."""
    withheld = {OUTPUT_DIR, *results_of(command).withheld}
    options = get_command(command).options
    # Another library is imported only for a name that is not one of ours.
    return name not in withheld and (name in options_of(options) or name in option_names(options))


def owners_of(commands: Sequence[str], name: str) -> list[type[Options]]:
    """Return the options of each of a table's commands that has one of this name, of the command or of that it needs.

    Raises:
        AlignAttnError: if none has.
    """
    owners = []
    for command in commands:
        having = [one for one in (command, results_of(command).needs) if one and is_table_option(one, name)]
        owners += [get_command(one).options for one in having[:1]]
    if not owners:
        known = {other for command in commands for other in option_names(get_command(command).options)}
        raise AlignAttnError(f"--{name} is not an option of {' or '.join(commands)}{did_you_mean(name, known)}")
    return owners


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


def digest_value(options: type[Options], name: str, value: Any) -> Any:
    """Return the canonical form of an option's value, which a digest contains.

    The path of an existing file or folder becomes absolute, so that equal options name equal data from any folder.
    """
    checked = checked_values(options, {name: value})[name]
    known = options_of(options).get(name)
    is_path = known is not None and known.is_path

    def plain(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        # A model's name without a separator may be a Hub id, even if a folder has that name.
        if not isinstance(value, str) or not (is_path or os.sep in value) or not (path := Path(value)).exists():
            return value
        # The target of a linked file, such as a blob of a cache, has no suffix that tells the format.
        return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())

    values = [plain(one) for one in checked] if isinstance(checked, tuple | list) else [plain(checked)]
    return values[0] if len(values) == 1 else values
