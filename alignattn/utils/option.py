"""One option: its type, default, help, group and range, and how its value is converted and checked."""

import dataclasses
import json
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Annotated, Any

from alignattn.utils.errors import AlignAttnError, shown
from alignattn.utils.places import Place, input_file, input_folder, output_file, output_folder

REQUIRED: Any = MISSING
"""The default of a required option."""

MAX_SEED = 2**32 - 1
"""The largest seed of NumPy."""

MAX_PROCESSES = 1024
"""Maximum processes or threads of one kind: a larger number is a typing error."""

BOOLEANS: Mapping[str, bool] = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "f", "n", "0"), False
)
"""The words for true and false."""

PLACEHOLDERS: Mapping[type[Any], str] = {int: "N", float: "X", str: "NAME", bool: "", dict: "JSON"}
"""Metavar of each type."""

TEXT_IN_QUOTES = "a text, in quotes, because YAML reads yes, no, on and off as true or false"
EXPECTED: Mapping[type[Any], str] = {int: "a whole number", float: "a number", bool: "true or false", dict: "JSON"}
"""Description of each type's values, for messages."""


NAMED_VALUE = "NAME=X"
"""Metavar of named values; a file and the command line may each set some of them."""


def _like(**details: Any) -> tuple[tuple[str, Any], ...]:
    """Attributes of `Option` for an `Annotated` type; a tuple, because a dict is not hashable in a union."""
    return tuple(details.items())


Count = Annotated[int, _like(low=1)]
Processes = Annotated[int, _like(low=1, high=MAX_PROCESSES)]
Seed = Annotated[int, _like(low=0, high=MAX_SEED)]
InputFile = Annotated[str, _like(metavar="FILE", place=input_file)]
InputDir = Annotated[str, _like(metavar="DIR", place=input_folder)]
OutputFile = Annotated[str, _like(metavar="FILE", place=output_file)]
OutputDir = Annotated[str, _like(metavar="DIR", place=output_folder)]
NamedValue = Annotated[str, _like(metavar=NAMED_VALUE)]
"""Types of values that set the range of a number or the meaning of a text; an option can override both."""

