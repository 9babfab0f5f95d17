"""The training methods: each is one file, and one line in `METHODS`.

A file declares the options, conflicts and texts of its method, from which the command line, the trainer's arguments,
the model card and the tables are generated. Nothing here imports torch.
"""

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from alignattn.training.methods.base import Inputs, TrainingMethod
from alignattn.training.methods.label_smoothing import LabelSmoothing
from alignattn.training.methods.mc_dropout import MCDropout
from alignattn.training.methods.r_drop import RDrop
from alignattn.training.methods.weight_averaging import WeightAveraging
from alignattn.utils.options import Options

__all__ = [
    "METHODS",
    "Inputs",
    "MethodOptions",
    "TrainingMethod",
    "chosen_methods",
    "prediction_method",
    "settings_of",
]


METHODS: tuple[type[TrainingMethod], ...] = (LabelSmoothing, RDrop, WeightAveraging, MCDropout)
"""The training methods, in the order of the help, the model card and the titles of runs."""


if TYPE_CHECKING:

    class MethodOptions(Options):
        """The options of all methods."""

        def __getattr__(self, name: str) -> Any: ...
else:
    MethodOptions = dataclasses.make_dataclass(
        "MethodOptions", [], bases=tuple(method.options for method in METHODS), frozen=True, kw_only=True
    )
    """The options of all methods."""


def chosen_methods(values: Any) -> list[type[TrainingMethod]]:
    """Return the methods that the values of options enable.

    Args:
        values: an object with the options as attributes; a missing option is off.
    """
    return [method for method in METHODS if getattr(values, method.switch, None)]


def prediction_method(values: Any) -> type[TrainingMethod] | None:
    """Return the method that makes a run predict differently from its saved model alone; None without one."""
    return next((method for method in chosen_methods(values) if method.predicts), None)


def settings_of(method: type[TrainingMethod], values: Mapping[str, Any]) -> str:
    """Return the options of a method and what it does, in one line for the model card."""
    names = [f"{field.name} {values[field.name]}" for field in dataclasses.fields(method.options)]
    return f"{', '.join(names)}: {method.summary}"
