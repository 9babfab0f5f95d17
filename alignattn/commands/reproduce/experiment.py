"""One run that a table needs: a command and its options, named by their hash."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from alignattn.commands import results_of
from alignattn.commands.reproduce.given import is_table_option
from alignattn.training.methods import METHODS
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

EARLIER_DEFAULTS = {"eval_strategy": "no"}
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