OPTION = "option"
"""Key of an option in the metadata of its field."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: the name of the field, and after two hyphens of the option.
        types: the types of its value or values, in the order in which a text is converted.
        default: the default value; `REQUIRED` if there is none.
        is_list: whether it accepts several values.
        takes_none: whether it may be None.
        help: one sentence.
        group: heading in the help.
        low: minimum, inclusive; the default may lie outside the range.
        high: maximum, inclusive.
        above: minimum, exclusive.
        below: maximum, exclusive.
        choices: the allowed values; empty for any.
        endings: allowed endings of a file's name, in lower case.
        distinct: the noun for a value in the error if one is given twice; empty if duplicates are allowed.
        metavar: placeholder of the value in the help.
        positional: whether it is given without its name.
        rest: whether it collects the words that belong to no option.
        rare: whether only `--help-all` shows it.
        place: checks a value that names a file or folder on this machine.
        requires: other options, at least one of which must be given with it: `push_to_hub`, or `weight_averaging=ema`
            for one value.
        excludes: other options, in the same notation, that cannot be given with it, each with the reason.
        capability: the field of `ModelCapabilities` that the model must have.
    """

    name: str
    types: Sequence[type[Any]]
    default: Any = None
    is_list: bool = False
    takes_none: bool = False
    help: str = ""
    group: str = "options"
    low: float = -math.inf
    high: float = math.inf
    above: float = -math.inf
    below: float = math.inf
    choices: Sequence[Any] = ()
    endings: Sequence[str] = ()
    distinct: str = ""
    metavar: str = ""
    positional: bool = False
    rest: bool = False
    rare: bool = False
    place: Place | None = None
    requires: Sequence[str] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)
    capability: str = ""

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.metavar if self.positional else f"--{self.name}"

    @property
    def placeholder(self) -> str:
        """The metavar of its value in the help."""
        return self.metavar or PLACEHOLDERS[self.types[0]]

    @property
    def usage(self) -> str:
        """How it is given, such as `--model NAME`."""
        return self.placeholder if self.positional else f"{self.label} {self.placeholder}".strip()

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder."""
        return self.metavar in ("FILE", "DIR")

    @property
    def is_written(self) -> bool:
        """Whether it names a file or folder that the command writes."""
        return self.place in (output_file, output_folder)

    @property
    def is_flag(self) -> bool:
        """Whether it is a boolean that needs no value."""
        return self.types[0] is bool and not self.is_list

    def checked(self, value: Any) -> Any:
        """Return a value as the option's type, a list as a tuple.

        Raises:
            AlignAttnError: if it has another type, is out of range or is not one of the choices.
        """
        if value is self.default or (value is None and self.takes_none):
            return value
        if not self.is_list:
            return self._checked_one(value)
        values = tuple(map(self._checked_one, value if isinstance(value, list | tuple) else [value]))
        if not values and self.default != ():
            raise AlignAttnError(f"{self.label} is an empty list: give a value, or leave it out")
        if self.distinct and len(set(values)) < len(values):
            raise AlignAttnError(f"{self.label} {' '.join(map(str, values))} contains a {self.distinct} twice")
        return values

    def check_place(self, value: Any) -> None:
        """Check the file or folder that a value names; the default of an input is checked where it is read."""
        if self.place is None or value is None or (value == self.default and not self.is_written):
            return
        for one in value if isinstance(value, tuple | list) else (value,):
            self.place(self.label, str(one))

    def _checked_one(self, value: Any) -> Any:
        if value == "" and not self.rest:
            raise AlignAttnError(
                f"{self.label} is empty: give a value{'' if self.is_required else ', or leave it out'}"
            )
        converted = self._converted(value)
        if isinstance(converted, str) and not _is_writable(converted):
            raise AlignAttnError(f"{self.label} {shown(value)} contains an invalid character: leave it out")
        if self.choices and converted not in self.choices:
            choices = ", ".join(map(str, self.choices))
            raise AlignAttnError(f"{self.label} {shown(value)}: choose one of {choices}")
        if self.endings and not converted.lower().endswith(tuple(self.endings)):
            raise AlignAttnError(f"{self.label} {converted}: its name must end in {', '.join(self.endings)}")
        if isinstance(converted, int | float) and not isinstance(converted, bool) and converted != self.default:
            self._check_range(converted)
        return converted

    def _converted(self, value: Any) -> Any:
        if value is False and "no" in self.choices:
            # YAML 1.1 reads an unquoted no as a boolean.
            return "no"
        for kind in self.types:
            if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
                return value
            try:
                return _converted_to(kind, value)
            except (ValueError, KeyError, TypeError):
                continue
        expected = EXPECTED.get(self.types[0], TEXT_IN_QUOTES if isinstance(value, bool) else "a text")
        raise AlignAttnError(f"{self.label} {shown(value)}: give {expected}")

    def _check_range(self, value: float) -> None:
        is_finite = math.isfinite(value) if isinstance(value, float) else abs(value) <= sys.maxsize
        if is_finite and self.low <= value <= self.high and self.above < value < self.below:
            return
        limits = {"at least": self.low, "above": self.above, "at most": self.high, "below": self.below}
        words = [f"{word} {limit}" for word, limit in limits.items() if math.isfinite(limit)]
        finite = [] if is_finite else ["finite" if isinstance(value, float) else "a number of 64 bits"]
        raise AlignAttnError(f"{self.label} {shown(value)} must be {' and '.join([*finite, *words])}")


def _converted_to(kind: type[Any], value: Any) -> Any:
    """Convert a text, number or path to another type if this loses nothing."""
    if isinstance(value, bool) or not isinstance(value, str | int | float | os.PathLike):
        raise TypeError
    text = str(value)
    if kind is bool:
        return BOOLEANS[text.lower()]
    if kind is dict and not isinstance(read := json.loads(text), dict):
        raise TypeError
    return read if kind is dict else kind(text)


def _is_writable(text: str) -> bool:
    """Whether a text can be written to a file or name one: UTF-8 has no lone surrogates, paths have no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def option(default: Any, help: str, **details: Any) -> Any:
    """Return the field of an option.

    Args:
        default: the default value; `REQUIRED` if there is none.
        help: one sentence.
        **details: other attributes of `Option`, except those that follow from the field's type.
    """
    return dataclasses.field(default=default, metadata={OPTION: {"help": help, **details}})
