"""Options: fields of a frozen dataclass, with help, range, choices, requirements and conflicts as their metadata.

    @dataclass(frozen=True, kw_only=True)
    class ExampleOptions(Options):
        model: str = option(REQUIRED, "Folder or Hub id.", group="model")
        max_length: int | None = option(None, "Maximum number of tokens.", group="data", low=1)
        average: str | None = option(None, "How weights are averaged.", choices=("ema", "swa"))
        decay: float = option(0.999, "Decay of ema.", low=0, below=1, requires=("average=ema",))
        fast: bool = option(False, "Fast.", excludes={"average": "averaging takes its time"})

`resolve` makes one frozen object from values by name: words of a command line (`read_words`), lines of a YAML file, a
program's values. A dataclass may contain others as groups of its options, and name the parser of another library's
options. Nothing heavy is imported here.
"""

import argparse
import dataclasses
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import Annotated, Any, ClassVar, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from alignattn.utils.errors import AlignAttnError, did_you_mean, shown
from alignattn.utils.files import read_yaml
from alignattn.utils.paths import Place, input_file, input_folder, output_file, output_folder

REQUIRED: Any = MISSING
"""The default of a required option."""

BOOLEANS: Mapping[str, bool] = dict.fromkeys(("true", "yes", "t", "y", "1"), True) | dict.fromkeys(
    ("false", "no", "f", "n", "0"), False
)
"""The words for true and false."""

PLACEHOLDERS: Mapping[type[Any], str] = {int: "N", float: "X", str: "NAME", bool: ""}
"""Metavar of each type."""

NAMED_VALUE = "NAME=X"
"""Metavar of named values; a file and the command line may each set some of them."""

Count = Annotated[int, ("low", 1)]
# More processes, or threads of one kind, are a typing error.
Processes = Annotated[int, ("low", 1), ("high", 1024)]
# Up to the largest seed of NumPy.
Seed = Annotated[int, ("low", 0), ("high", 2**32 - 1)]
InputFile = Annotated[str, ("metavar", "FILE"), ("place", input_file)]
InputDir = Annotated[str, ("metavar", "DIR"), ("place", input_folder)]
OutputFile = Annotated[str, ("metavar", "FILE"), ("place", output_file)]
OutputDir = Annotated[str, ("metavar", "DIR"), ("place", output_folder)]
NamedValue = Annotated[str, ("metavar", NAMED_VALUE)]
"""Types of values that set the range of a number or the meaning of a text; an option can override both."""

OPTION = "option"
"""Key of an option in the metadata of its field."""

GIVEN = "given"
"""Key of a written file of options, and field of a dataclass that writes one: the names of the options that were given
to `resolve`. The values of the others were derived from them."""

OTHERS = "transformers"
"""The field of a dataclass with `Options.other_parser`: the given values of the other library's options, by name."""

HELP_COLUMN = 30
"""The column where help texts begin."""

S = TypeVar("S", bound="Options")
T = TypeVar("T")

