"""One run that a table needs: a command and its options, named by their hash, and the options that may be given."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, make_dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.attention.config import ALL_ROWS
from alignattn.commands import get_command, results_of
from alignattn.finetuning.options import drawn_by_default
from alignattn.training.methods import METHODS
from alignattn.utils.command import OUTPUT_DIR
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.options import (
    Options,
    build_parser,
    checked_values,
    option_names,
    options_of,
    read_words,
)
from alignattn.utils.paths import short_path

FORMAT = 1
"""Version of the digest: increased when equal options start to mean another run."""

DIGEST_CHARACTERS = 16

MODEL_OPTION, MODEL_DIGEST_OPTION, SEED_OPTION, DATA_OPTION = "model", "model_sha256", "seed", "data_dir"

SYMBOLS: Mapping[str, str] = {
    "alignment_weight": "λ ",
    "balance": "balance ",
    **{method.switch: f"{method.label} " for method in METHODS},
    "lora_r": "LoRA ",
    SEED_OPTION: "seed ",
}
"""Prefixes of values that mean nothing without them."""

TITLE_OPTIONS = ("recipes", "task", "pair", MODEL_OPTION, "attention", "gradient_scope", *SYMBOLS)


INDIFFERENT_OPTIONS = frozenset({"batch_size", "disable_tqdm", "log_query_key_distance", "report_to"})
"""Options that do not change what a run measures."""

EARLIER_DEFAULTS = {"eval_strategy": "no", "alignment_rows": ALL_ROWS}
"""Values that do not distinguish a run, because they were defaults when the runs of shipped tables were made."""


@dataclass(frozen=True)
class Experiment:
    """A run.

    Attributes:
        command: the command of `alignattn`.
        options: the given options by name, without the output folder; others have the command's defaults.
        needs: the run whose result it needs, or None.
        data_dir: the folder of the rows on this machine; the run's folder compares rows by their content.
    """

    command: str
    options: Mapping[str, Any]
    needs: "Experiment | None" = None
    data_dir: str | None = None

    @cached_property
    def digest(self) -> str:
        """The start of the SHA-256 of command and options: equal for equal runs, if files of equal paths are equal."""
        needs = self.needs and self.needs.digest
        content = {"format": FORMAT, "command": self.command, "options": distinctive(self.options), "needs": needs}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def all_options(self) -> dict[str, Any]:
        """Its options, with the folder of the rows, and those of the run that it depends on."""
        place = {} if self.data_dir is None else {DATA_OPTION: self.data_dir}
        return {**(self.needs.all_options if self.needs else {}), **self.options, **place}

    def with_rows_in(self, data_dir: str | None) -> "Experiment":
        """Return the run, and the one that it depends on, with the rows in another folder; None keeps theirs."""
        if data_dir is None:
            return self
        needs = self.needs and self.needs.with_rows_in(data_dir)
        return replace(self, needs=needs, data_dir=data_dir if is_table_option(self.command, DATA_OPTION) else None)

    def drawing(self) -> "Experiment":
        """Return the run, and the one that it depends on, with the number of rows that its attention draws."""
        needs = self.needs and self.needs.drawing()
        return replace(self, options=with_drawn_rows(self.options), needs=needs)

    @property
    def title(self) -> str:
        """The options that distinguish it from other runs of a table."""
        whole = self.all_options
        return f"{self.command} {', '.join(option_text(name, whole[name]) for name in TITLE_OPTIONS if name in whole)}"


def distinctive(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that distinguish a run from others."""
    # If the model is a run folder, the digest of the model replaces the path, which may change.
    ignored = INDIFFERENT_OPTIONS | ({MODEL_OPTION} if MODEL_DIGEST_OPTION in options else set())
    return {
        name: value for name, value in options.items() if name not in ignored and EARLIER_DEFAULTS.get(name) != value
    }


