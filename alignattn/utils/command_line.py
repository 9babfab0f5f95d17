"""The words of a command line read as options, and the help: argparse, whose mistakes are one line here."""

import argparse
import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, NoReturn

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.meant_options import UnknownOptionError, meant_option, plain_option
from alignattn.utils.option import BOOLEANS, PLACEHOLDERS, REQUIRED, Option
from alignattn.utils.options import Options, options_of, read_options_file

HELP_ALL = "--help-all"
HELP_COLUMN = 30
USAGE = "usage: "
HELP_WIDTH = 80
"""Of a help that no terminal shows."""

CONFIG_HELP = "YAML of options; the command line overrides it."
CONFIG = Option(name="config", types=(str,), takes_none=True, metavar="FILE", help=CONFIG_HELP)


def read_words(options: type[Options], words: Sequence[str], parser: "OneLineErrorParser") -> dict[str, Any]:
    """Return the options that words give, by name; those of the file of `--config` where the words say nothing.

    Args:
        options: the dataclass of options.
        words: after the command's name.
        parser: of these options.
    """
    known = options_of(options)
    parsed, others = parser.parse_known_args(list(_normalised(known, words, parser)))
    given: dict[str, Any] = vars(parsed)
    for option in known.values():
        if option.rest:
            if HELP_ALL in others and not all(other.name in given for other in known.values() if other.positional):
                parser.print_help()
                parser.exit()
            given[option.name], others = tuple(others), []
        elif option.positional:
            values = list(takewhile(lambda word: not word.startswith("--"), others))[: None if option.is_list else 1]
            given |= {option.name: values if option.is_list else values[0]} if values else {}
            others = others[len(values) :]
    if others:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    path = CONFIG.checked(given.pop(CONFIG.name, None))
    if path is None:
        return given
    of_file = read_options_file(options, Path(path))
    for name in given:
        if name in of_file and known[name].is_named_values:
            given[name] = _joined(known[name].checked(of_file[name]), given[name])
    return of_file | given


def _joined(theirs: Sequence[str] | None, mine: Sequence[str]) -> list[str] | None:
    """Values by name of a file with those of a command line over them; `NAME=` leaves one of the file's out."""
    entries = {entry.partition("=")[0]: entry for entry in theirs or ()}
    for entry in mine:
        name, equals, value = entry.partition("=")
        if name in entries and equals and not value:
            del entries[name]
        else:
            entries[name] = entry
    return list(entries.values()) or None


@contextmanager
def naming_the_file(options: type[Options], words: Sequence[str]) -> Iterator[None]:
    """Say of a mistake in an option that nobody typed in which file of `--config` it stands.

    Args:
        options: the dataclass of options.
        words: that were typed.
    """
    try:
        yield
    except AlignAttnError as error:
        mistake = _MISTAKE.match(str(error))
        path = next((given for word, given in _given(words) if word == CONFIG.name), None)
        known = options_of(options).get(mistake[1]) if mistake else None
        if mistake is None or path is None or known is None:
            raise
        typed = [given for word, given in _given(words) if word == known.name]
        if known.name not in read_options_file(options, Path(path)) or (typed and not known.is_named_values):
            raise
        entry, advice = mistake[2], ""
        if known.is_named_values and entry is not None:
            if any(word.partition("=")[0] == entry for word in words):
                raise
            advice = f"; leave it out with {known.label} {entry}="
        raise AlignAttnError(f"{path}: {error}{advice}") from error


_MISTAKE = re.compile(r"(?:argument |a value of )?--(\w+)(?::? (\w+)=)?")
"""How a message on an option begins: its name, and that of one of its values."""


def _given(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The names of the options among words, each with what follows."""
    for word, following in zip(words, [*words[1:], ""], strict=False):
        if word.startswith("--"):
            _, equals, value = word.partition("=")
            yield plain_option(word), value if equals else following


def _normalised(known: Mapping[str, Option], words: Sequence[str], parser: "OneLineErrorParser") -> Iterator[str]:
    """Yield the words with underscores in the names of options, and a value for each yes or no that stands alone."""
    takes_others = any(option.positional or option.rest for option in known.values())
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        plain = name.removeprefix("--").replace("-", "_")
        if not name.startswith("--") or not parser.knows(f"--{plain}"):
            yield word
        elif plain in known and known[plain].is_flag and not equals and following.lower() not in BOOLEANS:
            if following and not following.startswith("-") and not takes_others:
                known[plain].checked(following)
            yield f"--{plain}=true"
        else:
            yield f"--{plain}{equals}{value}"


class OneLineErrorParser(argparse.ArgumentParser):
    """A parser whose mistakes are one line, not a page of usage.

    Arguments without a name are in its help; of words they are left over, as all that it does not know.

    Attributes:
        known: the options that a word may mean, by name.
    """

    known: dict[str, Option]
    _is_reading = False

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and remember the words for the message of a mistake."""
        self._words, self._is_reading = list(args), True
        return super().parse_known_args(args, namespace)

    def _get_positional_actions(self) -> list[argparse.Action]:
        return [] if self._is_reading else super()._get_positional_actions()

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong."""
        unknown = [word for word in self._words if word.startswith("--") and not self.knows(word)]
        hints: dict[str, str] = {}
        if unknown and message.startswith("unrecognized arguments"):
            hints = {word: meant_option(word, self.known, self._names()) for word in unknown}
            message = f"unrecognized arguments: {'; '.join(f'{word}{hint}' for word, hint in hints.items())}"
        whole = self._option_string_actions.get(HELP_ALL)
        flag = "--help" if whole is None or whole.help == argparse.SUPPRESS else HELP_ALL
        without_hint = [plain_option(word) for word, hint in hints.items() if not hint]
        raise UnknownOptionError(f"{message} (see {self.prog} {flag})", without_hint)

    def _names(self) -> list[str]:
        actions = self._option_string_actions.items()
        return [plain_option(word) for word, action in actions if word.startswith("--") and not _is_answered(action)]

    def knows(self, word: str) -> bool:
        """Return whether a word is an option, with or without a value."""
        return word == "--" or word.partition("=")[0] in self._option_string_actions


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help whose options stand on a line each."""

    def _format_args(self, action: argparse.Action, default_metavar: str) -> str:
        if action.nargs == "+":
            return f"{action.metavar} ..."
        return "" if action.metavar == PLACEHOLDERS[bool] else super()._format_args(action, default_metavar)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(text, width, break_on_hyphens=False)


class _Renamed(argparse.Action):
    """Refuses a name by which an option goes no more, or is asked for, and names the right one."""

    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> NoReturn:
        raise AlignAttnError(f"{args[2]} is {self.const}")


def _is_answered(action: argparse.Action) -> bool:
    return isinstance(action, _Renamed)


class _HelpOfAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *args: Any) -> NoReturn:
        print(self.const().format_help(), end="")
        parser.exit()


