"""The configs of a patched model are its own: other models, such as a twin by `from_config`, may share those it had."""

import copy
from typing import Any

from torch import nn
from transformers import PreTrainedConfig

ConfigPairs = list[tuple[PreTrainedConfig, PreTrainedConfig]]
"""Copies of configs, each with what it is a copy of."""


def own_configs(model: nn.Module) -> ConfigPairs:
    """Give a model and its modules copies of their configs, those that they share shared as before."""
    copies: dict[int, Any] = {}
    pairs: ConfigPairs = []
    for module in model.modules():
        config = vars(module).get("config")
        if isinstance(config, PreTrainedConfig):
            if id(config) not in copies:
                copy.deepcopy(config, copies)
                pairs.append((copies[id(config)], config))
            module.config = copies[id(config)]
    return pairs


def return_configs(model: nn.Module, pairs: ConfigPairs) -> None:
    """Give a model back the configs that it had before `own_configs`, but for those that have changed since."""
    before: dict[int, Any] = {id(own): config for own, config in pairs if own.to_dict() == config.to_dict()}
    for module in model.modules():
        config = vars(module).get("config")
        if id(config) in before:
            module.config = before[id(config)]
