"""Families of models that do not use transformers' attention interface: each has a forward of ours that serves slots.

A patch gives the attention modules of such a model another class, which `SlottedAttention` describes: a subclass of
their own, so that parameters, state-dict keys and everything but the forward stay as they are. To add a family is to
add its file and its entry here.
"""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn


@dataclass(frozen=True)
class Family:
    """A family of models.

    Attributes:
        attention: class of its self-attention modules, `module:name`.
        roles: attribute of a projection by role, as in `ProjectionNames`.
        slotted: class that a patch gives these modules, `module:name` in this package.
    """

    attention: str
    roles: Mapping[str, str]
    slotted: str


FAMILIES: Mapping[str, Family] = {
    "deberta-v2": Family(
        "transformers.models.deberta_v2.modeling_deberta_v2:DisentangledSelfAttention",
        {"query": "query_proj", "key": "key_proj"},
        ".deberta_v2:SlottedDisentangledSelfAttention",
    ),
    "mpnet": Family(
        "transformers.models.mpnet.modeling_mpnet:MPNetSelfAttention",
        {"query": "q", "key": "k"},
        ".mpnet:SlottedMPNetSelfAttention",
    ),
}
"""By the `model_type` of transformers' config."""

_BY_ATTENTION = {family.attention: family for family in FAMILIES.values()}


def family_of(module: nn.Module) -> Family | None:
    """Return the family whose self-attention `module` is; None if it is none's.

    By the name of its very class: a subclass may attend otherwise, and no model is imported to ask.
    """
    return _BY_ATTENTION.get(f"{type(module).__module__}:{type(module).__qualname__}")


def give_slotted_forward(module: nn.Module) -> None:
    """Give an attention module of a family the forward that serves slots; leave any other as it is."""
    family = family_of(module)
    if family is not None:
        path, _, name = family.slotted.partition(":")
        object.__setattr__(module, "__class__", getattr(importlib.import_module(path, __name__), name))


def is_slotted(module: nn.Module) -> bool:
    """Tell whether an attention module has the forward that serves slots."""
    return hasattr(type(module), "plain_class")


def take_slotted_forward(module: nn.Module) -> None:
    """Undo `give_slotted_forward`, if it was done."""
    if is_slotted(module):
        plain_class: Any = type(module)
        object.__setattr__(module, "__class__", plain_class.plain_class)
