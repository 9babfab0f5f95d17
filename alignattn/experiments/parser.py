"""The parser that every command shares: a mistake is one line, not a page of usage."""

import difflib
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from transformers import HfArgumentParser

from alignattn.errors import AlignAttnError


class OneLineErrorParser(HfArgumentParser):
    """Options from dataclasses, as `transformers.HfArgumentParser` makes them; mistakes raise `AlignAttnError`.

    Args:
        groups: dataclasses whose fields are the options.
        **kwargs: as for `argparse.ArgumentParser`.
    """

    def __init__(self, groups: Sequence[type[Any]], **kwargs: Any) -> None:
        options: Any = groups
        super().__init__(options, allow_abbrev=False, **kwargs)

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong.

        Raises:
            AlignAttnError: always.
        """
        # argparse would print its whole usage, for a training run two hundred lines, and hide the mistake below it.
        raise AlignAttnError(f"{message}{self._closest(message)} (see --help)")

    def _closest(self, message: str) -> str:
        unknown = next((word for word in message.split() if word.startswith("--")), None)
        if not message.startswith("unrecognized arguments") or unknown is None:
            return ""
        return did_you_mean(unknown, self._option_string_actions)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return a hint at the known word that is most like an unknown one, for the end of a sentence; or nothing."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f": did you mean {close[0]!r}?" if close else ""