_cached: Callable[[Callable[[Any], T]], Callable[[Any], T]] = cache
"""The cache of a function of a class; mypy considers dataclasses unhashable."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: the metadata of its field, with what follows from the field's name, type and default.

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
        may_differ: whether two calls that differ in it make the same run.
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
    may_differ: bool = False

    @property
    def label(self) -> str:
        """Its name in messages."""
        return self.metavar if self.positional else f"--{self.name}"

    @property
    def usage(self) -> str:
        """How it is given, such as `--model NAME`."""
        return self.metavar if self.positional else f"{self.label} {self.metavar}".strip()

    @property
    def is_path(self) -> bool:
        """Whether it names a file or folder."""
        return self.metavar in ("FILE", "DIR")

    @property
    def is_written(self) -> bool:
        """Whether it names a file or folder that the command writes."""
        return self.place in (output_file, output_folder)

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
        for path in value if isinstance(value, tuple | list) else (value,):
            self.place(self.label, str(path))

    def _checked_one(self, value: Any) -> Any:
        if value == "" and not self.rest:
            advice = "" if self.default is REQUIRED else ", or leave it out"
            raise AlignAttnError(f"{self.label} is empty: give a value{advice}")
        # The first of the types to which the value converts without a loss.
        converted: Any = None
        for kind in self.types:
            if value is False and "no" in self.choices:
                # YAML 1.1 reads an unquoted no as a boolean.
                converted = "no"
            elif isinstance(value, kind) and not (isinstance(value, bool) and kind is not bool):
                converted = value
            elif isinstance(value, str | int | float | os.PathLike) and not isinstance(value, bool):
                with suppress(ValueError, KeyError):
                    converted = BOOLEANS[str(value).lower()] if kind is bool else kind(str(value))
            if converted is not None:
                break
        else:
            text = "a text, in quotes, because YAML reads yes, no, on and off as true or false"
            expected = {int: "a whole number", float: "a number", bool: "true or false"}
            wanted = expected.get(self.types[0], text if isinstance(value, bool) else "a text")
            raise AlignAttnError(f"{self.label} {shown(value)}: give {wanted}")
        # UTF-8 has no lone surrogates, and paths have no NUL.
        if isinstance(converted, str) and re.search("[\0\ud800-\udfff]", converted):
            raise AlignAttnError(f"{self.label} {shown(value)} contains an invalid character: leave it out")
        if self.choices and converted not in self.choices:
            choices = ", ".join(map(str, self.choices))
            raise AlignAttnError(f"{self.label} {shown(value)}: choose one of {choices}")
        if self.endings and not converted.lower().endswith(tuple(self.endings)):
            raise AlignAttnError(f"{self.label} {converted}: its name must end in {', '.join(self.endings)}")
        if not isinstance(converted, int | float) or isinstance(converted, bool) or converted == self.default:
            return converted
        limits = {"low": self.low, "high": self.high, "above": self.above, "below": self.below}
        if problem := range_problem(converted, **limits):
            raise AlignAttnError(f"{self.label} {problem}")
        return converted


def range_problem(
    number: float, *, low: float = -math.inf, high: float = math.inf, above: float = -math.inf, below: float = math.inf
) -> str:
    """Return what a number outside its range, or an infinite one, must be; empty for others. Limits as in `Option`."""
    is_finite = math.isfinite(number) if isinstance(number, float) else abs(number) <= sys.maxsize
    if is_finite and low <= number <= high and above < number < below:
        return ""
    limits = {"at least": low, "above": above, "at most": high, "below": below}
    words = [f"{word} {limit}" for word, limit in limits.items() if math.isfinite(limit)]
    finite = [] if is_finite else ["finite" if isinstance(number, float) else "a number of 64 bits"]
    return f"{shown(number)} must be {' and '.join([*finite, *words])}"


def option(default: Any, help: str, **details: Any) -> Any:
    """Return the field of an option.

    Args:
        default: the default value; `REQUIRED` if there is none.
        help: one sentence.
        **details: other attributes of `Option`, except those that follow from the field's type.
    """
    return dataclasses.field(default=default, metadata={OPTION: {"help": help, **details}})


CONFIG = Option(
    name="config",
    types=(str,),
    takes_none=True,
    metavar="FILE",
    help="YAML of options; the command line overrides it.",
)


class UnknownOptionError(AlignAttnError):
    """Names of unknown options.

    Args:
        names: the names, without hyphens.
        options: the dataclass of the options that there are.
    """

    def __init__(self, names: Sequence[str], options: type["Options"]) -> None:
        positional = {known.name for known in options_of(options).values() if known.positional}
        named = sorted(option_names(options) - positional | {CONFIG.name})
        hints = {name: did_you_mean(name, named, least_alike=0.8) for name in names}
        super().__init__("; ".join(f"unknown option --{name}{hint}" for name, hint in hints.items()))
        self.names = names


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of dataclasses of options: the values of each object have their types and are in their ranges."""

    heading: ClassVar[str] = "options"
    """Heading in the help of a dataclass's own options."""

    all_rare: ClassVar[bool] = False
    """Whether only `--help-all` shows its own options."""

    hidden: ClassVar[Collection[str]] = ()
    """Options of its groups or bases that it leaves out."""

    other_parser: ClassVar[str] = ""
    """`module:function` of a function that gets the names of options that are ours, and returns the argparse parser of
    another library's options, whose given values are in the field `OTHERS`; it is called when one of them is given."""

    def __post_init__(self) -> None:
        known = options_of(type(self))
        for own in dataclasses.fields(self):
            if OPTION in own.metadata and own.name in known:
                object.__setattr__(self, own.name, known[own.name].checked(getattr(self, own.name)))

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that depend on the given values, for options that the dataclass declares."""
        return {}

    def check_places(self, *, reads: bool = True) -> None:
        """Check the files and folders that the options name, before the command starts.

        Args:
            reads: whether the command reads files; otherwise only outputs are checked.
        """
        values = values_of(self)
        for known in options_of(type(self)).values():
            if reads or known.is_written:
                known.check_place(values[known.name])


@_cached
def options_of(options: Any) -> Mapping[str, Option]:
    """Return the options that a dataclass and its groups declare, by name; its own override those of a group."""
    hints = get_type_hints(options, include_extras=True)
    homes = {name: base for base in reversed(options.__mro__) for name in vars(base).get("__annotations__", ())}
    known: dict[str, Option] = {}
    for group in _groups_of(options).values():
        known |= options_of(group)
    for dataclass_field in dataclasses.fields(options):
        if OPTION not in dataclass_field.metadata:
            continue
        field_hint, home = hints[dataclass_field.name], homes[dataclass_field.name]
        alternatives = get_args(field_hint) if get_origin(field_hint) in (Union, UnionType) else (field_hint,)
        members = [hint for hint in alternatives if hint is not type(None)]
        value_hints = [get_args(hint)[0] if get_origin(hint) is tuple else hint for hint in members]
        of_type = dict(detail for hint in value_hints if get_origin(hint) is Annotated for detail in hint.__metadata__)
        types = [get_args(hint)[0] if get_origin(hint) is Annotated else hint for hint in value_hints]
        details = {"group": home.heading, "rare": home.all_rare, "metavar": PLACEHOLDERS[types[0]]}
        known[dataclass_field.name] = Option(
            name=dataclass_field.name,
            types=types,
            default=dataclass_field.default,
            is_list=any(get_origin(hint) is tuple for hint in members),
            takes_none=type(None) in alternatives,
            **{**details, **of_type, **dataclass_field.metadata[OPTION]},
        )
    return {name: entry for name, entry in known.items() if name not in options.hidden}


@_cached
def _groups_of(options: Any) -> Mapping[str, type[Options]]:
    """The fields of a dataclass that are themselves dataclasses of options."""
    types = {own.name: own.type for own in dataclasses.fields(options)}
    return {name: group for name, group in types.items() if isinstance(group, type) and issubclass(group, Options)}


def values_of(options: Options) -> dict[str, Any]:
    """Return the value of each option by name, and the given values of other libraries' options."""
    values: dict[str, Any] = {}
    for group in _groups_of(type(options)):
        values |= values_of(getattr(options, group))
    values |= getattr(options, OTHERS) if options.other_parser else {}
    own = [field.name for field in dataclasses.fields(options) if OPTION in field.metadata]
    return values | {name: getattr(options, name) for name in own if name not in options.hidden}


