"""One option: its type, default, help, group and range, and how a value of it is read and checked."""

import dataclasses
import math
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from typing import Any

from alignattn.utils.errors import AlignAttnError, shown
from alignattn.utils.places import Place, input_file, input_folder, output_file, output_folder

REQUIRED: Any = MISSING
"""The default of an option that must be given."""

MAX_SEED = 2**32 - 1
"""NumPy takes no larger one."""

MAX_PROCESSES = 1024
"""Of one kind, or threads: more is a slip of the finger."""

OPTION = "option"
"""Key of an option's own description in the metadata of its field."""

BOOLEANS: Mapping[str, bool] = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "f", "n", "0"), False
)
"""The words for a yes or no."""

PLACEHOLDERS: Mapping[type[Any], str] = {int: "N", float: "X", str: "NAME", bool: "[true|false]", dict: "JSON"}
"""What stands for a value of each type in the help."""

WANTED: Mapping[type[Any], str] = {int: "a whole number", float: "a number", bool: "true or false", dict: "JSON"}
"""What a value of each type is, for messages."""

PATHS: Mapping[str, Place] = {"FILE": input_file, "DIR": input_folder}
"""What stands there for the path of a file, and of a folder; it is to be read where the option says nothing else."""

NAMED_VALUES = "NAME=X"
"""What stands there for values by name, whose option may be given in parts: by a file and by a command line."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option.

    Attributes:
        name: of the field, and of the option behind two hyphens.
        types: of its value or its values, in the order in which a text is tried.
        default: `REQUIRED` if there is none.
        is_list: whether it takes several values.
        takes_none: whether it may be None.
        help: one sentence.
        group: heading in the help.
        low: the least value, but for the default, which may lie anywhere.
        high: the largest.
        above: a number below all values.
        below: a number above all values.
        choices: the values that there are.
        distinct: what a value is, if none may be there twice.
        metavar: stands for the value in the help.
        positional: whether it is given without its name.
        rest: whether it takes the words that belong to no option.
        rare: whether only `--help-all` shows it.
        asked_as: names by which it is asked for, each with the answer.
        place: refuses a value that cannot be on this machine; None for what names nothing there, and where `PATHS`
            says it.
        requires: other options, one of which must be given with it: `freelb_steps`, or `weight_averaging=ema` for a
            value.
        excludes: other options, written likewise, that cannot be given with it, each with the reason.
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
    distinct: str = ""
    metavar: str = ""
    positional: bool = False
    rest: bool = False
    rare: bool = False
    asked_as: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None
    requires: Sequence[str] = ()
    excludes: Mapping[str, str] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """What it is called in messages."""
        return self.metavar if self.positional else f"--{self.name}"

    @property
    def placeholder(self) -> str:
        """What stands for its value in the help."""
        return self.metavar or PLACEHOLDERS[self.types[0]]

    @property
    def usage(self) -> str:
        """How it is given, such as `--model NAME`."""
        return self.placeholder if self.positional else f"{self.label} {self.placeholder}"

    @property
    def is_required(self) -> bool:
        """Whether it must be given."""
        return self.default is REQUIRED

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder."""
        return self.metavar in PATHS

    @property
    def is_written(self) -> bool:
        """Whether it names a file or folder that the command writes."""
        return self.place in (output_file, output_folder)

    @property
    def is_named_values(self) -> bool:
        """Whether its values have names of their own."""
        return self.metavar == NAMED_VALUES

    @property
    def is_flag(self) -> bool:
        """Whether it is a yes or no that needs no value."""
        return self.types[0] is bool and not self.is_list

    def checked(self, value: Any) -> Any:
        """Return a value as the option's type, a list as a tuple."""
        if value is self.default or (value is None and self.takes_none):
            return value
        if self.rest:
            return self._words(value)
        if not self.is_list:
            return self._checked_one(value, self.label)
        values = value if isinstance(value, list | tuple) else [value]
        if not values and self.default != ():
            raise AlignAttnError(f"{self.label} is an empty list: name one at least, or leave it out")
        label = self.label if len(values) == 1 else f"a value of {self.label}"
        checked = tuple(self._checked_one(item, label) for item in values)
        if self.distinct and len(set(checked)) < len(checked):
            raise AlignAttnError(f"{self.label} {' '.join(map(str, values))} names a {self.distinct} twice")
        return checked

    def check_place(self, value: Any) -> None:
        """Check that what a value of the option names can be there; defaults to read are looked for where needed."""
        place = self.place or PATHS.get(self.metavar)
        is_default = value is None or (value == self.default and not self.is_written)
        if place is None or is_default:
            return
        for one in value if isinstance(value, tuple | list) else (value,):
            place(self.label, str(one))

    def _checked_one(self, value: Any, label: str) -> Any:
        if value == "":
            raise AlignAttnError(f"{label} is empty: give a value{'' if self.is_required else ', or leave it out'}")
        converted = self._converted(value)
        if isinstance(converted, str) and not _is_writable(converted):
            raise AlignAttnError(f"{label} {shown(value)} holds a character that no file can hold: leave it out")
        if self.choices and converted not in self.choices:
            choices = ", ".join(map(str, self.choices))
            raise AlignAttnError(f"argument {self.label}: invalid choice: {shown(value)}: choose one of {choices}")
        if isinstance(converted, int | float) and not isinstance(converted, bool) and converted != self.default:
            self._check_range(converted)
        return converted

    def _words(self, value: Any) -> tuple[str, ...]:
        words = value if isinstance(value, list | tuple) else [value]
        if not all(isinstance(word, str) and _is_writable(word) for word in words):
            raise AlignAttnError(f"{self.name} {shown(value)} must be words, as of a command line")
        return tuple(words)

    def _converted(self, value: Any) -> Any:
        if value is False and "no" in self.choices:
            # YAML 1.1 reads an unquoted no as a boolean.
            return "no"
        for kind in self.types:
            with_text = value if isinstance(value, str) else _as_text(value, kind)
            if isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
                return value
            try:
                if with_text is not None:
                    return BOOLEANS[with_text.lower()] if kind is bool else kind(with_text)
            except (ValueError, KeyError, TypeError):
                continue
        wanted = f": give {WANTED[self.types[0]]}" if self.types[0] in WANTED else ""
        raise AlignAttnError(f"argument {self.label}: invalid {self.types[0].__name__} value: {shown(value)}{wanted}")

    def _check_range(self, value: float) -> None:
        is_finite = math.isfinite(value) if isinstance(value, float) else abs(value) <= sys.maxsize
        if is_finite and self.low <= value <= self.high and self.above < value < self.below:
            return
        if math.isfinite(self.below):
            raise AlignAttnError(f"{self.label} {value} must lie between {max(self.low, self.above)} and {self.below}")
        limits = {"above": self.above, "at least": self.low, "at most": self.high}
        words = " and ".join(f"{word} {limit}" for word, limit in limits.items() if math.isfinite(limit))
        finite = "" if is_finite else "a finite number" if isinstance(value, float) else "a number of 64 bits"
        raise AlignAttnError(f"{self.label} {shown(value)} must be {', '.join(filter(None, (finite, words)))}")


