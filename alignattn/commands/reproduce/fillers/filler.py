"""What a command is as a filler of tables."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from alignattn.commands.reproduce.experiment import Experiment
from alignattn.statistics.example_scores import ExampleScores

OWN_FOLDER = "output_dir"
"""The option that says where a command writes."""


@dataclass(frozen=True)
class RunReport:
    """What is to be told of a finished run.

    Attributes:
        facts: name and value: seed, versions, hardware, runtime.
        scores: what it measured, name and value.
        config: its options, YAML; empty where the command writes none.
        log_history: of its training; empty where it did not train.
        probabilities: of its predictions, `[N, C]`, with their labels; None where it made none.
    """

    facts: Mapping[str, str]
    scores: Mapping[str, str]
    config: str = ""
    log_history: Sequence[Mapping[str, Any]] = field(default=())
    probabilities: tuple[Any, Any] | None = None


class Command(ABC):
    """A command of `alignattn` as a filler of tables.

    Attributes:
        name: of the command.
        needs: the command on whose result it works, or None.
    """

    name: ClassVar[str]
    needs: "ClassVar[Command | None]" = None

    @cached_property
    @abstractmethod
    def options(self) -> frozenset[str]:
        """The options that a table or a user may give it: all but those that say where it writes and goes on."""

    @property
    def all_options(self) -> frozenset[str]:
        """Its options, and those of the command on whose result it works."""
        return self.options | (self.needs.all_options if self.needs else frozenset())

    def experiments(self, options: Mapping[str, Any], seeds: Sequence[int]) -> list[Experiment]:
        """Return the runs that have these options, one a seed; one alone where nothing is drawn by a seed."""
        if self.needs is None:
            return [Experiment(self.name, self._own({**options, "seed": seed})) for seed in seeds]
        needed = self.needs.experiments(options, seeds)
        return [Experiment(self.name, self._own(options), needs) for needs in needed]

    def argv(self, experiment: Experiment, folder: Path, needed: Path | None) -> list[str]:
        """Return the words after the command's name.

        Args:
            experiment: one of this command.
            folder: where it writes.
            needed: where the run on whose result it works has written.
        """
        return [*_words(experiment.options), *_words({OWN_FOLDER: str(folder)})]

    @abstractmethod
    def is_finished(self, folder: Path) -> bool:
        """Return whether a run has finished.

        Raises:
            AlignAttnError: if what it left is damaged or of another version.
        """

    def clear_unfinished(self, folder: Path) -> None:  # noqa: B027  # most commands go on where they were
        """Remove what an unfinished run left, where the command would not go on from it."""

    def check_same(self, argv: Sequence[str]) -> None:  # noqa: B027  # most commands see to it by themselves
        """Check that the folder that the words name holds a run of theirs, or none.

        Raises:
            AlignAttnError: if it holds another.
        """

    @abstractmethod
    def numbers(self, folder: Path) -> Mapping[str, Any]:
        """Return what a finished run has measured: nested by the keys of a table's paths."""

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return what a number of a finished run is made of, row by row; None where that is not kept."""
        return None

    @abstractmethod
    def report(self, folder: Path) -> RunReport:
        """Return what is to be told of a finished run."""

    def _own(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in options.items() if name in self.options}


def _words(options: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *(str(item).lower() if isinstance(item, bool) else str(item) for item in values)]
    return words
