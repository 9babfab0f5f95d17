"""Options: each one line of a dataclass, with its type, default, help, group and range; read and checked in one place.

    @dataclass(frozen=True, kw_only=True)
    class ExampleOptions(Options):
        model: str = option(REQUIRED, "Folder or Hub id.", group="model")
        max_length: int | None = option(None, "Most tokens of a sequence.", group="data", low=1)

`resolve` makes such an object of values by name: words of a command line, lines of a YAML file, a program's values. A
dataclass may also hold others, as groups of its options. Nothing heavy is imported here.
"""

import dataclasses
import math
import os
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import MISSING, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from alignattn.support.errors import AlignAttnError, did_you_mean, shown
from alignattn.support.files import read_yaml
from alignattn.support.places import Place, input_file, input_folder, output_file, output_folder

REQUIRED: Any = MISSING
"""The default of an option that must be given."""

LARGEST_SEED = 2**32 - 1
"""NumPy takes no larger one."""

MOST_PROCESSES = 1024
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

LIMITS = ("low", "high", "above", "below", "choices")
"""What a dataclass need not say again of an option that it declares anew."""

PATHS: Mapping[str, Place] = {"FILE": input_file, "DIR": input_folder}
"""What stands there for the path of a file, and of a folder; it is to be read where the option says nothing else."""

NAMED_VALUES = "NAME=X"
"""What stands there for values by name, whose option may be given in parts: by a file and by a command line."""

NUMBERS_OF_ROWS = (
    *("num_rows", "num_samples", "num_examples", "max_rows", "max_samples", "max_examples", "samples", "examples"),
    *("limit", "max_eval_samples", "max_train_samples"),
)
"""Names by which it is asked how many rows are read."""

MEANT: Mapping[str, Sequence[str]] = {
    **dict.fromkeys(("lr", "rate"), ("learning_rate",)),
    **dict.fromkeys(("epochs", "num_epochs", "n_epochs", "max_epochs"), ("num_train_epochs",)),
    **dict.fromkeys(("steps", "num_steps", "max_train_steps"), ("max_steps",)),
    **dict.fromkeys(
        ("batch", "batch_size", "train_batch_size"), ("per_device_train_batch_size", "batch_size", "shapes")
    ),
    **dict.fromkeys(
        ("eval_batch", "eval_batch_size", "per_device_eval_batch_size"), ("per_device_eval_batch_size", "batch_size")
    ),
    **dict.fromkeys(("warmup", "num_warmup_steps"), ("warmup_steps",)),
    **dict.fromkeys(("accumulation_steps", "grad_accum", "grad_accumulation"), ("gradient_accumulation_steps",)),
    **dict.fromkeys(("wd", "decay"), ("weight_decay",)),
    **dict.fromkeys(("seed", "seeds", "random_seed", "num_seeds"), ("seeds", "seed")),
    **dict.fromkeys(("max_seq_length", "max_seq_len", "max_len", "seq_length", "length"), ("max_length",)),
    **dict.fromkeys(("model", "model_name", "model_name_or_path", "checkpoint", "pretrained"), ("model", "run")),
    **dict.fromkeys(("run", "runs", "folder"), ("run", "model")),
    **dict.fromkeys(("dataset", "dataset_name", "task_name", "tasks", "data"), ("task", "tasks", "pair")),
    **dict.fromkeys(
        ("train_data", "train_file", "data_file", "file", "input", "input_file", "text", "text_file"),
        ("train_file", "validation_file", "file"),
    ),
    **dict.fromkeys(
        ("eval_file", "dev_file", "test_file", "validation_data", "validation_file"),
        ("validation_file", "train_file", "file"),
    ),
    **dict.fromkeys(("text_column", "columns", "column"), ("text_columns",)),
    **dict.fromkeys(("label_names", "class_names"), ("labels",)),
    **dict.fromkeys(("labels", "label", "target"), ("label_column",)),
    **dict.fromkeys(("out_dir", "output_folder", "save_dir"), ("output_dir", "output_file", "html")),
    **dict.fromkeys(("out", "output", "output_file", "html", "picture"), ("output_file", "html", "output_dir")),
    **dict.fromkeys(NUMBERS_OF_ROWS, ("max_eval_samples", "num_examples", "max_train_samples", "limit", "train_rows")),
    **dict.fromkeys(("lambda", "weight", "align_weight"), ("alignment_weight",)),
    **dict.fromkeys(("attn", "attention_type", "preset"), ("attention", "attentions")),
    **dict.fromkeys(("lora", "lora_rank", "rank"), ("lora_r",)),
    **dict.fromkeys(("attack", "recipe"), ("recipes",)),
    **dict.fromkeys(("layer", "layers"), ("layers", "layer")),
    **dict.fromkeys(("cpu", "no_cuda", "use_cpu", "device"), ("use_cpu", "device")),
    **dict.fromkeys(("workers", "num_workers", "num_proc"), ("preprocessing_num_workers", "processes")),
    "hub_id": ("hub_model_id",),
    "config_file": ("config",),
    "embedding": ("embeddings",),
}
"""Words by which options are asked for, as of other programs, with those that may be meant, the likeliest first."""

