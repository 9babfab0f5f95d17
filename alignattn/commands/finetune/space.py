"""The search space of hyperparameters: ranges of options, such as `learning_rate=1e-5:1e-4:log`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.training_options import STEPS_OR_SHARES
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.option import Option
from alignattn.utils.options import find_option, options_of

DEFAULT_SPACE = ("alignment_weight=0.001:1:log", "learning_rate=1e-5:1e-4:log", "alignment_learning_rate=1e-4:1e-2:log")

LOG = "log"
"""Suffix of a range that is sampled uniformly in the logarithm."""

HELD = frozenset({"seed", "data_seed", "local_rank"})
"""Numeric options that are not hyperparameters."""


@dataclass(frozen=True)
class Range:
    """The range of an option, both ends included."""

    option: Option
    low: Any
    high: Any
    is_log: bool

    def __str__(self) -> str:
        """Return the range in the form of `--search_space`."""
        return f"{self.option.name}={self.low}:{self.high}{f':{LOG}' if self.is_log else ''}"


def parse_space(entries: Sequence[str]) -> Mapping[str, Range]:
    """Parse ranges of the form `name=low:high` or `name=low:high:log`; return them by the option's name."""
    space: dict[str, Range] = {}
    for entry in entries:
        parsed = _parse(entry)
        if parsed.option.name in space:
            raise AlignAttnError(f"--search_space contains {parsed.option.name} twice: give one range")
        _check(parsed)
        space[parsed.option.name] = parsed
    return space


def _check(given: Range) -> None:
    """Refuse an empty range, and a logarithmic one that is not above 0."""
    if given.low >= given.high:
        raise AlignAttnError(f"--search_space {given}: {given.low} must be below {given.high}")
    if given.is_log and given.low <= 0:
        raise AlignAttnError(f"--search_space {given}: :{LOG} needs values above 0: leave it out, or raise {given.low}")


def _parse(entry: str) -> Range:
    name, equals, ends = entry.partition("=")
    parts = ends.split(":")
    if not equals or not (len(parts) == 2 or parts[2:] == [LOG]):  # low and high
        raise AlignAttnError(f"--search_space {entry!r} is not NAME=LOW:HIGH or NAME=LOW:HIGH:{LOG}")
    known = find_option(RunOptions, name)
    if known is None or name in HELD or known.is_list or str in known.types or not {int, float} & set(known.types):
        hint = did_you_mean(name, options_of(RunOptions)) or ": give a numeric option, such as learning_rate"
        raise AlignAttnError(f"--search_space {entry}: this option cannot be searched{hint}")
    low, high = (known.checked(end) for end in parts[:2])
    if name in STEPS_OR_SHARES and high > 1 and low == int(low) and high == int(high):
        # Above 1 these are numbers of steps, which are whole.
        low, high = int(low), int(high)
    return Range(known, low, high, parts[2:] == [LOG])
