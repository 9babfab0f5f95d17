"""How a table reads the results of a command; the `Command` names its reader."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    from alignattn.evaluation.statistics.example_scores import ExampleScores

UNREADABLE = (AlignAttnError, OSError, ValueError, LookupError, TypeError)
"""Errors of reading a damaged file."""


class NotKeptError(AlignAttnError):
    """Raised if the predictions of a finished run are missing, for example because only small files were kept."""


@dataclass(frozen=True)
class RunReport:
    """The data of a finished run for a table.

    Attributes:
        numbers: its results, nested by the keys of a table's paths.
        facts: seed, versions, hardware and runtime, by name.
        scores: its results as texts, by name.
        config: its options as YAML; empty if the command writes none.
        log_history: log history of its training; empty if it did not train.
        probabilities: predicted probabilities, `[N, C]`, and labels; None without probabilities.
        predictions_digest: digest of all its predictions; empty if unknown.
    """

    numbers: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, str] = field(default_factory=dict)
    scores: Mapping[str, str] = field(default_factory=dict)
    config: str = ""
    log_history: Sequence[Mapping[str, Any]] = ()
    probabilities: tuple[Any, Any] | None = None
    predictions_digest: str = ""


class ResultReader(ABC):
    """Reads the folder of a command."""

    @abstractmethod
    def is_finished(self, folder: Path) -> bool:
        """Return whether a run has finished."""

    @abstractmethod
    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run; raises one of `UNREADABLE` if its files are damaged."""

    def clear_unfinished(self, folder: Path) -> None:  # noqa: B027  # most commands resume
        """Remove the files of an unfinished run, if the command cannot resume from them."""

    def check_same(self, options: Any) -> None:  # noqa: B027  # most commands check it themselves
        """Check that the output folder of resolved options contains their run, or none."""

    def reason_unsupported(self, options: Any, needed: Any | None = None) -> str:
        """Return why the command's resolved options are not supported, in one line; empty if they are.

        Args:
            options: the options of the run.
            needed: the options of the run whose result it needs; None if it needs none.
        """
        return ""

    def examples(self, folder: Path, path: Sequence[str]) -> "ExampleScores | None":
        """Return the row scores behind a number of a finished run; None if it is not a statistic of rows."""
        return None

    def share_rows(self, numbers: Mapping[str, Any], path: Sequence[str]) -> int | None:
        """Return how many rows the number at a path is a share of, as an accuracy is; None for other numbers."""
        return None

    def reason_no_ensemble(self, path: Sequence[str]) -> str:
        """Return why there is no ensemble of this number, in one line; empty if there is one."""
        return "no predictions are kept that an ensemble could average"

    def ensemble(self, folders: Sequence[Path], path: Sequence[str]) -> "ExampleScores | None":
        """Return the row scores of the mean of several runs' predictions; None if they are not kept."""
        return None


def listed(versions: Mapping[str, str]) -> str:
    """Return versions in one line."""
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def percent(value: float) -> str:
    """Return a fraction as a percentage."""
    return f"{100 * value:.2f} %"
