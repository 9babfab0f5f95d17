"""FSDP2 (`torch.distributed.fsdp.fully_shard`): what a patch adds to a model is sharded in groups of its own."""

from typing import Any, TypeVar

from torch import nn

from alignattn.attention.alignment.base import Alignment
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError

M = TypeVar("M", bound=nn.Module)


def shard_slots(model: M, **options: Any) -> M:
    """Shard the parameters of a patch by FSDP2, in place, before the layers and the model are sharded.

        alignattn.shard_slots(model, mesh=mesh)
        for layer in model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    FSDP2 refuses a group of parameters of several types. Those of a patch are in float32; in a model that was loaded in
    half precision they need groups of their own, which this makes. In a model in float32 they may, and need not.

    Args:
        model: patched, or around a model that is; nothing of it that holds slots is sharded yet.
        **options: of `fully_shard`, such as `mesh`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the slots are sharded already, with the layers that they are in.
    """
    # Here, for they take a second, and not every build of torch has them.
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor

    if any(isinstance(own, DTensor) for own in [*alignment_parameters(model), *function_parameters(model)]):
        raise AlignAttnError(
            f"the slots of this {type(model).__name__} are sharded already: call alignattn.shard_slots before "
            "fully_shard"
        )
    for module in list(model.modules()):
        if isinstance(module, LayerSlots | Alignment) and any(True for _ in module.parameters()):
            fully_shard(module, **options)
        if isinstance(module, Alignment):
            register_fsdp_forward_method(module, "of_calls")
    return model
