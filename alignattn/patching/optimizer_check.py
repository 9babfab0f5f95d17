"""Find out whose parameters an optimizer steps, and warn if an alignment's own networks are not trained."""

import gc
import warnings
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from alignattn.attention.attend import CHILD_NAME

_WAITING: weakref.WeakSet[Any] = weakref.WeakSet()
"""Collectors whose loss was taken, and whose model no optimizer has stepped since."""

_SEEN: weakref.WeakSet[Any] = weakref.WeakSet()
"""Collectors whose networks were checked."""

_TRAINED: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Optimizer, tuple[list[tuple[int, int]], bool]]]
_TRAINED = weakref.WeakKeyDictionary()
"""By collector, whether each optimizer has parameters of its model, and the groups for which that was found."""

_OTHERS: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Optimizer, tuple[bool, int]]]
_OTHERS = weakref.WeakKeyDictionary()
"""By collector, whether each optimizer without parameters of its model is of another model, and how many optimizers had
stepped when that was found."""

_STEPPED: weakref.WeakSet[Optimizer] = weakref.WeakSet()
"""Optimizers that have stepped."""


def _trains(optimizer: Any, collector: Any, model: nn.Module) -> bool:
    """Tell whether an optimizer has parameters of a collector's model."""
    by_group = [fields["params"] for fields in getattr(optimizer, "param_groups", ())]
    groups = [(id(parameters[0]) if parameters else 0, len(parameters)) for parameters in by_group]
    checked = _TRAINED.setdefault(collector, weakref.WeakKeyDictionary())
    of_groups, is_of_model = checked.get(optimizer, (None, False))
    # A step has no time for a walk over all parameters.
    if of_groups != groups:
        is_of_model = not set(map(id, model.parameters())).isdisjoint(_parameters_of(optimizer))
        checked[optimizer] = groups, is_of_model
    return is_of_model


def is_of_another_model(optimizer: Optimizer, collector: Any) -> bool:
    """Tell whether an optimizer has no parameters of a collector's model while another optimizer has some.

    If no other optimizer has any, this one may hold copies, as DeepSpeed's does, or train layers on top of the model.
    """
    model = collector.owner
    has_begun = collector.newest.previous is not None or bool(collector._taken) or collector.saw_no_gradient
    if torch.compiler.is_compiling() or model is None or not has_begun:
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
        problems = (("frozen", frozen, "set requires_grad on them and "), ("in no optimizer", lost, ""))
        for problem, names, advice in problems:
            if names:
                warnings.warn(
                    f"the alignment of this {type(model).__name__} does not learn: {len(names)} of the {len(networks)} "
                    f"parameters of its own networks are {problem} (such as {CHILD_NAME}.alignments.{names[0]}): "
                    f"{advice}build the optimizer after the patch, from alignattn.parameter_groups(model, "
                    "learning_rate=…)",
                    stacklevel=2,
                )


def _parameters_of(optimizer: Any) -> Iterator[int]:
    for group in getattr(optimizer, "param_groups", ()):
        yield from map(id, group["params"])


def _all_optimizers() -> Iterator[Any]:
    # type(), not isinstance: the latter may call code of the object.
    return (candidate for candidate in gc.get_objects() if issubclass(type(candidate), Optimizer))
