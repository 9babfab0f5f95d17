"""Hooks by which the projections of queries and keys hand their outputs to the alignment loss.

A plain `torch.nn.Linear` computes its output once; the hook returns it twice, to the attention and to the alignment
loss (`forked`). The paper lets that loss optimise "the query and key projection matrices" (Zhang et al. 2021, section
2.3.1): its gradient must reach a projection's weight and bias but not its input, while the task's gradient passes as
usual. An adapter, a quantised layer or a layer under accelerate's hooks computes something that only its forward knows.
For scope `projections` the hook calls that forward again, on the detached input and with the same dropout. The plain
layer within an adapter is not computed again.

The hooks precede those of others, which may change what a module returns.

`torch.compile` breaks the graph where the state of the random generators is read: once for each projection that may
draw random numbers. Plain layers and LoRA without dropout draw none, so a model with them stays one graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import get_device_states, set_device_states

from alignattn.attention.config import GradientScope
from alignattn.patching.collector import Collector, recording_hook, remove_hooks
from alignattn.patching.projections import Heads
from alignattn.utils.errors import AlignAttnError


class _Forked(torch.autograd.Function):
    """Two outputs: the weight's gradient comes from the sum of both gradients, the input's from the first alone."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, input: Tensor, weight: Tensor, _bias: Tensor | None) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(input, weight)
        ctx.set_materialize_grads(False)
        return output.view_as(output), output.view_as(output)

    @staticmethod
    def backward(
        ctx: Any, attended: Tensor | None, aligned: Tensor | None
    ) -> tuple[None, Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        _, reaches_input, reaches_weight, reaches_bias = ctx.needs_input_grad
        grad_input = grad_weight = grad_bias = both = None
        # As rows before anything is computed: the gradient of an attention is often not contiguous.
        if attended is not None:
            both = attended.flatten(0, -2)
            if reaches_input:
                # Under autocast the gradients have its type; torch casts what is returned to the types of the inputs.
                grad_input = (both @ weight.to(both.dtype)).view(input.shape)
        if aligned is not None:
            aligned = aligned.flatten(0, -2)
            both = aligned if both is None else both + aligned
        if both is not None and reaches_weight:
            grad_weight = both.T @ input.to(both.dtype).flatten(0, -2)
        if both is not None and reaches_bias:
            grad_bias = both.sum(dim=0)
        return None, grad_input, grad_weight, grad_bias


def forked(output: Tensor, input: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the output of a linear projection twice: for the attention, and for the alignment loss.

    Args:
        output: `[..., out_features]`, the output of the projection.
        input: `[..., in_features]`.
        weight: `[out_features, in_features]`.
        bias: `[out_features]` or None.

    Returns:
        Two equal tensors, `[..., out_features]`, for the attention and for the alignment loss. The gradient of the
        second reaches `weight` and `bias`, but not `input`. It has none if gradients are off or neither is trained.
    """
    if not (torch.is_grad_enabled() and (weight.requires_grad or (bias is not None and bias.requires_grad))):
        return output, output.detach()
    outputs: tuple[Tensor, Tensor] = _Forked.apply(output.detach(), input, weight, bias)  # type: ignore[no-untyped-call]
    return outputs


@dataclass(eq=False)
class ProjectionTap:
    """The hooks of a projection, and what they need to know of its attention.

    Attributes:
        collector: collector of the model.
        role: role of the projection, `query`, `key` or `fused`.
        gradient_scope: gradient scope of the alignment.
        keeps_first: whether only its first call in an attention call counts. DeBERTa calls it again on embeddings of
            positions.
    """

    collector: Collector
    role: str
    gradient_scope: GradientScope
    keeps_first: bool

    @property
    def has_kept(self) -> bool:
        """Whether a further call of the projection does not count."""
        return self.keeps_first and self.role in self.collector.projected


class LinearTap(ProjectionTap):
    """Hooks of a plain `torch.nn.Linear`, alone or within an adapter."""

    @recording_hook
    def before(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor] | None:
        """Pass an empty input if the first call of an adapter already computed this output."""
        around = self.collector.around
        is_known = around is not None and around.is_repeated and id(module) in around.projected
        return (args[0][:0],) if is_known and args[0] is around.blocked_input else None

    @recording_hook
    def after(self, module: nn.Linear, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """Return the output `[..., out_features]` to the attention, and hand it to the alignment loss."""
        collector = self.collector
        if not collector.is_recording():
            return output
        around, input = collector.around, args[0]
        if around is None:
            if self.has_kept:
                return output
        elif around.is_repeated:
            # An empty input comes from `before`.
            first: Tensor = around.projected.get(id(module), output) if len(input) == 0 else output
            return first
        elif input is not around.input:
            return output
        if self.gradient_scope == "all":
            aligned = output
        elif type(module) is not nn.Linear or "forward" in vars(module):
            # After the patch, something such as accelerate replaced the forward of the layer, or torch the layer:
            # `prepare_qat` gives its hooks to a layer whose output is no product with its weight.
            aligned = module.forward(input.detach())
        else:
            output, aligned = forked(output, input, module.weight, module.bias)
        if around is None:
            return collector.keep(self.role, aligned, output)
        around.projected[id(module)] = aligned
        return output


@dataclass
class AroundProjection:
    """The current call of a module that replaces a projection, and the calls inside it.

    Attributes:
        module: the replacing module.
        input: `[..., in_features]`.
        random_state: state of the generators before the call; None if the module draws no random numbers.
        projected: outputs for the alignment of the plain layers inside that received the same input, by their `id`.
        blocked_input: `input`, detached.
        is_repeated: whether the second call is running.
    """

    module: nn.Module
    input: Tensor
    random_state: tuple[Tensor, list[int], list[Tensor]] | None
    projected: dict[int, Tensor] = field(default_factory=dict)
    blocked_input: Tensor | None = None
    is_repeated: bool = False


class OutputTap(ProjectionTap):
    """Hooks of a module that replaces a projection."""

    @recording_hook
    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what a second call needs, unless this module is inside another such module."""
        collector = self.collector
        if not collector.is_recording() or self.has_kept:
            return
        around = collector.around
        if around is None or around.module is module or all(part is not module for part in around.module.modules()):
            is_quiet = all(map(_draws_nothing, module.modules()))
            state = None if is_quiet else (torch.get_rng_state(), *get_device_states(args[0]))
            collector.assign("around", AroundProjection(module, args[0], state))

    @recording_hook
    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        """Return the output to the attention, and hand it to the alignment loss with the gradient of its scope."""
        collector, around = self.collector, self.collector.around
        if around is None or around.module is not module or around.is_repeated:
            return output
        if not isinstance(output, Tensor):
            raise AlignAttnError(
                f"a {type(module).__name__} in the place of the {self.role} projection returns no single tensor, "
                "so an alignment cannot read it"
            )
        if not torch.is_grad_enabled() or self.gradient_scope == "all":
            aligned = output
        elif not any(parameter.requires_grad for parameter in module.parameters()):
            aligned = output.detach()
        else:
            around.is_repeated, around.blocked_input = True, around.input.detach()
            with _random_state(around):
                aligned = module.forward(around.blocked_input, *args[1:], **kwargs)
        collector.assign("around", None)
        return collector.keep(self.role, aligned, output)


@dataclass(eq=False)
class NormTap(ProjectionTap):
    """A hook of a module that normalises the output of a projection before the attention rotates it.

    Attributes:
        heads: the heads of the attention module.
    """

    heads: Heads

    @recording_hook
    def after(self, module: nn.Module, args: tuple[Tensor, ...], _output: Tensor) -> None:
        """Normalise what the projection handed to the alignment loss: each head, or all heads as one."""
        collector = self.collector
        if collector.is_recording() and self.role in collector.projected:
            projected = self.heads.without_gates(collector.projected[self.role])
            normed = module.forward(projected.unflatten(-1, (-1, args[0].shape[-1]))).flatten(-2)
            collector.assign("projected", {**collector.projected, self.role: normed})


def _draws_nothing(module: nn.Module) -> bool:
    """Tell whether a module itself draws no random numbers; False if that is unknown."""
    if isinstance(module, nn.Dropout):
        return not module.training or module.p == 0
    if type(module) in (nn.Linear, nn.Identity, nn.ModuleDict, nn.ParameterDict):
        return "forward" not in vars(module)
    # LoRA draws in its dropout alone, unless it is of a variant. Compared by name: peft may not be installed, and takes
    # half a second to import.
    return type(module).__module__ == "peft.tuners.lora.layer" and not getattr(module, "lora_variant", None)


@contextmanager
def _random_state(around: AroundProjection) -> Iterator[None]:
    """Restore the random state from before the call within this context, and the present state after it."""
    if around.random_state is None:
        yield
        return
    on_host, devices, on_devices = around.random_state
    device_type = around.input.device.type
    with torch.random.fork_rng(devices, device_type="cuda" if device_type == "cpu" else device_type):
        torch.set_rng_state(on_host)
        if devices:
            set_device_states(devices, on_devices, device_type=device_type)
        yield


def add_tap(projection: nn.Module, *of_attention: Any) -> None:
    """Tap a projection of queries or keys by hooks; the other arguments are those of `ProjectionTap`."""
    # An adapter may hold a layer that was tapped before.
    remove_hooks(projection)
    if _is_plain(projection):
        projection.register_forward_hook(LinearTap(*of_attention).after, prepend=True)
        return
    around = OutputTap(*of_attention)
    projection.register_forward_pre_hook(around.before)
    projection.register_forward_hook(around.after, with_kwargs=True, prepend=True)
    inside: Any = projection
    while isinstance(getattr(inside, "base_layer", None), nn.Module):
        inside = inside.base_layer
    if inside is not projection and _is_plain(inside) and around.gradient_scope != "all":
        within = LinearTap(*of_attention)
        inside.register_forward_pre_hook(within.before)
        inside.register_forward_hook(within.after, prepend=True)


def _is_plain(projection: nn.Module) -> bool:
    return type(projection) is nn.Linear and "forward" not in vars(projection)
