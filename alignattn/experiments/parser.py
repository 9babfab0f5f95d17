"""The parser that every command shares: a mistake is one line, not a page of usage."""

from typing import NoReturn

from transformers import HfArgumentParser

from alignattn.errors import AlignAttnError


class OneLineErrorParser(HfArgumentParser):
    """`transformers.HfArgumentParser`, options from dataclasses, whose mistakes raise `AlignAttnError`."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse found wrong.

        Raises:
            AlignAttnError: always.
        """
        # argparse would print its whole usage, two hundred lines for a training run, and the mistake below.
        raise AlignAttnError(f"{message} (see --help)")
