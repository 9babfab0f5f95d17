"""What a patch does to one small model: the checks behind `model_types.py`, each judged against the model before the patch."""

import copy
import importlib
import inspect
import pkgutil
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import made_inputs
import torch
from made_inputs import Inputs
from observed_attention import contradiction, observing
from tiny_configs import Level, config_class_of, shrunk
from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

import alignattn
from alignattn.support.errors import AlignAttnError

ATTENTIONS = ("aa-ct", "qvi", "entmax15")
IMPLEMENTATIONS = ("sdpa", "eager")
MAX_PARAMETERS = 100_000_000
"""Of a model that is built: one that is no smaller by any rule is not."""

MAX_REASONS = 3
"""Of those why a model takes none of the inputs."""

EQUAL, RUNS, REFUSED, LATE, DIFFERS, TRACEBACK = "equal", "runs", "refused", "refused late", "differs", "traceback"
CONTRADICTED = "contradicted"
"""Refused for a reason that is not so."""
BUILT, NO_MODEL, NOT_BUILDABLE = "built", "no model", "not buildable"


@dataclass
class Finding:
    """What one attention does to one model: its outcome, and why."""

    target: str
    implementation: str
    attention: str
    outcome: str
    reason: str = ""


@dataclass
class TypeReport:
    """What was found of one model type.

    Attributes:
        status: whether a small model of it could be built and run.
        reason: why not.
        level: how much its config was shrunk.
        findings: of each model, implementation and attention.
        unbuilt: further models of the type that could not be built or run, and why.
    """

    model_type: str
    status: str
    reason: str = ""
    level: str = ""
    findings: list[Finding] = field(default_factory=list)
    unbuilt: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return it as a line of the results holds it."""
        return asdict(self)


@dataclass
class Target:
    """A model that is patched: one of a class, or a part of one."""

    name: str
    model: PreTrainedModel
    inputs: list[Inputs]


class UnbuildableError(Exception):
    """No small model of a class takes any of the inputs."""


class TooLargeError(Exception):
    """A model has more than `MAX_PARAMETERS`."""


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


def model_classes(config_class: type[PreTrainedConfig]) -> tuple[list[tuple[bool, type[PreTrainedModel]]], str]:
    """Return the classes to be tried: those of which the first that can be built stands for the type, then all further.

    Further ones are encoders and classifiers of an encoder-decoder. The reason is one for which a class cannot be imported.
    """
    try:
        mapped = MODEL_MAPPING[config_class]
        mapped = list(mapped) if isinstance(mapped, tuple) else [mapped]
    except Exception:
        mapped = []
    own, why = _own_classes(config_class)
    own = [model for model in own if _has_forward(model)]
    others = sorted((model for model in own if model not in mapped), key=_unlikeliness)
    mapped = [model for model in mapped if _is_importable(model)]
    why = why or ("" if mapped or others else _import_error(config_class))
    further = [model for model in others if model.__name__.endswith(("EncoderModel", "ForAudioClassification"))]
    first = mapped or others
    return [(True, model) for model in first] + [(False, model) for model in further if model not in first], why


def _unlikeliness(model: type[PreTrainedModel]) -> int:
    ends = ("Model", "Encoder", "Decoder", "ForConditionalGeneration", "ForCausalLM")
    return next((rank for rank, end in enumerate(ends) if model.__name__.endswith(end)), len(ends))


def _own_classes(config_class: type[PreTrainedConfig]) -> tuple[list[type[PreTrainedModel]], str]:
    package = importlib.import_module(config_class.__module__.rpartition(".")[0])
    found, why = [], ""
    for module in pkgutil.iter_modules(package.__path__):
        if not module.name.startswith("modeling_"):
            continue
        try:
            modeling = importlib.import_module(f"{package.__name__}.{module.name}")
        except Exception as error:
            why = _line(error)
            continue
        found += [
            model
            for model in vars(modeling).values()
            if inspect.isclass(model)
            and issubclass(model, PreTrainedModel)
            and model.__module__ == modeling.__name__
            and model.config_class is config_class
            and not model.__name__.endswith("PreTrainedModel")
        ]
    return found, why


def _is_importable(model: type) -> bool:
    return inspect.isclass(model) and not hasattr(type(model), "_backends") and "dummy" not in model.__module__


def _import_error(config_class: type[PreTrainedConfig]) -> str:
    try:
        model = MODEL_MAPPING[config_class]
        model(config_class())
    except ImportError as error:
        return _line(error)
    except Exception:
        return ""
    return ""


def _has_forward(model: type[nn.Module]) -> bool:
    return model.forward is not nn.Module.forward and "_forward_unimplemented" not in model.forward.__name__


def built(
    model_class: type[PreTrainedModel], config_class: type[PreTrainedConfig], overrides: Mapping[str, Any]
) -> tuple[Target, Level]:
    """Return a small model that runs, and the level at which its config was shrunk.

    Raises:
        UnbuildableError: with what the first level failed of.
    """
    errors: list[str] = []
    for level in Level:
        try:
            config = shrunk(config_class, level, overrides)
            model = _model_of(model_class, config)
        except TooLargeError as error:
            errors.append(str(error))
            break  # The next levels are larger.
        except Exception as error:
            errors.append(f"config or model: {_line(error)}")
            continue
        inputs, why = working_inputs(model)
        if inputs:
            return Target(model_class.__name__, model, inputs), level
        errors.append(f"forward: {why}")
    raise UnbuildableError(errors[0] if len(set(errors)) == 1 else f"{errors[0]} | {errors[-1]}")


def _model_of(model_class: type[PreTrainedModel], config: PreTrainedConfig) -> PreTrainedModel:
    with torch.device("meta"):
        count = sum(own.numel() for own in model_class(copy.deepcopy(config)).parameters())
    if count > MAX_PARAMETERS:
        raise TooLargeError(f"{count / 1e6:.0f} million parameters")
    torch.manual_seed(0)
    return model_class(config).eval()


def vary(model: nn.Module) -> None:
    """Give each weight a size at which attention is far from uniform, and no bias is zero: a difference then shows."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for own in model.parameters():
            if not own.is_floating_point():
                continue
            noise = torch.randn(own.shape, generator=generator).to(own.dtype)
            if own.ndim > 1:
                own.copy_(noise / max(own[0].numel(), 1) ** 0.5)
            else:
                own.add_(0.1 * noise)


