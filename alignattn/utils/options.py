"""Options: each one line of a dataclass, with its type, default, help, group and range; read and checked in one place.

    @dataclass(frozen=True, kw_only=True)
    class ExampleOptions(Options):
        model: str = option(REQUIRED, "Folder or Hub id.", group="model")
        max_length: int | None = option(None, "Most tokens of a sequence.", group="data", low=1)
        average: str | None = option(None, "How weights are averaged.", choices=("ema", "swa"))
        decay: float = option(0.999, "Of ema.", low=0, below=1, requires=("average=ema",))
        fast: bool = option(False, "Fast.", excludes={"average": "what is averaged takes its time"})

`resolve` makes such an object of values by name: words of a command line, lines of a YAML file, a program's values. A
dataclass may also hold others, as groups of its options. Nothing heavy is imported here.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_yaml
from alignattn.utils.meant_options import meant_option
from alignattn.utils.option import OPTION, REQUIRED, Option, check_together, option

__all__ = ["REQUIRED", "Option", "Options", "option", "options_of", "resolve", "values_of"]

LIMITS = ("low", "high", "above", "below", "choices")
"""What a dataclass need not say again of an option that it declares anew."""

S = TypeVar("S", bound="Options")


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of dataclasses of options: each object's values are of their types and within their ranges."""

    def __post_init__(self) -> None:
        for known in _own_options(type(self)):
            object.__setattr__(self, known.name, known.checked(getattr(self, known.name)))
        check_together(options_of(type(self)), values_of(self))

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the defaults that hang on what was given."""
        return {}

    def check_places(self, *, reads: bool = True) -> None:
        """Check that what the options name on this machine can be there, before the command starts.

        Args:
            reads: whether anything that they name is to be read, and not written alone.
        """
        values = values_of(self)
        for known in options_of(type(self)).values():
            if reads or known.is_written:
                known.check_place(values[known.name])

    def check_use(self, given: Mapping[str, Any]) -> None:
        """Check that each option which was given does something beside the others."""


def _own_options(options: type[Options]) -> list[Option]:
    return _fields_of(options)  # type: ignore[arg-type]  # as in options_of


@cache
def _fields_of(options: type[Options]) -> list[Option]:
    hints = get_type_hints(options)
    described = [field for field in dataclasses.fields(options) if OPTION in field.metadata]
    parents = (base for base in options.__bases__ if issubclass(base, Options))
    inherited = {known.name: known for parent in parents for known in _own_options(parent)}
    return [
        Option(
            name=field.name,
            default=field.default,
            **_read_type(hints[field.name]),
            **{limit: getattr(inherited[field.name], limit) for limit in LIMITS if field.name in inherited}
            | field.metadata[OPTION],
        )
        for field in described
    ]


def _read_type(hint: Any) -> dict[str, Any]:
    """What a field's type says: `int`, `int | None`, `tuple[int, ...] | None`, `bool | str`."""
    members = [hint] if isinstance(hint, type) and get_origin(hint) is None else list(get_args(hint))
    members = [hint] if get_origin(hint) is tuple else members
    kinds = [get_args(kind)[0] if get_origin(kind) is tuple else kind for kind in members if kind is not type(None)]
    kinds = [get_origin(kind) or kind for kind in kinds]
    is_list = any(get_origin(kind) is tuple for kind in members)
    return {"types": tuple(kinds), "is_list": is_list, "takes_none": type(None) in members}


def _groups_of(options: type[Options]) -> Mapping[str, type[Options]]:
    """The fields of a dataclass that are themselves dataclasses of options."""
    return _groups(options)  # type: ignore[arg-type]  # as in options_of


@cache
def _groups(options: type[Options]) -> Mapping[str, type[Options]]:
    hints = get_type_hints(options)
    fields = (field for field in dataclasses.fields(options) if field.init)
    return {
        field.name: hints[field.name]
        for field in fields
        if isinstance(hints[field.name], type) and issubclass(hints[field.name], Options)
    }


def options_of(options: type[Options]) -> Mapping[str, Option]:
    """Return all options of a dataclass by name, those of its groups among them but where one of its own answers."""
    return _options_of(options)  # type: ignore[arg-type]  # mypy takes the class of a dataclass for unhashable


@cache
def _options_of(options: type[Options]) -> Mapping[str, Option]:
    own = {known.name: known for known in _own_options(options)}
    groups = {name: known for group in _groups_of(options).values() for name, known in options_of(group).items()}
    # What another option answers for is no option.
    answered = {name for known in own.values() for name in known.asked_as}
    return {name: known for name, known in (groups | own).items() if name not in answered}


def values_of(options: Options) -> dict[str, Any]:
    """Return every option's value by name."""
    values = {known.name: getattr(options, known.name) for known in _own_options(type(options))}
    for group in _groups_of(type(options)):
        values |= values_of(getattr(options, group))
    return values


def resolve(
    options: type[S], values: Mapping[str, Any], source: str = "the options given", *, may_be_idle: bool = False
) -> S:
    """Return the dataclass of options that values by name make.

    Args:
        options: the dataclass.
        values: typed, or text that says the same; those left out have their defaults.
        source: of the values, for messages.
        may_be_idle: whether options may be given that do nothing beside the others.
    """
    known = options_of(options)
    check_names(options, values, source)
    given = {name: known[name].checked(value) for name, value in values.items()}
    asked, given = given, {**options.implied(given), **given}
    missing = [entry.usage for entry in known.values() if entry.is_required and entry.name not in given]
    if missing:
        raise AlignAttnError(f"the following arguments are required: give {' and '.join(missing)} (see --help)")
    resolved = _build(options, given)
    if not may_be_idle:
        resolved.check_use(asked)
    return resolved


def _build(options: type[S], given: Mapping[str, Any]) -> S:
    own = {known.name: given[known.name] for known in _own_options(options) if known.name in given}
    return options(**own, **{name: _build(group, given) for name, group in _groups_of(options).items()})


def check_names(options: type[Options], names: Iterable[str], source: str) -> None:
    """Refuse a name that is no option's."""
    for name in names:
        if name not in options_of(options):
            raise AlignAttnError(f"{source}: {_unknown(options, name)}")


def _unknown(options: type[Options], name: str) -> str:
    for known in options_of(options).values():
        if name in known.asked_as:
            return f"--{name} is {known.asked_as[name]}"
    return f"unknown option {name!r}{meant_option(name, options_of(options))}"


def read_options_file(options: type[Options], path: Path) -> dict[str, Any]:
    """Return the values by name that a YAML file of options holds."""
    values = read_yaml(path, "give a YAML file to --config")
    check_names(options, values, str(path))
    return values