def source_of_others(options: Any) -> str:
    """Return the `other_parser` of a dataclass or of one of its groups; empty if there is none."""
    return options.other_parser or next(filter(None, map(source_of_others, _groups_of(options).values())), "")


@_cached
def _other_parser(options: Any) -> tuple[argparse.ArgumentParser, Mapping[str, Any]]:
    """Import the other library, and return the parser of its options, which sets no defaults, and these by name."""
    source = source_of_others(options)
    ours = {*options.hidden, *options_of(options)}
    parser = resolve_name(source)(ours) if source else argparse.ArgumentParser(add_help=False)
    defaults = vars(parser.parse_args([]))
    for action in parser._actions:
        action.default = argparse.SUPPRESS
    return parser, defaults


def option_names(options: Any) -> frozenset[str]:
    """Return the names of all options of a dataclass, including those of another library, which is imported."""
    return frozenset(_other_parser(options)[1].keys() | options_of(options).keys())


def checked_values(options: type[Options], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return given values by name as the types of their options, another library's by its own parser.

    Raises:
        AlignAttnError: if a name is unknown or a value is wrong.
    """
    known = options_of(options)
    own = {name: known[name].checked(value) for name, value in values.items() if name in known}
    if len(own) == len(values):
        return own
    parser, defaults = _other_parser(options)
    others = {name: value for name, value in values.items() if name not in known}
    if unknown := [name for name in others if name not in defaults]:
        raise UnknownOptionError(unknown, options)
    words = []
    for name, value in others.items():
        if value is None and defaults[name] is None:
            continue
        items = value if isinstance(value, list | tuple) else [value]
        if not items or None in items:
            raise AlignAttnError(f"--{name} {shown(value)}: give a value, or leave it out")
        texts = [json.dumps(item, default=str) if isinstance(item, bool | dict) else str(item) for item in items]
        # With an equals sign, a negative number is not taken for an option.
        words += [f"--{name}={texts[0]}"] if len(texts) == 1 else [f"--{name}", *texts]
    return own | vars(parser.parse_args(words))


def resolve(options: type[S], values: Mapping[str, Any]) -> S:
    """Return an object of the dataclass of options, from values by name.

    Our own options are checked before another library is imported for its options.

    Args:
        options: the dataclass.
        values: the values, typed or as text; missing ones have their defaults.

    Raises:
        AlignAttnError: if a name is unknown, a value is wrong or missing, or values do not fit together.
    """
    known = options_of(options)
    own = checked_values(options, {name: value for name, value in values.items() if name in known})
    implied = options.implied(own)
    given = {**implied, **own}
    missing = [entry.usage for entry in known.values() if entry.default is REQUIRED and entry.name not in given]
    if missing:
        raise AlignAttnError(f"give {' and '.join(missing)} (see --help)")
    resolved = _build(options, given, {})
    not_given = {name: known[name].default for name in known.keys() & implied.keys() - own.keys()}
    check_together(known, values_of(resolved) | not_given)
    others = checked_values(options, {name: value for name, value in values.items() if name not in known})
    resolved = _build(options, given, others) if others else resolved
    if any(own.name == GIVEN for own in dataclasses.fields(options)):
        object.__setattr__(resolved, GIVEN, frozenset(values))
    return resolved


def _build(options: type[S], given: Mapping[str, Any], others: Mapping[str, Any]) -> S:
    own = [field.name for field in dataclasses.fields(options) if OPTION in field.metadata]
    arguments = {name: given[name] for name in own if name in given and name not in options.hidden}
    arguments |= {OTHERS: others} if options.other_parser else {}
    return options(**arguments, **{name: _build(group, given, others) for name, group in _groups_of(options).items()})


def check_together(known: Mapping[str, Option], values: Mapping[str, Any]) -> None:
    """Check the options that each given option requires and excludes; an option at its default counts as not given.

    Names that are not in `known` are ignored.

    Raises:
        AlignAttnError: if an option that another requires is missing, or two options exclude each other.
    """

    def is_given(condition: str) -> bool:
        name, equals, value = condition.partition("=")
        return str(values[name]) == value if equals else values[name] != known[name].default

    def in_words(condition: str) -> str:
        name, _, value = condition.partition("=")
        return value or known[name].label if known[name].positional else f"--{name} {value}".strip()

    for name, entry in known.items():
        if not is_given(name):
            continue
        requires, excludes = (
            [condition for condition in conditions if condition.partition("=")[0] in known]
            for conditions in (entry.requires, entry.excludes)
        )
        if requires and len(requires) == len(entry.requires) and not any(map(is_given, requires)):
            raise AlignAttnError(f"{entry.label} needs {' or '.join(map(in_words, requires))}; leave it out otherwise")
        if condition := next(filter(is_given, excludes), None):
            raise AlignAttnError(
                f"{entry.label} does not go with {in_words(condition)}: {entry.excludes[condition]}; "
                "leave one of them out"
            )


def read_options_file(options: type[Options], path: Path, *, with_derived: bool = False) -> dict[str, Any]:
    """Return the checked values by name of a YAML file of options; error messages start with the file's name.

    Args:
        options: the dataclass of options.
        path: the file.
        with_derived: whether to return the values that a run derived from its given options, too. Without them, a call
            that adds an option derives them anew; a value that was changed by hand, or by other defaults, stays.
    """
    values = read_yaml(path, "give a YAML file to --config")
    names = values.pop(GIVEN, None)
    try:
        values = checked_values(options, values)
    except AlignAttnError as error:
        raise AlignAttnError(f"{path}: {error}") from error
    if with_derived or names is None:
        return values
    given = {name: value for name, value in values.items() if name in names}
    derived = {name: known.default for name, known in options_of(options).items()} | {**options.implied(given)}
    return {name: value for name, value in values.items() if name in given or value != derived.get(name)}


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


def build_parser(
    options: type[Options], prog: str, *, description: str = "", epilog: str = "", everything: bool = False
) -> OneLineErrorParser:
    """Return the parser of a dataclass of options; it does not check values, `resolve` does.

    Args:
        options: the dataclass.
        prog: the command's words.
        description: the start of the help.
        epilog: the end of the help.
        everything: whether the help shows rare options.
    """
    known = options_of(options).values()
    usage = [*(entry.usage for entry in known if entry.default is REQUIRED), "[options]"]
    width = max(shutil.get_terminal_size((80, 0)).columns - 2, 2 * HELP_COLUMN)
    parser = OneLineErrorParser(
        prog=prog,
        usage=" ".join([prog, *usage, *(entry.metavar for entry in known if entry.rest)]),
        description=description,
        epilog=epilog,
        formatter_class=lambda prog: _Formatter(prog, max_help_position=HELP_COLUMN, width=width),
        argument_default=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for entry in [*(entry for entry in known if not entry.rest), CONFIG]:
        default, text = entry.default, entry.help
        is_told = "(default" in text or default == () or any(default is silent for silent in (REQUIRED, None, False))
        if not is_told:
            text += f" (default: {' '.join(map(str, default)) if isinstance(default, tuple) else default})"
        action: Any = "extend" if entry.metavar == NAMED_VALUE else _Once if entry.is_list else "store"
        several, single = ("*", "?") if entry.positional else ("+", None)
        if entry.group not in groups:
            groups[entry.group] = parser.add_argument_group(entry.group)
        groups[entry.group].add_argument(
            entry.name if entry.positional else f"--{entry.name}",
            metavar=entry.metavar,
            nargs=several if entry.is_list else single,
            action="store" if entry.positional else action,
            help=argparse.SUPPRESS if entry.rare and not everything else text.replace("%", "%%"),
        )
    groups[CONFIG.group].add_argument("-h", "--help", action="help", help="Show this help.")

    class HelpAll(argparse.Action):
        def __call__(self, *args: Any) -> NoReturn:
            build_parser(options, prog, description=description, epilog=epilog, everything=True).print_help()
            if source := source_of_others(options):
                resolve_name(source)({*options.hidden, *options_of(options)}).print_help()
            parser.exit()

    has_more = any(entry.rare for entry in known) or source_of_others(options)
    more_help = "Show all options." if has_more else argparse.SUPPRESS
    groups[CONFIG.group].add_argument("--help-all", action=HelpAll, nargs=0, help=more_help)
    return parser


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
    # Option names have underscores, and a flag without a value gets one.
    normalised = []
    for word, following in zip(words, [*words[1:], ""], strict=False):
        name, equals, value = word.partition("=")
        name = name.removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in known:
            # A value, such as a text that starts with a dash, or an option that is not ours.
            normalised.append(word)
        elif known[name].types[0] is bool and not equals and following.lower() not in BOOLEANS:
            normalised.append(f"--{name}=true")
        else:
            normalised.append(f"--{name}{equals}{value}")
    parsed, unparsed = parser.parse_known_intermixed_args(normalised)
    values = vars(parsed)
    rest_name = next((entry.name for entry in known.values() if entry.rest), None)
    if rest_name is not None:
        values |= {rest_name: tuple(unparsed)} if unparsed else {}
    elif unparsed:
        other_parser, _ = _other_parser(options)
        other_parser.prog = parser.prog
        parsed_others, unparsed = other_parser.parse_known_args(unparsed)
        values |= vars(parsed_others)
        if unknown := [word[2:].partition("=")[0].replace("-", "_") for word in unparsed if word.startswith("--")]:
            raise UnknownOptionError(unknown, options)
        if unparsed:
            parser.error(f"unexpected words: {' '.join(unparsed)}")
    path = CONFIG.checked(values.pop(CONFIG.name, None))
    if path is None:
        return values
    file_values = read_options_file(options, Path(path))
    for name, overrides in values.items():
        if name in known and known[name].metavar == NAMED_VALUE and file_values.get(name):
            # Those of the command line override those of the file, and `NAME=` removes one.
            entries = {entry.partition("=")[0]: entry for entry in file_values[name]}
            for entry in overrides:
                key, equals, value = entry.partition("=")
                if key in entries and equals and not value:
                    del entries[key]
                else:
                    entries[key] = entry
            values[name] = list(entries.values()) or None
    return file_values | values