def working_inputs(model: PreTrainedModel) -> tuple[list[Inputs], str]:
    """Return inputs that a model takes, without and with padding, or why it takes none."""
    state = {name: own.clone() for name, own in model.state_dict().items()}
    whys: list[str] = []
    vary(model)
    for inputs in made_inputs.candidates(model):
        try:
            outputs = run(model, inputs)
            if not all(bool(own.isfinite().all()) for own in outputs.values() if own.is_floating_point()):
                model.load_state_dict(state, strict=False)
                outputs = run(model, inputs)
        except Exception as error:
            whys.append(_line(error))
            continue
        if not outputs:
            whys.append("its outputs hold no tensors")
            continue
        padding = made_inputs.padded(model, inputs)
        return [inputs, *([padding] if padding is not None and _runs(model, padding) else [])], ""
    distinct = list(dict.fromkeys(whys))[:MAX_REASONS]
    return [], "; ".join(distinct) or "nothing can be made of " + ", ".join(made_inputs.arguments_of(model))


def _runs(model: PreTrainedModel, inputs: Inputs) -> bool:
    try:
        run(model, inputs)
    except Exception:
        return False
    return True


def run(model: PreTrainedModel, inputs: Inputs) -> dict[str, Tensor]:
    """Return the tensors that a model puts out, by their place, from one random state."""
    torch.manual_seed(0)
    with torch.no_grad():
        return dict(tensors_of(model(**copy.deepcopy(inputs))))


