"""The parser that every command shares: a mistake is one line, not a page of usage."""

from collections.abc import Sequence
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
        raise AlignAttnError(f"{message} (see --help)")
