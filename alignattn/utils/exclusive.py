"""Options of a training that cannot go together: one list, for the command line and for programs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Exclusion:
    """Two options of which one must be left out.

    Attributes:
        names: of both.
        reason: why.
        holds: whether the second one's value is such that it cannot be.
    """

    names: tuple[str, str]
    reason: str
    holds: Callable[[Any], bool] = bool


EXCLUSIONS = (
    Exclusion(("r_drop_weight", "freelb_steps"), "each says by itself which forwards a step makes"),
    Exclusion(
        ("weight_averaging", "load_best_model_at_end"),
        "the best checkpoint, as early stopping chooses it, is of weights that train, and not of their average",
    ),
    Exclusion(("laplace", "mc_dropout_passes"), "each says by itself how confident predictions are"),
    Exclusion(
        ("weight_averaging", "balance"),
        "after each epoch the weights are of another basis, and their average of none",
        lambda time: time == "epoch",
    ),
)


def refuse_together(values: Mapping[str, Any]) -> None:
    """Refuse values of options, by name, of which one must be left out; an option that is not there is not given.

    Raises:
        AlignAttnError: if there are such.
    """
    for exclusion in EXCLUSIONS:
        first, second = exclusion.names
        if values.get(first) and exclusion.holds(values.get(second)):
            raise AlignAttnError(f"{first} does not go with {second}: {exclusion.reason}: leave one of them out")
