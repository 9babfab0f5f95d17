"""How the projections of queries and keys hand their outputs to the alignment loss, whatever stands in their places.

A plain `torch.nn.Linear` projects once and returns its result twice. What an adapter, a hook of accelerate or a
quantised layer makes of a projection is known to its own forward alone: for scope `projections` that is called a second
time on the input without its history, with the same dropout. Within an adapter the plain layer is not computed again.

`torch.compile` breaks the graph where the state of the random generators is read: once a projection that may draw.
Plain layers, and LoRA without dropout, are known to draw nothing: a model with them stays one graph.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.module import register_module_module_registration_hook
from torch.utils.checkpoint import get_device_states, set_device_states

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import BASIS, GradientScope
from alignattn.attention.projection import forked_linear
from alignattn.patching.recording import Collector
from alignattn.support.errors import AlignAttnError

TAP = "alignattn_tap"
"""Attribute of a projection that is tapped from without."""


QUIET = (nn.Linear, nn.Identity, nn.ModuleDict, nn.ParameterDict)
"""Modules that draw no random numbers."""

LORA_LAYERS = "peft.tuners.lora.layer"
"""Whose layers draw none but by a dropout in them, unless they are of a variant."""


@dataclass(frozen=True)
class ProjectionTap:
    """What a tapped projection needs to know of the attention that it serves."""

    collector: Collector
    role: str
    gradient_scope: GradientScope


class TappedLinear(nn.Linear):
    """A projection that also hands its output to the alignment loss in training, or while `collect` records.

    A patch changes the class of a `torch.nn.Linear` in place, so parameters and state-dict keys stay as they are.
    """

    tap: ProjectionTap | None

    def forward(self, input: Tensor) -> Tensor:
        """Project `[..., in_features]` to `[..., out_features]`."""
        # A hook that others put around this forward outlives `unpatch`.
        tap = vars(self).get("tap")
        if tap is None or not tap.collector.is_tapped(self.training):
            return F.linear(input, self.weight, self.bias)
        around = tap.collector.around
        if around is not None and around.is_repeated:
            projected: Tensor | None = around.projected.get(id(self)) if input is around.blocked_input else None
            return F.linear(input, self.weight, self.bias) if projected is None else projected
        if tap.gradient_scope == BASIS:
            output = F.linear(input, self.weight, self.bias)
            aligned = output.detach()
        else:
            reaches_input = tap.gradient_scope == "all"
            output, aligned = forked_linear(input, self.weight, self.bias, reaches_input=reaches_input)
        if around is None:
            tap.collector.keep(tap.role, aligned)
        elif input is around.input:
            around.projected[id(self)] = aligned
        return output


@dataclass
class AroundProjection:
    """The call under way of a module that stands in the place of a projection, and what is in it.

    Attributes:
        module: that stands there.
        input: `[..., in_features]`.
        random_state: of the generators, before the call; None if it draws nothing.
        projected: by the identity of each plain layer in it that took the same input, its output for the alignment.
        blocked_input: `input` without its history.
        is_repeated: whether the second call is under way.
    """

    module: nn.Module
    input: Tensor
    random_state: tuple[Tensor, list[int], list[Tensor]] | None
    projected: dict[int, Tensor] = field(default_factory=dict)
    blocked_input: Tensor | None = None
    is_repeated: bool = False


class OutputTap:
    """Hooks of a module that stands in the place of a projection."""

    def __init__(self, tap: ProjectionTap) -> None:
        self.tap = tap

    def before(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Note what a second call needs, unless another such module is around this one."""
        collector = self.tap.collector
        if not collector.is_tapped(module.training):
            return
        around = collector.around
        if around is None or around.module is module or all(part is not module for part in around.module.modules()):
            state = (torch.get_rng_state(), *get_device_states(args[0])) if _may_draw(module) else None
            collector.surround(AroundProjection(module, args[0], state))

    def after(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Tensor) -> None:
        """Hand the output to the alignment loss, with the gradient that the scope wants."""
        collector, around = self.tap.collector, self.tap.collector.around
        if around is None or around.module is not module or around.is_repeated:
            return
        if not torch.is_grad_enabled() or self.tap.gradient_scope == "all":
            aligned = output
        elif not any(parameter.requires_grad for parameter in module.parameters()):
            aligned = output.detach()
        else:
            around.is_repeated, around.blocked_input = True, around.input.detach()
            with _random_state(around):
                aligned = module.forward(around.blocked_input, *args[1:], **kwargs)
        collector.surround(None)
        collector.keep(self.tap.role, aligned)


def _may_draw(module: nn.Module) -> bool:
    """Tell whether a forward of a module may draw random numbers: of what is not known to draw none, it may."""
    return any(not _is_quiet(part) for part in module.modules())


def _is_quiet(module: nn.Module) -> bool:
    if isinstance(module, nn.Dropout):
        return not module.training or module.p == 0
    if type(module) in (TappedLinear, *QUIET):
        return "forward" not in vars(module)
    # By name: peft may not be installed, and takes half a second to import.
    return type(module).__module__ == LORA_LAYERS and not getattr(module, "lora_variant", None)


@contextmanager
def _random_state(around: AroundProjection) -> Iterator[None]:
    """Draw within as before the call, and go on behind it as if nothing had been drawn."""
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


def add_tap(projection: nn.Module, tap: ProjectionTap) -> None:
    """Tap what projects to queries or keys, in place, unless it is tapped already."""
    if isinstance(projection, TappedLinear) or TAP in vars(projection):
        return
    if type(projection) is nn.Linear and "forward" not in vars(projection):
        projection.__class__ = TappedLinear
        object.__setattr__(projection, "tap", tap)
        return
    if tap.gradient_scope == BASIS:
        raise AlignAttnError(
            f"gradient_scope 'basis' is folded into plain projections, and the {tap.role} has a "
            f"{type(projection).__name__} around or in the place of one: leave adapters out, or merge them first"
        )
    hooks = OutputTap(tap)
    handles = (
        projection.register_forward_pre_hook(hooks.before),
        projection.register_forward_hook(hooks.after, with_kwargs=True),
    )
    object.__setattr__(projection, TAP, handles)


def remove_tap(module: nn.Module) -> None:
    """Undo `add_tap`, if it was done."""
    if isinstance(module, TappedLinear):
        del module.tap
        object.__setattr__(module, "__class__", nn.Linear)
    for handle in vars(module).pop(TAP, ()):
        handle.remove()


def _tap_replacement(parent: nn.Module, name: str, child: nn.Module | None) -> None:
    """Tap what takes the place of a tapped projection: an adapter that is added, or the copy that one trains."""
    slots: Any = parent._modules.get(CHILD_NAME)
    role = getattr(slots, "roles", {}).get(name)
    if role is not None and child is not None:
        add_tap(child, ProjectionTap(slots.collector, role, slots.gradient_scope))


register_module_module_registration_hook(_tap_replacement)
