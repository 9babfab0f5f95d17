"""Options: fields of a dataclass, with type, default, help, group, range, required and excluded options.

    @dataclass(frozen=True, kw_only=True)
    class ExampleOptions(Options):
        model: str = option(REQUIRED, "Folder or Hub id.", group="model")
        max_length: int | None = option(None, "Maximum number of tokens.", group="data", low=1)
        average: str | None = option(None, "How weights are averaged.", choices=("ema", "swa"))
        decay: float = option(0.999, "Decay of ema.", low=0, below=1, requires=("average=ema",))
        fast: bool = option(False, "Fast.", excludes={"average": "averaging takes its time"})

`resolve` makes one frozen object from values by name: words of a command line, lines of a YAML file, a program's
values. A dataclass may contain others as groups of its options, and `other_options`, which another library declares.
Nothing heavy is imported here.
"""

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, get_args, get_origin, get_type_hints

from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.files import read_yaml
from alignattn.utils.option import OPTION, REQUIRED, Option, option

__all__ = ["REQUIRED", "Option", "Options", "option", "options_of", "other_options", "resolve", "values_of"]

OTHERS = "others"
"""Metadata key of a field whose options another library declares."""

SLIP = 0.8
"""Minimum similarity, from 0 to 1, of a suggested name."""

S = TypeVar("S", bound="Options")
T = TypeVar("T")


def _once(function: Callable[[Any], T]) -> Callable[[Any], T]:
    """`functools.cache` for a function of a class; mypy considers dataclasses unhashable."""
    return cache(function)


class UnknownOptionError(AlignAttnError):
    """Names of unknown options.

    Args:
        message: the message, one line.
        names: the names, without hyphens.
    """

    def __init__(self, message: str, names: Sequence[str]) -> None:
        super().__init__(message)
        self.names = names


def other_options(source: str) -> Any:
    """Return the field for options that another library declares: a mapping of those that differ from their default.

    Args:
        source: `module:function` of a function that returns the options by name; it is imported when one of them is
            given, or when all are listed.
    """
    return dataclasses.field(default_factory=dict, metadata={OTHERS: source})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of dataclasses of options: the values of each object have their types and are in their ranges."""

    heading: ClassVar[str] = "options"
    """Heading in the help of a dataclass's own options."""

    all_rare: ClassVar[bool] = False
    """Whether only `--help-all` shows its own options."""

    hidden: ClassVar[Collection[str]] = ()
    """Options of its groups or bases that it leaves out."""

    def __post_init__(self) -> None:
        for known in _own_options(type(self)):
            object.__setattr__(self, known.name, known.checked(getattr(self, known.name)))

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


def check_together(known: Mapping[str, Option], values: Mapping[str, Any]) -> None:
    """Check the options that each given option requires and excludes; an option at its default counts as not given.

    Names that are not in `known` are ignored.

    Args:
        known: the options by name.
        values: the value of each option.

    Raises:
        AlignAttnError: if an option that another requires is missing, or two options exclude each other.
    """

    def is_given(other: str) -> bool:
        name, equals, value = other.partition("=")
        return str(values[name]) == value if equals else values[name] != known[name].default

    def in_words(other: str) -> str:
        name, _, value = other.partition("=")
        return value or known[name].label if known[name].positional else f"--{name} {value}".strip()

    def is_known(other: str) -> bool:
        return other.partition("=")[0] in known

    for name, entry in known.items():
        if not is_given(name):
            continue
        if entry.requires and all(map(is_known, entry.requires)) and not any(map(is_given, entry.requires)):
            words = " or ".join(map(in_words, entry.requires))
            raise AlignAttnError(f"{entry.label} needs {words}; leave it out otherwise")
        for other, reason in entry.excludes.items():
            if is_known(other) and is_given(other):
                raise AlignAttnError(
                    f"{entry.label} does not go with {in_words(other)}: {reason}; leave one of them out"
                )


@_once
def _own_options(options: Any) -> list[Option]:
    """The options that a dataclass's own fields declare."""
    hints = get_type_hints(options, include_extras=True)
    homes = {name: base for base in reversed(options.__mro__) for name in vars(base).get("__annotations__", ())}
    return [
        Option(
            name=field.name,
            default=field.default,
            **{
                "group": homes[field.name].heading,
                "rare": homes[field.name].all_rare,
                **_of_type(hints[field.name]),
                **field.metadata[OPTION],
            },
        )
        for field in dataclasses.fields(options)
        if OPTION in field.metadata
    ]


def _of_type(hint: Any) -> dict[str, Any]:
    """The attributes of an option that follow from its field's type."""
    alternatives = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    members = [one for one in alternatives if one is not type(None)]
    is_list = any(get_origin(one) is tuple for one in members)
    values = [get_args(one)[0] if get_origin(one) is tuple else one for one in members]
    details = dict(detail for one in values if get_origin(one) is Annotated for detail in one.__metadata__[0])
    plain = [get_args(one)[0] if get_origin(one) is Annotated else get_origin(one) or one for one in values]
    return {"types": tuple(plain), "is_list": is_list, "takes_none": type(None) in alternatives, **details}


