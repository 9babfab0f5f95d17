"""Training with several processes: a patch's parameters under FSDP2 and DistributedDataParallel."""

from collections.abc import MutableMapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from alignattn.attention.alignment.base import Alignment
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError

M = TypeVar("M", bound=nn.Module)


def shard_slots(model: M, **options: Any) -> M:
    """Shard the parameters of a patch with FSDP2, in place, before the layers and the model are sharded.

        alignattn.shard_slots(model, mesh=mesh)
        for layer in model.bert.encoder.layer:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)

    FSDP2 refuses a group with parameters of several types. A patch's parameters are in float32, so they need separate
    groups in a model that was loaded in half precision. In a float32 model the call is optional.

    Args:
        model: a patched model, or a module that contains one; no module that holds slots is sharded yet.
        **options: keyword arguments of `fully_shard`, such as `mesh`.

    Returns:
        `model` itself.

    Raises:
        AlignAttnError: if the slots are already sharded with their layers.
    """
    # Imported here: they take a second, and some builds of torch lack them.
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method
    from torch.distributed.tensor import DTensor

    if any(isinstance(own, DTensor) for own in [*alignment_parameters(model), *function_parameters(model)]):
        raise AlignAttnError(
            f"the slots of this {type(model).__name__} are already sharded: call alignattn.shard_slots before "
            "fully_shard"
        )
    for module in list(model.modules()):
        if isinstance(module, LayerSlots | Alignment) and any(True for _ in module.parameters()):
            fully_shard(module, **options)
        if isinstance(module, Alignment):
            register_fsdp_forward_method(module, "of_calls")
    return model


class _Reach(torch.autograd.Function):
    """The identity, which also connects parameters to the graph without a gradient."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, *parameters: Tensor) -> Tensor:
        ctx.number = len(parameters)
        return output.view_as(output)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return gradient, *[None] * ctx.number


def reach_alignment_from_output(model: nn.Module) -> RemovableHandle:
    """Connect the alignment's own networks to a model's output, so that DistributedDataParallel finds them.

    With `find_unused_parameters=True` it marks parameters that the output does not reach as ready, and raises "marked
    ready only once" when the alignment loss, which is not part of the output, gives them a gradient.

    Returns:
        The handle by which the hook is removed after training.
    """

    def reach(module: nn.Module, _inputs: Any, output: Any) -> Any:
        if not module.training or not torch.is_grad_enabled():
            return output
        parameters = alignment_parameters(module)

        def reaching(value: Tensor) -> Tensor:
            return _Reach.apply(value, *parameters)  # type: ignore[no-untyped-call]

        # The first tensor with a gradient is enough.
        if isinstance(output, Tensor):
            return reaching(output)
        if not isinstance(output, MutableMapping | tuple):
            return output
        items: Any = enumerate(output) if isinstance(output, tuple) else output.items()
        places = (place for place, value in items if isinstance(value, Tensor) and value.requires_grad)
        if (first := next(places, None)) is None:
            return output
        if isinstance(output, tuple):
            return *output[:first], reaching(output[first]), *output[first + 1 :]
        output[first] = reaching(output[first])
        return output

    return model.register_forward_hook(reach)