def option_text(name: str, value: Any) -> str:
    """Return the value of an option as printed."""
    if isinstance(value, list):
        return " ".join(map(str, value))
    return SYMBOLS.get(name, "") + (short_path(value) if name == MODEL_OPTION else str(value))


def with_drawn_rows(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of runs with the number of rows that their attention draws by default.

    A kept run that names none is of the time when all rows were used.
    """
    drawn = drawn_by_default(options) if MODEL_OPTION in options else ALL_ROWS
    return {**({} if drawn == ALL_ROWS else {"alignment_rows": drawn}), **options}


def experiments_of(command: str, options: Mapping[str, Any], seeds: Sequence[int]) -> list[Experiment]:
    """Return the runs of a command with these options, one per seed."""
    needs = results_of(command).needs
    own = {name: value for name, value in options.items() if is_table_option(command, name)}
    if needs is not None:
        return [Experiment(command, own, needed) for needed in experiments_of(needs, options, seeds)]
    return [Experiment(command, own | {SEED_OPTION: seed}) for seed in seeds]


def with_unknown(experiment: Experiment, options: Mapping[str, Any]) -> Experiment:
    """Return a run also with those of the options of its cell that its commands no longer know."""
    unknown = {name: value for name, value in options.items() if name not in experiment.all_options}
    return replace(experiment, options={**experiment.options, **unknown})


def is_table_option(command: str, name: str) -> bool:
    """Return whether a command has an option of this name that a table or a user may set."""
    withheld = {OUTPUT_DIR, *results_of(command).withheld}
    options = get_command(command).options
    # Another library is imported only for a name that is not one of ours.
    return name not in withheld and (name in options_of(options) or name in option_names(options))


def owners_of(commands: Sequence[str], name: str) -> list[type[Options]]:
    """Return the options of each of a table's commands that has one of this name, of the command or of that it needs.

    Raises:
        AlignAttnError: if none has.
    """
    owners = []
    for command in commands:
        having = [one for one in (command, results_of(command).needs) if one and is_table_option(one, name)]
        owners += [get_command(one).options for one in having[:1]]
    if not owners:
        known = {other for command in commands for other in option_names(get_command(command).options)}
        raise AlignAttnError(f"--{name} is not an option of {' or '.join(commands)}{did_you_mean(name, known)}")
    return owners


def read_given(commands: Sequence[str], words: Sequence[str]) -> dict[str, Any]:
    """Parse words into options, by name, of a table's commands and of the commands that these depend on."""
    if words and not words[0].startswith("--"):
        raise AlignAttnError(
            f"{words[0]!r} is not an option: alignattn reproduce expects the name of one table (see --help)"
        )
    needed = [results_of(command).needs for command in commands]
    # Messages name the first.
    names = list(dict.fromkeys(name for name in (*needed, *commands) if name is not None))
    groups = [(name.replace("-", "_"), get_command(name).options) for name in names]
    options = make_dataclass("TableOptions", groups, bases=(Options,), frozen=True, kw_only=True)
    return read_words(options, words, build_parser(options, get_command(names[0]).prog))


def digest_value(options: type[Options], name: str, value: Any) -> Any:
    """Return the canonical form of an option's value, which a digest contains.

    The path of an existing file or folder becomes absolute, so that equal options name equal data from any folder.
    """
    checked = checked_values(options, {name: value})[name]
    known = options_of(options).get(name)
    is_path = known is not None and known.is_path

    def plain(value: Any) -> Any:
        if isinstance(value, float) and value.is_integer():
            return int(value)
        # A model's name without a separator may be a Hub id, even if a folder has that name.
        if not isinstance(value, str) or not (is_path or os.sep in value) or not (path := Path(value)).exists():
            return value
        # The target of a linked file, such as a blob of a cache, has no suffix that tells the format.
        return str(path.parent.resolve() / path.name if path.is_file() else path.resolve())

    values = [plain(one) for one in checked] if isinstance(checked, tuple | list) else [plain(checked)]
    return values[0] if len(values) == 1 else values
