"""The configs of a patched model are its own: other models, such as a twin by `from_config`, may share those it had.

So is the way in which it is saved.
"""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

ConfigPairs = list[tuple[PreTrainedConfig, PreTrainedConfig]]
"""Copies of configs, each with what it is a copy of."""

SAVING = "save_pretrained"
"""The method that a patch replaces in a model."""


def own_configs(model: nn.Module) -> ConfigPairs:
    """Give a model and its modules copies of their configs, those that they share shared as before.

    From then on a model of transformers is saved with what its patch is.
    """
    copies: dict[int, Any] = {}
    pairs: dict[int, tuple[PreTrainedConfig, PreTrainedConfig]] = {}
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig):
            # The copy of a config that holds this one holds its copy.
            pairs.setdefault(id(config), (copy.deepcopy(config, copies), config))
            module.config = copies[id(config)]
    if isinstance(model, PreTrainedModel):
        # Here, for it reads slots, which hold these pairs.
        from alignattn.patching.saving import PatchedSaving

        setattr(model, SAVING, PatchedSaving(model))
    return list(pairs.values())


def return_configs(model: nn.Module, pairs: ConfigPairs) -> None:
    """Give a model back the configs that it had before `own_configs`, but for those that have changed since."""
    vars(model).pop(SAVING, None)
    changed = [own for own, config in pairs if _is_changed(own, config)]
    # A config that holds others changes with them; one that it holds stays in it.
    for own in changed:
        changed += [part for part in vars(own).values() if isinstance(part, PreTrainedConfig)]
    kept = {id(own) for own in changed}
    before: dict[int, Any] = {id(own): config for own, config in pairs if id(own) not in kept}
    for module in model.modules():
        config = vars(module).get("config")
        if id(config) in before:
            module.config = before[id(config)]


def _is_changed(own: PreTrainedConfig, config: PreTrainedConfig) -> bool:
    # The attention implementation is not among what a config writes.
    return own._attn_implementation != config._attn_implementation or own.to_dict() != config.to_dict()
