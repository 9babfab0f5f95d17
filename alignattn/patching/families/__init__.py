"""Families of models that do not use transformers' attention interface: each has a forward here that supports slots.

A patch changes the class of such a model's attention modules to a subclass of their own class (`SlottedAttention`), so
that parameters, state-dict keys and everything but the forward stay as they are. To add a family, add its file and its
entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
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
"""The families, by the `model_type` of transformers' config."""

_BY_ATTENTION = {family.attention: family for family in FAMILIES.values()}


def family_of(module: nn.Module) -> Family | None:
    """Return the family of a self-attention module; None for other modules.

    The name of the exact class decides: a subclass may attend differently, and the check imports no model.
    """
    return _BY_ATTENTION.get(f"{type(module).__module__}:{type(module).__qualname__}")


def give_slotted_forward(module: nn.Module) -> None:
    """Give an attention module of a family the forward that supports slots; leave any other as it is."""
    family = family_of(module)
    if family is not None:
        object.__setattr__(module, "__class__", resolve_name(f"{__name__}{family.slotted}"))


def is_slotted(module: nn.Module) -> bool:
    """Tell whether an attention module has the forward that supports slots."""
    return hasattr(type(module), "plain_class")


def take_slotted_forward(module: nn.Module) -> None:
    """Undo `give_slotted_forward`, if it was done."""
    if is_slotted(module):
        plain_class: Any = type(module)
        object.__setattr__(module, "__class__", plain_class.plain_class)
