"""The checks of `model_types.py`: each compares a small patched model with the model before the patch."""

import copy
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from input_shapes import Inputs
from observed_attention import contradiction, observing
from small_models import Target, UnbuildableError, built, line, model_classes, parts, run, tensors_of
from tiny_configs import config_class_of
from torch import Tensor
from transformers import PreTrainedModel

import alignattn
from alignattn.utils.errors import AlignAttnError

ATTENTIONS = ("aa-ct", "qvi", "entmax15")
IMPLEMENTATIONS = ("sdpa", "eager")
EQUAL, RUNS, REFUSED, LATE, DIFFERS, TRACEBACK = "equal", "runs", "refused", "refused late", "differs", "traceback"
CONTRADICTED = "contradicted"
"""Refused for a false reason."""
BUILT, NO_MODEL, NOT_BUILDABLE = "built", "no model", "not buildable"


@dataclass
class Finding:
    """The outcome of one attention for one model, and the reason."""

    target: str
    implementation: str
    attention: str
    outcome: str
    reason: str = ""


@dataclass
class TypeReport:
    """The results of one model type.

    Attributes:
        status: whether a small model of the type could be built and run.
        reason: why not.
        level: how much its config was shrunk.
        findings: the findings for each model, implementation and attention.
        unbuilt: further models of the type that could not be built or run, and why.
    """

    model_type: str
    status: str
    reason: str = ""
    level: str = ""
    findings: list[Finding] = field(default_factory=list)
    unbuilt: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as the content of a line of the results."""
        return asdict(self)


def check_type(model_type: str, overrides: Mapping[str, Any], attentions: tuple[str, ...] = ATTENTIONS) -> TypeReport:
    """Build small models of a type, and patch each with each attention."""
    config_class = config_class_of(model_type)
    classes, why = model_classes(config_class)
    if not classes:
        return TypeReport(model_type, NOT_BUILDABLE if why else NO_MODEL, why or "no model class takes this config")
    report = TypeReport(model_type, NOT_BUILDABLE)
    errors: dict[str, str] = {}
    for is_first, model_class in classes:
        if report.status == BUILT and is_first:
            continue
        try:
            target, level = built(model_class, config_class, overrides)
        except UnbuildableError as error:
            errors[model_class.__name__] = str(error)
            continue
        if is_first:
            report.status, report.level = BUILT, level.name.lower()
        for part in [target, *parts(target, errors)]:
            report.findings += check_target(part, attentions)
    if report.status != BUILT:
        report.reason = next(iter(errors.values()))
    report.unbuilt = errors
    return report


class Plain:
    """A model before any patch, and its outputs, computed on first use."""

    def __init__(self, model: PreTrainedModel, inputs: list[Inputs]) -> None:
        self.model = model
        self.inputs = inputs

    @cached_property
    def outputs(self) -> list[dict[str, Tensor]]:
        """Its outputs for each of the inputs; empty if a second run differs."""
        before = [run(self.model, inputs) for inputs in self.inputs]
        again = [run(self.model, inputs) for inputs in self.inputs]
        return [] if any(_difference(*pair) for pair in zip(before, again, strict=True)) else before

    @cached_property
    def trained_inputs(self) -> list[Inputs]:
        """The inputs with which a training step succeeds."""
        return [inputs for inputs in self.inputs if self._can_train(inputs)]

    @cached_property
    def calls(self) -> Counter[str]:
        """Its calls of attention, counted by kind."""
        with observing() as counts:
            for inputs in self.inputs:
                run(self.model, inputs)
        return counts

    def _can_train(self, inputs: Inputs) -> bool:
        try:
            return not wrong_step(copy.deepcopy(self.model), inputs, is_aligned=False)
        except Exception:
            return False


def check_target(target: Target, attentions: tuple[str, ...]) -> list[Finding]:
    """Patch a model with each attention, for each implementation that it supports."""
    findings: list[Finding] = []
    for implementation in IMPLEMENTATIONS:
        model = copy.deepcopy(target.model)
        if not _takes(model, implementation, target.inputs[0]):
            continue
        plain = Plain(model, target.inputs)
        findings += [
            Finding(target.name, implementation, attention, *check_attention(plain, attention))
            for attention in attentions
        ]
    if not findings:
        plain = Plain(target.model, target.inputs)
        findings = [
            Finding(target.name, "own", attention, *check_attention(plain, attention)) for attention in attentions
        ]
    return findings


def _takes(model: PreTrainedModel, implementation: str, inputs: Inputs) -> bool:
    """Set a model's attention implementation, and return whether the model runs with it."""
    try:
        model.set_attn_implementation(implementation)
        run(model, inputs)
    except Exception:
        return False
    return bool(model.config._attn_implementation == implementation)


