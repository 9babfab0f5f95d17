"""Find out whose parameters an optimizer steps, and warn if an alignment's own networks are not trained."""

import gc
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from alignattn.attention.attend import CHILD_NAME

_WAITING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Collectors whose loss was taken, and whose model no optimizer has stepped since."""

_SEEN: weakref.WeakSet[Any] = weakref.WeakSet()
"""Collectors whose networks were checked."""

_PLACES: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Optimizer, "_Place"]] = weakref.WeakKeyDictionary()
"""By collector, where each optimizer has a parameter of its model."""

_OTHERS: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Optimizer, tuple[bool, int]]]
_OTHERS = weakref.WeakKeyDictionary()
"""By collector, whether each optimizer without parameters of its model is of another model, and how many optimizers had
stepped when that was found."""

_STEPPED: weakref.WeakSet[Optimizer] = weakref.WeakSet()
"""Optimizers that have stepped."""


@dataclass(frozen=True)
class _Place:
    """Where an optimizer has a parameter of a model.

    Attributes:
        group: its group in the optimizer.
        index: its index in the group.
        module: returns its module.
        name: its name there; empty if the optimizer has no parameter of the model.
        groups: first parameter and size of each of the optimizer's groups.
    """

    group: int
    index: int
    module: Callable[[], nn.Module | None]
    name: str
    groups: list[tuple[int, int]]

    def is_current(self, optimizer: Optimizer) -> bool:
        """Tell whether it still describes the optimizer and the model."""
        if not self.name:
            return self.groups == _groups_of(optimizer)
        module, groups = self.module(), optimizer.param_groups
        if module is None or self.group >= len(groups) or self.index >= len(groups[self.group]["params"]):
            return False
        return groups[self.group]["params"][self.index] is module._parameters.get(self.name)


def _trains(optimizer: Optimizer, collector: Any, model: nn.Module) -> bool:
    """Tell whether an optimizer has parameters of a collector's model. Only the first step walks over them."""
    places = _PLACES.setdefault(collector, weakref.WeakKeyDictionary())
    place = places.get(optimizer)
    if place is None or not place.is_current(optimizer):
        own = {
            id(parameter): (module, name)
            for module in model.modules()
            for name, parameter in module._parameters.items()
        }
        shared = (
            _Place(group, index, weakref.ref(own[id(parameter)][0]), own[id(parameter)][1], [])
            for group, fields in enumerate(getattr(optimizer, "param_groups", ()))
            for index, parameter in enumerate(fields["params"])
            if id(parameter) in own
        )
        place = places[optimizer] = next(shared, _Place(0, 0, lambda: None, "", _groups_of(optimizer)))
    return bool(place.name)


def _groups_of(optimizer: Any) -> list[tuple[int, int]]:
    groups = [group["params"] for group in getattr(optimizer, "param_groups", ())]
    return [(id(parameters[0]) if parameters else 0, len(parameters)) for parameters in groups]


def is_of_another_model(optimizer: Optimizer, collector: Any) -> bool:
    """Tell whether an optimizer has no parameters of a collector's model while another optimizer has some.

    If no other optimizer has any, this one may hold copies, as DeepSpeed's does, or train layers on top of the model.
    """
    model = collector.owner
    if torch.compiler.is_compiling() or model is None or not collector.is_in_step:
        return False
    _STEPPED.add(optimizer)
    if _trains(optimizer, collector, model):
        return False
    others = _OTHERS.setdefault(collector, weakref.WeakKeyDictionary())
    is_other, stepped = others.get(optimizer, (False, 0))
    # The search examines all objects of the process: only a new optimizer may change what it finds.
    if not is_other and stepped != len(_STEPPED):
        own = set(map(id, model.parameters()))
        is_other = any(not own.isdisjoint(_parameters_of(other)) for other in _all_optimizers())
        others[optimizer] = is_other, len(_STEPPED)
    return is_other


def warn_of_untrained_networks(optimizer: Optimizer, collectors: Iterable[Any]) -> None:
    """Warn once for each model whose alignment loss is minimised while the alignment's own networks are not trained.

    They are not trained if they are frozen, or if they get a gradient but are in no optimizer. A model is skipped if
    the optimizer has none of its parameters (DeepSpeed's has copies).

    Args:
        optimizer: the optimizer after its step, before it zeroes the gradients.
        collectors: the `alignattn.patching.collector.Collector`s of all models.
    """
    if torch.compiler.is_compiling():
        return
    _WAITING.update(collector for collector in collectors if collector._taken and collector not in _SEEN)
    for collector in list(_WAITING):
        model = collector.owner
        if model is None or not _trains(optimizer, collector, model):
            continue
        _WAITING.discard(collector)
        _SEEN.add(collector)
        networks = dict(getattr(model, CHILD_NAME).alignments.named_parameters())
        frozen = [name for name, own in networks.items() if not own.requires_grad]
        stepped = set(_parameters_of(optimizer))
        lost = [name for name, own in networks.items() if own.grad is not None and id(own) not in stepped]
        if lost:
            # They may belong to another optimizer, which steps later or less often.
            elsewhere = {held for other in _all_optimizers() for held in _parameters_of(other)}
            lost = [name for name in lost if id(networks[name]) not in elsewhere]
        _warn(model, len(networks), "frozen", frozen, "set requires_grad on them and ")
        _warn(model, len(networks), "in no optimizer", lost, "")


def _warn(model: nn.Module, count: int, problem: str, names: list[str], before: str) -> None:
    if names:
        warnings.warn(
            f"the alignment of this {type(model).__name__} does not learn: {len(names)} of the {count} parameters of "
            f"its own networks are {problem} (such as {CHILD_NAME}.alignments.{names[0]}): {before}build the optimizer "
            "after the patch, from alignattn.parameter_groups(model, learning_rate=…)",
            stacklevel=2,
        )


def _parameters_of(optimizer: Any) -> Iterator[int]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from map(id, group["params"])


def _all_optimizers() -> Iterator[Any]:
    # type(), not isinstance: the latter may call code of the object.
    return (one for one in gc.get_objects() if issubclass(type(one), Optimizer))