def build_parser(
    options: type[Options], prog: str, *, description: str = "", examples: Sequence[str] = (), everything: bool = False
) -> OneLineErrorParser:
    """Return the parser of a dataclass of options.

    It takes values as they stand; `resolve` judges them.

    Args:
        options: the dataclass.
        prog: the command's words.
        description: what the command does.
        examples: whole command lines, for the end of the help.
        everything: whether the help shows rare options, too.
    """
    known = list(options_of(options).values())
    width = help_width()
    required = [option.usage for option in known if option.is_required]
    usage = [*required, "[options]", *(option.metavar for option in known if option.rest)]
    parser = OneLineErrorParser(
        prog=prog,
        usage=folded(usage, width, f"{USAGE}{prog} ", " " * len(USAGE)).removeprefix(USAGE),
        description="\n".join(folded(line.split(" "), width) for line in description.splitlines()),
        epilog="\n".join(["examples:", *(_folded_example(example, width) for example in examples)]) or None,
        formatter_class=partial(_Formatter, max_help_position=HELP_COLUMN, width=width),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    parser.known = dict(options_of(options))
    groups: dict[str, Any] = {}
    for option in [*known, CONFIG]:
        if option.group not in groups:
            groups[option.group] = parser.add_argument_group(option.group)
        if not option.rest:
            _add(groups[option.group], option, options_of(options), is_hidden=option.rare and not everything)
    shown = groups[CONFIG.group]
    shown.add_argument("-h", "--help", action="help", help="Show this help.")
    # The words that are left over are of other commands, whose options it shows.
    if not any(option.rest for option in known):
        whole = partial(build_parser, options, prog, description=description, examples=examples, everything=True)
        told = "Show all options." if any(option.rare for option in known) else argparse.SUPPRESS
        shown.add_argument(HELP_ALL, action=_HelpOfAll, nargs=0, const=whole, help=told)
    return parser


def help_width() -> int:
    """Return how many characters a line of help has: the terminal's, or of one that none shows."""
    return max(shutil.get_terminal_size((HELP_WIDTH, 0)).columns - 2, 2 * HELP_COLUMN)


def folded(words: Sequence[str], width: int, start: str = "", indent: str = "", *, end: str = "") -> str:
    """Return words on lines of at most a width, each word whole.

    Args:
        words: what is set apart by blanks.
        width: characters of a line, as far as the words allow.
        start: before the first word.
        indent: before the first word of further lines.
        end: of every line but the last.
    """
    lines = [start + words[0]]
    for word in words[1:]:
        if len(lines[-1]) + 1 + len(word) + len(end) > width:
            lines[-1] += end
            lines.append(indent + word)
        else:
            lines[-1] += f" {word}"
    return "\n".join(lines)


def _folded_example(example: str, width: int) -> str:
    """A command line of an example, which a shell takes as it stands."""
    return folded(_WORDS.findall(example), width, "  ", "      ", end=" \\")


_WORDS = re.compile(r"""(?:"[^"]*"|'[^']*'|[^\s"'])+""")
"""Of a command line; what stands in quotes is of one."""


def _add(group: Any, option: Option, known: Mapping[str, Option], *, is_hidden: bool) -> None:
    details = {
        "metavar": option.placeholder,
        "nargs": "+" if option.is_list else None,
        "help": argparse.SUPPRESS if is_hidden else _help(option),
    }
    action = group.add_argument(option.name if option.positional else f"--{option.name}", **details)
    action.required = False
    if option.is_flag and option.default is True:
        negation = {"action": "store_const", "const": "false", "dest": option.name, "help": argparse.SUPPRESS}
        group.add_argument(f"--no_{option.name}", **negation)
    for name, answer in option.asked_as.items():
        if name not in known:
            group.add_argument(f"--{name}", action=_Renamed, nargs="*", const=answer, help=argparse.SUPPRESS)


def _help(option: Option) -> str:
    default, text = option.default, option.help
    is_told = "(default" in text or default == () or any(default is silent for silent in (REQUIRED, None, False))
    if not is_told:
        text += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
    return text.replace("%", "%%")