def _as_text(value: Any, kind: type[Any]) -> str | None:
    """A value as text to be read as another type, where nothing is lost by it: a number, a path."""
    if isinstance(value, bool):
        return str(value).lower() if kind is str else None
    return str(value) if isinstance(value, int | float | os.PathLike) else None


def _is_writable(text: str) -> bool:
    """Whether a text can be written to a file, or name one: UTF-8 has no lone surrogates, and paths no NUL."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in text


def check_together(known: Mapping[str, Option], values: Mapping[str, Any]) -> None:
    """Check what each given option requires and excludes; an option at its default counts as not given.

    Names that are not among `known` cannot be judged here, and are passed over: the dataclass that holds both does it.

    Args:
        known: the options by name.
        values: of each.

    Raises:
        AlignAttnError: if an option that another requires is missing, or two options exclude each other.
    """

    def is_given(other: str) -> bool:
        name, equals, value = other.partition("=")
        return str(values[name]) == value if equals else values[name] != known[name].default

    for name, option in known.items():
        if not is_given(name):
            continue
        needed = [other for other in option.requires if _name_of(other) in known]
        if needed and len(needed) == len(option.requires) and not any(map(is_given, needed)):
            words = " or ".join(f"--{other.replace('=', ' ')}" for other in needed)
            raise AlignAttnError(f"{option.label} needs {words}: give that as well, or leave {option.label} out")
        for other, reason in option.excludes.items():
            if _name_of(other) in known and is_given(other):
                raise AlignAttnError(
                    f"{option.label} does not go with --{other.replace('=', ' ')}: {reason}: leave one of them out"
                )


def _name_of(other: str) -> str:
    return other.partition("=")[0]


def option(default: Any, help: str, **details: Any) -> Any:
    """Return the field of an option.

    Args:
        default: `REQUIRED` if there is none.
        help: one sentence.
        **details: the other attributes of `Option`, but for those that the field's type says.
    """
    return dataclasses.field(default=default, metadata={OPTION: {"help": help, **details}})
