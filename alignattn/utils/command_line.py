"""Parse a command line into options and print the help: argparse, with one-line errors."""

import argparse
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import BOOLEANS, NAMED_VALUE, REQUIRED, Option
from alignattn.utils.options import (
    Options,
    all_options_of,
    options_of,
    other_options_of,
    read_options_file,
    takes_other_options,
    unknown_options,
)

HELP_ALL = "--help-all"
HELP_COLUMN, HELP_WIDTH = 30, 80
"""The column where help texts begin, and the width of the help outside a terminal."""

CONFIG_HELP = "YAML of options; the command line overrides it."
CONFIG = Option(name="config", types=(str,), takes_none=True, metavar="FILE", help=CONFIG_HELP)


class OneLineErrorParser(argparse.ArgumentParser):
    """A parser whose errors are one line, not a page of usage."""

    def error(self, message: str) -> NoReturn:
        """Raise the error that argparse found."""
        raise AlignAttnError(f"{message} (see {self.prog} --help)")


class _Once(argparse.Action):
    """Stores a list; refuses a second one, because argparse would silently drop the first."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{option_string} is given twice: give all of its values after one")
        setattr(namespace, self.dest, values)


class _Formatter(argparse.RawDescriptionHelpFormatter):
    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        return f"{action.metavar} ..." if action.nargs == "+" else super()._format_args(action, default_metavar)


def read_words(options: type[Options], words: Sequence[str], parser: OneLineErrorParser) -> dict[str, Any]:
    """Return the options given by words, by name; they override those of the `--config` file.

    Args:
        options: the dataclass of options.
        words: the words after the command's name.
        parser: the parser of these options, from `build_parser`.

    Raises:
        UnknownOptionError: if a word is an unknown option.
    """
    known = options_of(options)
    given, left = _parsed(parser, known, words)
    rest = next((option.name for option in known.values() if option.rest), None)
    if rest is not None:
        given |= {rest: tuple(left)} if left else {}
    elif left:
        others = other_options_of(options)
        if others:
            parser = build_parser(options, parser.prog, everything=True)
            given, left = _parsed(parser, all_options_of(options), words)
        if unknown := [_name(word) for word in left if word.startswith("--")]:
            raise unknown_options(unknown, {**known, **others, CONFIG.name: CONFIG})
        if left:
            parser.error(f"unexpected words: {' '.join(left)}")
    path = CONFIG.checked(given.pop(CONFIG.name, None))
    if path is None:
        return given
    of_file = read_options_file(options, Path(path))
    for name, values in given.items():
        if name in known and known[name].metavar == NAMED_VALUE and of_file.get(name):
            given[name] = _joined(of_file[name], values)
    return of_file | given


def _joined(theirs: Sequence[str], mine: Sequence[str]) -> list[str] | None:
    """Merge named values: those of the command line override those of the file, and `NAME=` removes one."""
    entries = {entry.partition("=")[0]: entry for entry in theirs}
    for entry in mine:
        name, equals, value = entry.partition("=")
        if name in entries and equals and not value:
            del entries[name]
        else:
            entries[name] = entry
    return list(entries.values()) or None


def _parsed(
    parser: OneLineErrorParser, known: Mapping[str, Option], words: Sequence[str]
) -> tuple[dict[str, Any], list[str]]:
    parsed, left = parser.parse_known_intermixed_args(list(_normalised(known, words)))
    return vars(parsed), left


def _normalised(known: Mapping[str, Option], words: Sequence[str]) -> Iterator[str]:
    """Yield the words with underscores in option names, and a value for each flag without one."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        _, equals, value = word.partition("=")
        name = _name(word)
        if not word.startswith("--") or name not in known:
            # A value, such as a text that starts with a dash, or an unknown option.
            yield word
        elif known[name].is_flag and not equals and following.lower() not in BOOLEANS:
            yield f"--{name}=true"
        else:
            yield f"--{name}{equals}{value}"


def _name(word: str) -> str:
    """The field name of the option in a word of a command line."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")


def build_parser(
    options: type[Options], prog: str, *, description: str = "", epilog: str = "", everything: bool = False
) -> OneLineErrorParser:
    """Return the parser of a dataclass of options; it does not check values, `resolve` does.

    Args:
        options: the dataclass.
        prog: the command's words.
        description: what the command does.
        epilog: the end of the help.
        everything: whether to show rare options in the help and to accept the options of other libraries.
    """
    known = list((all_options_of if everything else options_of)(options).values())
    usage = [*(option.usage for option in known if option.is_required), "[options]"]
    width = max(shutil.get_terminal_size((HELP_WIDTH, 0)).columns - 2, 2 * HELP_COLUMN)
    parser = OneLineErrorParser(
        prog=prog,
        usage=" ".join([prog, *usage, *(option.metavar for option in known if option.rest)]),
        description=description,
        epilog=epilog,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=HELP_COLUMN, width=width),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for option in [*(option for option in known if not option.rest), CONFIG]:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        many, one = ("*", "?") if option.positional else ("+", None)
        groups[option.group].add_argument(
            option.name if option.positional else f"--{option.name}",
            metavar=option.placeholder,
            nargs=many if option.is_list else one,
            action=_action(option),
            help=argparse.SUPPRESS if option.rare and not everything else _help(option),
        )
    groups[CONFIG.group].add_argument("-h", "--help", action="help", help="Show this help.")

    class HelpAll(argparse.Action):
        def __call__(self, *args: Any) -> NoReturn:
            build_parser(options, prog, description=description, epilog=epilog, everything=True).print_help()
            parser.exit()

    has_more = any(option.rare for option in known) or takes_other_options(options)
    more_help = "Show all options." if has_more else argparse.SUPPRESS
    groups[CONFIG.group].add_argument(HELP_ALL, action=HelpAll, nargs=0, help=more_help)
    return parser


def _action(option: Option) -> Any:
    if option.metavar == NAMED_VALUE:
        return "extend"
    return _Once if option.is_list and not option.positional else "store"


def _help(option: Option) -> str:
    default, text = option.default, option.help
    is_told = "(default" in text or default == () or any(default is silent for silent in (REQUIRED, None, False))
    if not is_told:
        text += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    return text.replace("%", "%%")