@_once
def _groups_of(options: Any) -> Mapping[str, type[Options]]:
    """The fields of a dataclass that are themselves dataclasses of options."""
    hints = get_type_hints(options)
    fields = [field.name for field in dataclasses.fields(options) if field.init]
    return {name: hints[name] for name in fields if isinstance(hints[name], type) and issubclass(hints[name], Options)}


@_once
def options_of(options: Any) -> Mapping[str, Option]:
    """Return the options that a dataclass and its groups declare, by name; its own override those of a group."""
    groups = {name: known for group in _groups_of(options).values() for name, known in options_of(group).items()}
    own = {known.name: known for known in _own_options(options)}
    return {name: known for name, known in (groups | own).items() if name not in options.hidden}


@_once
def other_options_of(options: Any) -> Mapping[str, Option]:
    """Import the other libraries, and return the options that they declare for a dataclass and its groups, by name."""
    found = {name: known for group in _groups_of(options).values() for name, known in other_options_of(group).items()}
    for field in dataclasses.fields(options):
        if OTHERS in field.metadata:
            found |= resolve_name(field.metadata[OTHERS])()
    return {name: known for name, known in found.items() if name not in (*options.hidden, *options_of(options))}


def takes_other_options(options: Any) -> bool:
    """Return whether a dataclass or one of its groups has options that another library declares; imports nothing."""
    own = any(OTHERS in field.metadata for field in dataclasses.fields(options))
    return own or any(map(takes_other_options, _groups_of(options).values()))


def all_options_of(options: type[Options]) -> Mapping[str, Option]:
    """Return all options of a dataclass by name, including those of other libraries."""
    return {**options_of(options), **other_options_of(options)}


def find_option(options: type[Options], name: str) -> Option | None:
    """Return the option of a name, or None; other libraries are imported only if the name is not one of ours."""
    return options_of(options).get(name) or other_options_of(options).get(name)


def values_of(options: Options) -> dict[str, Any]:
    """Return the value of each option by name, and the given values of other libraries' options."""
    values: dict[str, Any] = {}
    for group in _groups_of(type(options)):
        values |= values_of(getattr(options, group))
    for field in dataclasses.fields(options):
        if OTHERS in field.metadata:
            values |= getattr(options, field.name)
    return values | {known.name: getattr(options, known.name) for known in _own_options(type(options))}


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
    own = {name: known[name].checked(value) for name, value in values.items() if name in known}
    implied = options.implied(own)
    given = {**implied, **own}
    missing = [entry.usage for entry in known.values() if entry.is_required and entry.name not in given]
    if missing:
        raise AlignAttnError(f"give {' and '.join(missing)} (see --help)")
    # Implied options of another library need neither a check nor its import.
    others = {name: value for name, value in implied.items() if name not in known}
    resolved = _build(options, given, others)
    check_together(known, values_of(resolved))
    asked = {name: value for name, value in values.items() if name not in known}
    if not asked:
        return resolved
    theirs = other_options_of(options)
    for name, value in _checked_others(options, asked).items():
        # The default counts as not given, unless another value is implied.
        if name in others or value != theirs[name].default:
            others[name] = value
    return _build(options, given, others)


def _checked_others(options: type[Options], values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of options that other libraries declare."""
    theirs = other_options_of(options)
    if unknown := [name for name in values if name not in theirs]:
        raise unknown_options(unknown, all_options_of(options))
    return {name: theirs[name].checked(value) for name, value in values.items()}


def unknown_options(names: Sequence[str], known: Mapping[str, Option]) -> UnknownOptionError:
    """Return the error for names that are no options, with similar names."""
    named = [name for name, entry in known.items() if not entry.positional]
    hints = {name: did_you_mean(name, named, least_alike=SLIP) for name in names}
    message = "; ".join(f"unknown option --{name}{hint}" for name, hint in hints.items())
    return UnknownOptionError(message, names)


def read_options_file(options: type[Options], path: Path) -> dict[str, Any]:
    """Return the checked values by name of a YAML file of options; error messages start with the file's name."""
    values = read_yaml(path, "give a YAML file to --config")
    known = options_of(options)
    try:
        own = {name: known[name].checked(value) for name, value in values.items() if name in known}
        others = {name: value for name, value in values.items() if name not in known}
        return own | (_checked_others(options, others) if others else {})
    except AlignAttnError as error:
        raise AlignAttnError(f"{path}: {error}") from error


def _build(options: type[S], given: Mapping[str, Any], others: Mapping[str, Any]) -> S:
    own = {known.name: given[known.name] for known in _own_options(options) if known.name in given}
    own |= {field.name: others for field in dataclasses.fields(options) if OTHERS in field.metadata}
    return options(**own, **{name: _build(group, given, others) for name, group in _groups_of(options).items()})