def tensors_of(outputs: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Give each tensor in nested outputs, and its path."""
    if isinstance(outputs, Tensor):
        yield path, outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from tensors_of(value, f"{path}.{key}")
    elif isinstance(outputs, list | tuple):
        for index, value in enumerate(outputs):
            yield from tensors_of(value, f"{path}.{index}")


def parts(target: Target, errors: dict[str, str]) -> Iterator[Target]:
    """Give the models that are parts of one, one of each class, with the inputs that they get in its forward or alone."""
    seen = {type(target.model)}
    for path, module in target.model.named_modules():
        if not isinstance(module, PreTrainedModel) or type(module) in seen:
            continue
        seen.add(type(module))
        name = f"{target.name}.{path} ({type(module).__name__})"
        inputs = [given for given in (_captured(target.model, path, inputs) for inputs in target.inputs) if given]
        alone = copy.deepcopy(module).eval()
        if not inputs or not _runs(alone, inputs[0]):
            inputs, why = working_inputs(alone)
            if not inputs:
                errors[name] = f"forward: {why}"
                continue
        yield Target(name, alone, inputs)


def _captured(model: PreTrainedModel, path: str, inputs: Inputs) -> Inputs | None:
    """Return what a part gets when the whole runs: by name, if it gets tensors at all."""
    caught: list[Inputs] = []

    def catch(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(module.forward).bind(*args, **kwargs).arguments
        extra = next((bound.pop(name) for name in ("kwargs", "lm_kwargs", "flash_attn_kwargs") if name in bound), {})
        caught.append({**bound, **extra})

    hook = model.get_submodule(path).register_forward_pre_hook(catch, with_kwargs=True)
    try:
        run(model, inputs)
    except Exception:
        return None
    finally:
        hook.remove()
    named = {} if not caught else {name: value for name, value in caught[0].items() if _is_plain(value)}
    return named if any(isinstance(value, Tensor) for value in named.values()) else None


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, Tensor | bool | int | float | str | list | tuple | dict)


class Plain:
    """A model before any patch, and what it gives; each is worked out when it is first asked for."""

    def __init__(self, model: PreTrainedModel, inputs: list[Inputs]) -> None:
        self.model = model
        self.inputs = inputs

    @cached_property
    def outputs(self) -> list[dict[str, Tensor]]:
        """Its outputs for each of the inputs; none if they are not the same twice."""
        before = [run(self.model, inputs) for inputs in self.inputs]
        again = [run(self.model, inputs) for inputs in self.inputs]
        return [] if any(_difference(*pair) for pair in zip(before, again, strict=True)) else before

    @cached_property
    def trained_inputs(self) -> list[Inputs]:
        """Those of the inputs on which it can take a step of training."""
        return [inputs for inputs in self.inputs if self._can_train(inputs)]

    @cached_property
    def calls(self) -> Counter[str]:
        """Its calls of attention, by what they are."""
        with observing() as counts:
            run(self.model, self.inputs[0])
        return counts

    def _can_train(self, inputs: Inputs) -> bool:
        try:
            return not wrong_step(copy.deepcopy(self.model), inputs, is_aligned=False)
        except Exception:
            return False


def check_target(target: Target, attentions: tuple[str, ...]) -> list[Finding]:
    """Patch a model with each attention, on each implementation that it has."""
    findings: list[Finding] = []
    for implementation in IMPLEMENTATIONS:
        model = copy.deepcopy(target.model)
        try:
            model.set_attn_implementation(implementation)
            run(model, target.inputs[0])
        except Exception:
            continue
        if model.config._attn_implementation != implementation:
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
            # Before the training, in which norms of batches note what they see.
            alignattn.unpatch(model)
            again = [run(model, inputs) for inputs in plain.inputs]
            wrong = _first_wrong(_difference, list(zip(plain.outputs, again, strict=False)), "after unpatch: ")
            alignattn.patch(model, attention)
        stage = "training"
        wrong = wrong or next(
            (wrong for inputs in plain.trained_inputs if (wrong := wrong_step(model, inputs, is_aligned=is_alignment))), ""
        )
    except AlignAttnError as error:
        return _refusal(plain, str(error)) if stage == "patch" else (LATE, f"in {stage}: {error}")
    except Exception as error:
        return TRACEBACK, f"in {stage}: {_line(error)}{_place(error)}"
    if wrong:
        return DIFFERS, wrong
    told = ["not compared: its outputs are random"] if not plain.outputs else []
    told += ["not trained: it cannot be without the patch"] if not plain.trained_inputs else []
    return (EQUAL if is_alignment else RUNS), "; ".join(told)


def _first_wrong(compare: Callable[..., str], pairs: list[tuple[Any, Any]], prefix: str = "") -> str:
    return next((prefix + wrong for before, after in pairs if (wrong := compare(before, after))), "")


def _refusal(plain: Plain, reason: str) -> tuple[str, str]:
    """Return the outcome of a refusal, judged by what attention the model has."""
    measured = contradiction(reason, plain.calls)
    return (CONTRADICTED, f"{reason} [measured: {measured}]") if measured else (REFUSED, reason)


def wrong_step(model: PreTrainedModel, inputs: Inputs, *, is_aligned: bool) -> str:
    """Take a step of training; return what is wrong with it."""
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
    """Return what differs between two outputs, to the bit."""
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
    """Return an output that was finite and is not."""
    for path, tensor in after.items():
        if (
            tensor.is_floating_point()
            and not tensor.isfinite().all()
            and path in before
            and before[path].isfinite().all()
        ):
            return f"{path[1:]} is not finite"
    return ""


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]


def _place(error: BaseException) -> str:
    """Return where an error rose, and where in alignattn."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/alignattn/" in frame.filename]
    places = [frames[-1], *([own[-1]] if own and own[-1] is not frames[-1] else [])]
    return " (" + " < ".join(f"{Path(frame.filename).name}:{frame.lineno}" for frame in places) + ")"
