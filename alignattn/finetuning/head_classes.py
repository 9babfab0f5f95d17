"""The classes of a saved head: what it learned of a class stays with the name of that class."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from alignattn.models.taggers.crf import LinearChainCrf
from alignattn.tasks.labels import spelling_key
from alignattn.utils.errors import AlignAttnError, listing

UNNAMED = "LABEL_"
"""How the names of classes begin that transformers makes up."""


def named_classes(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the names of a saved model's classes in the order of its outputs; nothing where it has none."""
    names = tuple(name for _, name in sorted((config.id2label or {}).items()))
    return () if len(names) < 2 or all(name.startswith(UNNAMED) for name in names) else names


def keep_classes(model: PreTrainedModel, name: str, saved: Sequence[str]) -> str | None:
    """Put the outputs of a loaded head in the order of its new classes, where these have the same names.

    Args:
        model: with its new classes in its config.
        name: of the model, for messages.
        saved: the classes that its head was trained for.

    Returns:
        What became of the classes; None where they are the same, or the head is new because it has another size.
    """
    classes = named_classes(model.config)
    mine, theirs = list(map(spelling_key, classes)), list(map(spelling_key, saved))
    if not theirs or len(mine) != len(theirs) or mine == theirs:
        return None
    if len(set(mine)) < len(mine) or set(mine) != set(theirs):
        return f"{name}: its head was trained for the classes {listing(saved)}, which now are {listing(classes)}"
    _reorder(model, name, [theirs.index(key) for key in mine])
    return f"{name}: the outputs of its head stood as {listing(saved)}, and now stand as {listing(classes)}"


def _reorder(model: PreTrainedModel, name: str, order: Sequence[int]) -> None:
    """Let output i be what output `order[i]` was."""
    within = set(model.base_model.modules())
    beside = [module for module in model.modules() if module not in within]
    heads = [module for module in beside if isinstance(module, nn.Linear) and module.out_features == len(order)]
    if not heads:
        raise AlignAttnError(
            f"{name}: its classes stand in another order than the task's, and it has no linear head whose outputs "
            "could be put in order: give a model without a head"
        )
    index = torch.tensor(order, device=heads[-1].weight.device)
    chains = [module.chain for module in beside if isinstance(module, LinearChainCrf)]
    with torch.no_grad():
        for scores in (scores for module in (heads[-1], *chains) for scores in module.parameters()):
            scores.copy_(scores[index])
        for chain in chains:
            chain.transitions.copy_(chain.transitions[:, index])
