"""One run that a table needs: a command and its options, named by their hash."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from alignattn.commands.reproduce.fillers import own_options, use_of
from alignattn.support.publishing import short_path

FORMAT = 1
"""Of what makes a digest: raised when equal options come to mean another run."""

DIGEST_CHARACTERS = 16

MODEL_OPTION, SEED_OPTION = "model", "seed"

State = Literal["done", "missing", "failed"]
"""Of a run."""

INDIFFERENT_OPTIONS = frozenset({"batch_size", "disable_tqdm", "log_query_key_distance", "report_to"})
"""Options that change nothing of what a run measures."""


@dataclass(frozen=True)
class Experiment:
    """A run.

    Attributes:
        command: of `alignattn`.
        options: what it is given, by name, but where it writes; those that it leaves alone are the command's defaults.
        needs: the run whose result it works on, or None.
    """

    command: str
    options: Mapping[str, Any]
    needs: "Experiment | None" = None

    @cached_property
    def digest(self) -> str:
        """The start of the SHA-256 of command and options: equal for equal runs, where equal paths hold equal files."""
        options = {name: value for name, value in self.options.items() if name not in INDIFFERENT_OPTIONS}
        needs = self.needs and self.needs.digest
        content = {"format": FORMAT, "command": self.command, "options": options, "needs": needs}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:DIGEST_CHARACTERS]

    @property
    def all_options(self) -> dict[str, Any]:
        """Its options, over those of the run on whose result it works."""
        return {**(self.needs.options if self.needs else {}), **self.options}

    @property
    def title(self) -> str:
        """What tells it from the other runs of a table, for eyes."""
        whole = self.all_options
        names = ("recipes", "task", "pair", MODEL_OPTION, "attention", "gradient_scope")
        parts = [
            short_path(str(whole[name])) if name == MODEL_OPTION else whole[name] for name in names if name in whole
        ]
        words = [" ".join(part) if isinstance(part, list) else str(part) for part in parts]
        words += [f"λ {whole['alignment_weight']}"] if "alignment_weight" in whole else []
        words += [f"seed {whole[SEED_OPTION]}"] if SEED_OPTION in whole else []
        return f"{self.command} {', '.join(words)}"


def experiments_of(command: str, options: Mapping[str, Any], seeds: Sequence[int]) -> list[Experiment]:
    """Return the runs of a command that have these options, one a seed; one alone where nothing is drawn by a seed."""
    use = use_of(command)
    own = {name: value for name, value in options.items() if name in own_options(command)}
    if use.needs is not None:
        return [Experiment(command, own, needed) for needed in experiments_of(use.needs, options, seeds)]
    if not use.has_seeds:
        return [Experiment(command, own)]
    return [Experiment(command, own | {SEED_OPTION: seed}) for seed in seeds]
