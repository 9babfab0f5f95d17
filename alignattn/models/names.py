"""Checks of a model's name before anything heavy is imported."""

import re
from pathlib import Path

from alignattn.models import MODELS
from alignattn.models.packaged import PACKAGED
from alignattn.utils.errors import AlignAttnError, did_you_mean
from alignattn.utils.paths import input_folder

HUB_ID = re.compile(r"\w[\w.-]*(/[\w.-]+)?")
"""A model's id on the Hub; longer paths, and paths from `.`, `~` or the root, are folders."""

CHOICES = "a folder, or a Hub id that is cached or reachable"
"""The values of a --model option."""


def model_folder(label: str, value: str) -> None:
    """Refuse anything but a model's folder or the name of a packaged model; arguments as for `model_name`."""
    if value not in PACKAGED:
        input_folder(label, value)


def model_name(label: str, value: str, *others: str) -> None:
    """Refuse a name that no trained model can have: one of `MODELS`, a missing folder, a misspelling.

    Args:
        label: the option, for the message.
        value: the option's value.
        *others: further valid names.
    """
    known = (*PACKAGED, *others)
    path = Path(value)
    if value in known or path.is_dir():
        return
    if value in MODELS:
        raise AlignAttnError(
            f"{label} {value} is trained from scratch by `alignattn finetune`: give the folder of such a run"
        )
    if path.is_file():
        raise AlignAttnError(f"{label} {value} is a file: give the folder of the model")
    if not HUB_ID.fullmatch(value):
        raise AlignAttnError(f"cannot load the model {value!r}: there is no such folder (give {CHOICES})")
    # A name counts as a misspelling if it is this similar to one of ours.
    slip = did_you_mean(value, (*known, *MODELS), least_alike=0.75)
    if slip and "/" not in value:
        raise AlignAttnError(f"{label} {value}: there is no folder and no model of that name{slip}")


def model_to_train(label: str, value: str) -> None:
    """Refuse a name that cannot be trained, as `model_name` does; `MODELS` are allowed."""
    model_name(label, value, *MODELS)
