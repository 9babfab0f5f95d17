"""The optimizer's parameter groups: the parameters that a patch adds have their own learning rates."""

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from transformers.trainer_pt_utils import get_parameter_names

from alignattn.patching import alignment_parameters, function_parameters
from alignattn.training.options import ALIGNMENT_LEARNING_RATE


def parameter_groups(
    model: nn.Module,
    *,
    learning_rate: float,
    alignment_learning_rate: float = ALIGNMENT_LEARNING_RATE,
    slot_learning_rate: float | None = None,
    weight_decay: float = 0.0,
) -> list[dict[str, Any]]:
    """Return the parameter groups of a patched model for an optimizer, as in `AlignmentTrainer`.

        optimizer = torch.optim.AdamW(alignattn.parameter_groups(model, learning_rate=2e-5))

    Args:
        model: a patched model, or a module that contains one.
        learning_rate: learning rate of the model.
        alignment_learning_rate: learning rate of the alignment's own networks.
        slot_learning_rate: learning rate of the parameters that scores, normalizers and values add; the model's if
            None.
        weight_decay: weight decay; as in `transformers.Trainer`, biases and normalisation layers have none, nor have
            the alignment's networks.
    """
    without_decay = [r"bias", r"layernorm", r"rmsnorm", r"(?:^|\.)norm(?:$|\.)", r"_norm(?:$|\.)"]  # as in `Trainer`
    decaying = set(get_parameter_names(model, [nn.LayerNorm], without_decay))
    groups: list[dict[str, Any]] = [
        {
            "params": [
                parameter
                for name, parameter in model.named_parameters()
                if parameter.requires_grad and (name in decaying) == decays
            ],
            "lr": learning_rate,
            "weight_decay": weight_decay if decays else 0.0,
        }
        for decays in (True, False)
    ]
    groups += take_own_groups(groups, model, alignment_learning_rate, slot_learning_rate)
    return [group for group in groups if group["params"]]


def take_own_groups(
    groups: list[dict[str, Any]], model: nn.Module, alignment_learning_rate: float, slot_learning_rate: float | None
) -> list[dict[str, Any]]:
    """Remove the parameters that have their own learning rates from groups, in place, and return their groups.

    The group of the alignment, if there is one, is the last.
    """
    own_groups = []
    if slot_learning_rate is not None:
        of_slots = dict.fromkeys(map(id, function_parameters(model)))
        own_groups = [
            {"params": own, "lr": slot_learning_rate, "weight_decay": group["weight_decay"]}
            for group in groups
            if (own := _take(group, of_slots))
        ]
    of_alignment = dict.fromkeys(map(id, alignment_parameters(model)))
    aligning = [parameter for group in groups for parameter in _take(group, of_alignment)]
    if aligning:
        in_order = {id(parameter): parameter for parameter in aligning}
        aligning = [in_order[own] for own in of_alignment if own in in_order]
        own_groups.append({"params": aligning, "lr": alignment_learning_rate, "weight_decay": 0.0})
    return own_groups


def _take(group: dict[str, Any], ids: dict[int, None]) -> list[nn.Parameter]:
    taken = [parameter for parameter in group["params"] if id(parameter) in ids]
    group["params"] = [parameter for parameter in group["params"] if id(parameter) not in ids]
    return taken


def add_l2(optimizer: torch.optim.Optimizer, penalty: float, decaying: Collection[str], model: nn.Module) -> None:
    """Make an optimizer add the gradient of an L2 penalty, ½ · penalty · |w|², on a model's weights in each step.

    `torch.optim.Adam` calls it weight decay (Kingma & Ba 2015); AdamW decouples it.

    Args:
        optimizer: the model's optimizer.
        penalty: strength of the penalty; 0 for none.
        decaying: names of the penalised parameters; those of the alignment's own networks are left out.
        model: the trained model.
    """
    if penalty == 0:
        return
    own = dict.fromkeys(map(id, alignment_parameters(model)))
    held = [values for name, values in model.named_parameters() if name in decaying and id(values) not in own]

    def add(optimizer: torch.optim.Optimizer, *_: Any) -> None:
        # A fused optimizer receives gradients that a GradScaler scaled, and unscales them itself.
        scale = getattr(optimizer, "grad_scale", None)
        for weights in held:
            if weights.grad is not None:
                decay = weights.detach() if scale is None else weights.detach() * scale
                weights.grad.add_(decay, alpha=penalty)

    optimizer.register_step_pre_hook(add)