def check_attention(plain: Plain, attention: str) -> tuple[str, str]:
    """Return the outcome of a patch, and the reason."""
    stage = "patch"
    is_alignment = attention.startswith("aa-")
    try:
        model = copy.deepcopy(plain.model)
        torch.manual_seed(3)
        random_state = torch.get_rng_state()
        alignattn.patch(model, attention)
        if not torch.equal(random_state, torch.get_rng_state()):
            return DIFFERS, "the patch draws from the global random state"
        stage = "evaluation"
        after = [run(model, inputs) for inputs in plain.inputs]
        pairs = list(zip(plain.outputs, after, strict=False))
        wrong = _first_wrong(_difference if is_alignment else _not_finite, pairs)
        stage = "unpatch"
        if not wrong and is_alignment:
            # Before training, which changes the running statistics of batch norms.
            alignattn.unpatch(model)
            again = [run(model, inputs) for inputs in plain.inputs]
            wrong = _first_wrong(_difference, list(zip(plain.outputs, again, strict=False)), "after unpatch: ")
            alignattn.patch(model, attention)
        stage = "training"
        for inputs in plain.trained_inputs:
            wrong = wrong or wrong_step(model, inputs, is_aligned=is_alignment)
    except AlignAttnError as error:
        return _refusal(plain, str(error)) if stage == "patch" else (LATE, f"in {stage}: {error}")
    except Exception as error:
        return TRACEBACK, f"in {stage}: {line(error)}{_place(error)}"
    if wrong:
        return DIFFERS, wrong
    told = ["not compared: its outputs are random"] if not plain.outputs else []
    told += ["not trained: training also fails without the patch"] if not plain.trained_inputs else []
    return (EQUAL if is_alignment else RUNS), "; ".join(told)


def _first_wrong(compare: Callable[..., str], pairs: list[tuple[Any, Any]], prefix: str = "") -> str:
    return next((prefix + wrong for before, after in pairs if (wrong := compare(before, after))), "")


def _refusal(plain: Plain, reason: str) -> tuple[str, str]:
    """Return the outcome of a refusal, checked against the model's measured attention."""
    measured = contradiction(reason, plain.calls)
    return (CONTRADICTED, f"{reason} [measured: {measured}]") if measured else (REFUSED, reason)


def wrong_step(model: PreTrainedModel, inputs: Inputs, *, is_aligned: bool) -> str:
    """Take a training step; return what is wrong with it."""
    model.train()
    model.zero_grad()
    torch.manual_seed(0)
    outputs = dict(tensors_of(model(**copy.deepcopy(inputs))))
    heads = [own.float().square().mean() for own in outputs.values() if own.is_floating_point() and own.requires_grad]
    loss = torch.stack(heads).sum()
    if is_aligned:
        alignment = alignattn.alignment_loss(model)
        if not alignment.isfinite():
            return f"the alignment loss is {alignment.item()}"
        if not alignment.requires_grad:
            return "the alignment loss has no gradient"
        loss = loss + alignment
    loss.backward()
    wrong = [name for name, own in model.named_parameters() if own.grad is not None and not own.grad.isfinite().all()]
    return f"gradients of {wrong[0]} are not finite" if wrong else ""


def _difference(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """Return what differs between two outputs, compared bit by bit."""
    if list(before) != list(after):
        return f"outputs {sorted(set(before) ^ set(after))} are on one side only"
    for path, own in before.items():
        other = after[path]
        if own.shape != other.shape or own.dtype != other.dtype:
            return f"{path[1:]} is {other.dtype} {list(other.shape)}, not {own.dtype} {list(own.shape)}"
        if not torch.equal(
            own.nan_to_num() if own.is_floating_point() else own,
            other.nan_to_num() if other.is_floating_point() else other,
        ):
            gap = (own.double() - other.double()).abs().max().item()
            return f"{path[1:]} by {gap:.2g} of {own.double().abs().max().item():.2g}"
    return ""


def _not_finite(before: dict[str, Tensor], after: dict[str, Tensor]) -> str:
    """Return an output that was finite and no longer is."""
    for path, tensor in after.items():
        if (
            tensor.is_floating_point()
            and not tensor.isfinite().all()
            and path in before
            and before[path].isfinite().all()
        ):
            return f"{path[1:]} is not finite"
    return ""


def _place(error: BaseException) -> str:
    """Return where an error was raised, and the last place in alignattn."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/alignattn/" in frame.filename]
    places = [frames[-1], *([own[-1]] if own and own[-1] is not frames[-1] else [])]
    return " (" + " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in places) + ")"