S = TypeVar("S", bound="Options")


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
        formerly: names that it had; a command line is told the new one, files and dicts may still use them.
        asked_as: names by which it is asked for, each with the answer.
        place: refuses a value that cannot be on this machine; None for what names nothing there, and where `PATHS`
            says it.
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
    formerly: Sequence[str] = ()
    asked_as: Mapping[str, str] = field(default_factory=dict)
    place: Place | None = None

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


def option(default: Any, help: str, **details: Any) -> Any:
    """Return the field of an option.

    Args:
        default: `REQUIRED` if there is none.
        help: one sentence.
        **details: the other attributes of `Option`, but for those that the field's type says.
    """
    return dataclasses.field(default=default, metadata={OPTION: {"help": help, **details}})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of dataclasses of options: each object's values are of their types and within their ranges."""

    def __post_init__(self) -> None:
        for known in _own_options(type(self)):
            object.__setattr__(self, known.name, known.checked(getattr(self, known.name)))

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

    @classmethod
    def of_before(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return values that were given before today, with what they meant then."""
        return values

    @classmethod
    def read_back(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of a file, with what they meant when it was written."""
        return values


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


def renamed(options: type[Options]) -> Mapping[str, str]:
    """Return the names that options had before, each with the name of today."""
    return {old: known.name for known in options_of(options).values() for old in known.formerly}


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
        values: typed, or text that says the same; those left out have their defaults. Former names are understood.
        source: of the values, for messages.
        may_be_idle: whether options may be given that do nothing beside the others.
    """
    known = options_of(options)
    given = {name: known[name].checked(value) for name, value in present_names(options, values, source).items()}
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


def present_names(options: type[Options], values: Mapping[str, Any], source: str) -> dict[str, Any]:
    """Return values with the options' present names."""
    known, former = options_of(options), renamed(options)
    present: dict[str, Any] = {}
    for name, value in values.items():
        current = former.get(name, name)
        if current not in known:
            raise AlignAttnError(f"{source}: {_unknown(options, name)}")
        if current in present:
            raise AlignAttnError(f"{source}: {name!r} and {current!r} are one option: leave one of them out")
        present[current] = value
    return present


def _unknown(options: type[Options], name: str) -> str:
    for known in options_of(options).values():
        if name in known.asked_as:
            return f"--{name} is {known.asked_as[name]}"
    return f"unknown option {name!r}{meant_option(name, options_of(options))}"


def read_options_file(options: type[Options], path: Path) -> dict[str, Any]:
    """Return the values by name that a YAML file of options holds."""
    return dict(options.read_back(present_names(options, read_yaml(path, "give a YAML file to --config"), str(path))))


def meant_option(word: str, known: Collection[str]) -> str:
    """Return a hint at the option that an unknown word means, or is most like, for the end of a sentence; or nothing.

    Args:
        word: with or without its hyphens.
        known: the names of the options that there are.
    """
    hyphens, name = "--" if word.startswith("--") else "", plain_option(word)
    meant = next((option for option in MEANT.get(name, ()) if option in known), None)
    if meant is not None:
        return f": did you mean {hyphens + meant!r}?"
    return did_you_mean(hyphens + name, [hyphens + option for option in known])


def plain_option(word: str) -> str:
    """Return the name of an option as a field has it, of a word of a command line with or without a value."""
    return word.removeprefix("--").partition("=")[0].replace("-", "_")
