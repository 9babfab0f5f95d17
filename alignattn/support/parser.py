"""The parser that every command shares: a mistake is one line, not a page of usage."""

import argparse
import difflib
import math
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser

from alignattn.support.errors import AlignAttnError


class DefaultOnceFormatter(argparse.ArgumentDefaultsHelpFormatter):
    """Help that gives each default once, and no None: what that stands for is the help's own to say."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or "(default" in (action.help or ""):
            return action.help
        return super()._get_help_string(action)


class OneLineErrorParser(HfArgumentParser):
    """Options from dataclasses, as `transformers.HfArgumentParser` makes them; mistakes raise `AlignAttnError`.

    No option takes an empty text: as a path it would be the current folder.

    Args:
        groups: dataclasses whose fields are the options.
        **kwargs: as for `argparse.ArgumentParser`.
    """

    def __init__(self, groups: Sequence[type[Any]], **kwargs: Any) -> None:
        options: Any = groups
        super().__init__(options, allow_abbrev=False, formatter_class=DefaultOnceFormatter, **kwargs)
        self._words: list[str] = []

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse as argparse does, and remember the words for the message of a mistake.

        Raises:
            AlignAttnError: if an option is unknown, missing, of the wrong type or empty.
        """
        self._words = list(sys.argv[1:] if args is None else args)
        parsed, others = super().parse_known_args(args, namespace)
        for action in self._actions:
            _check_not_empty(action, getattr(parsed, action.dest, None))
        return parsed, others

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong.

        Raises:
            AlignAttnError: always.
        """
        unknown = [word for word in self._words if _is_option(word) and not self._knows(word)]
        # An option misspelled is often one that is then missed: the misspelling is the mistake.
        if unknown and message.startswith(("unrecognized arguments", "the following arguments are required")):
            hints = (f"{word}{did_you_mean(word, self._option_string_actions)}" for word in unknown)
            message = f"unrecognized arguments: {'; '.join(hints)}"
        # argparse would print its whole usage, for a training run two hundred lines, and hide the mistake below it.
        raise AlignAttnError(f"{message} (see --help)")

    def _knows(self, option: str) -> bool:
        return option.partition("=")[0] in self._option_string_actions


def _check_not_empty(action: argparse.Action, value: Any) -> None:
    values = value if isinstance(value, list) else [value]
    if "" not in values:
        return
    name = next(iter(action.option_strings), action.metavar or action.dest)
    which = name if len(values) == 1 else f"a value of {name}"
    raise AlignAttnError(f"{which} is empty: give a value{'' if action.required else ', or leave it out'}")


def _is_option(word: str) -> bool:
    return word.startswith("--") and word != "--"


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is most like an unknown one, for the end of a sentence; or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def check_range(options: Any, name: str, low: float, high: float = math.inf) -> None:
    """Check that a numeric option lies within its range; None, where it may be left out, does.

    Args:
        options: dataclass that has it.
        name: of the option.
        low: the least value that it may have.
        high: the largest.

    Raises:
        AlignAttnError: if it is out of the range.
    """
    value = getattr(options, name)
    if value is not None and not low <= value <= high:
        limit = f" and at most {high}" if math.isfinite(high) else ""
        raise AlignAttnError(f"--{name} {value} must be at least {low}{limit}")
