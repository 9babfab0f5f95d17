"""The training methods: each is one file, and one line in `METHODS`.

A file declares the options, conflicts and texts of its method, from which the command line, the trainer's arguments,
the model card and the tables are made. Nothing here imports torch.
"""

import dataclasses
import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, get_type_hints

from alignattn.training.methods.base import Inputs, TrainingMethod
from alignattn.utils.option import OPTION
from alignattn.utils.options import Options

__all__ = [
    "METHODS",
    "Inputs",
    "MethodOptions",
    "TrainingMethod",
    "chosen_methods",
    "fields_of_methods",
    "prediction_method",
    "settings_of",
]


def _load(name: str) -> type[TrainingMethod]:
    module, _, attribute = name.partition(":")
    method: type[TrainingMethod] = getattr(importlib.import_module(f"{__name__}.{module}"), attribute)
    return method


METHODS = tuple(
    _load(name)
    for name in (
        "label_smoothing:LabelSmoothing",
        "r_drop:RDrop",
        "freelb:FreeLB",
        "weight_averaging:WeightAveraging",
        "mc_dropout:MCDropout",
        "laplace:Laplace",
    )
)
"""In the order of the help, the model card and the titles of runs."""


def fields_of_methods(*, predicts: bool | None = None) -> list[tuple[str, Any, Any]]:
    """Return the options of the methods as `dataclasses.make_dataclass` takes fields.

    Args:
        predicts: True = of the methods that change predictions, False = of those that change the training; None = all.
    """
    declared = (method.options for method in METHODS if predicts in (None, method.predicts))
    shown = {"group": "training methods", "rare": True}
    return [
        (
            field.name,
            get_type_hints(options)[field.name],
            dataclasses.field(default=field.default, metadata={OPTION: shown | field.metadata[OPTION]}),
        )
        for options in declared
        for field in dataclasses.fields(options)
    ]


if TYPE_CHECKING:

    class MethodOptions(Options):
        """The options of all methods."""

        def __getattr__(self, name: str) -> Any: ...
else:
    MethodOptions = dataclasses.make_dataclass(
        "MethodOptions", fields_of_methods(), bases=(Options,), frozen=True, kw_only=True
    )
    """The options of all methods."""


def chosen_methods(values: Any) -> list[type[TrainingMethod]]:
    """Return the methods that values of options switch on.

    Args:
        values: an object with the options as attributes; one that it lacks is off.
    """
    return [method for method in METHODS if getattr(values, method.switch, None)]


def prediction_method(values: Any) -> type[TrainingMethod] | None:
    """Return the method by which a run predicts otherwise than its saved model does by itself; None without one."""
    return next((method for method in chosen_methods(values) if method.predicts), None)


def settings_of(method: type[TrainingMethod], values: Mapping[str, Any]) -> str:
    """Return the options of a method and what it does, in one line for the model card."""
    names = [f"{field.name} {values[field.name]}" for field in dataclasses.fields(method.options)]
    return f"{', '.join(names)}: {method.summary}"
