"""Small models of every class that accepts a type's config, and inputs for them."""

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import made_inputs
import torch
from input_shapes import Inputs
from tiny_configs import Level, shrunk
from torch import Tensor, nn
from transformers import MODEL_MAPPING, PreTrainedConfig, PreTrainedModel

MAX_PARAMETERS = 100_000_000
"""Maximum size of a model that is built; larger models are reported as not buildable."""

MAX_REASONS = 3
"""Maximum number of printed reasons why a model accepts none of the inputs."""


@dataclass
class Target:
    """A model that is patched: one of a class, or a part of one."""

    name: str
    model: PreTrainedModel
    inputs: list[Inputs]


class UnbuildableError(Exception):
    """No small model of a class accepts any of the inputs."""


class TooLargeError(Exception):
    """A model has more than `MAX_PARAMETERS`."""


def model_classes(config_class: type[PreTrainedConfig]) -> tuple[list[tuple[bool, type[PreTrainedModel]]], str]:
    """Return the classes to try, and why a class cannot be imported.

    Among the classes marked True, the first that can be built represents the type. The others, encoders and classifiers
    of an encoder-decoder, are tried in addition.
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
            why = line(error)
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
        return line(error)
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
        UnbuildableError: with the errors of the first and the last level.
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
            errors.append(f"config or model: {line(error)}")
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
    """Draw weights with which attention is far from uniform, and no bias is zero, so that differences are visible."""
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
    """Return inputs that a model accepts, without and with padding, or why it accepts none."""
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
            whys.append(line(error))
            continue
        if not outputs:
            whys.append("its outputs contain no tensors")
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
    """Return the output tensors of a model by path, from a fixed random state."""
    torch.manual_seed(0)
    with torch.no_grad():
        return dict(tensors_of(model(**copy.deepcopy(inputs))))


def tensors_of(outputs: Any, path: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield each tensor in nested outputs, with its path."""
    if isinstance(outputs, Tensor):
        yield path, outputs
    elif isinstance(outputs, Mapping):
        for key, value in outputs.items():
            yield from tensors_of(value, f"{path}.{key}")
    elif isinstance(outputs, list | tuple):
        for index, value in enumerate(outputs):
            yield from tensors_of(value, f"{path}.{index}")


def parts(target: Target, errors: dict[str, str]) -> Iterator[Target]:
    """Yield the models inside a model, one per class, with their inputs in its forward, or with standalone inputs."""
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
    """Return the inputs of a part when the whole runs, by name; None if there are no tensors."""
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
    if not caught or any(isinstance(value, dict) for value in caught[0].values()):
        return None  # Masks by kind of layer, which fit only one attention implementation.
    named = {name: value for name, value in caught[0].items() if _is_plain(value)}
    return named if any(isinstance(value, Tensor) for value in named.values()) else None


def _is_plain(value: Any) -> bool:
    return value is None or isinstance(value, Tensor | bool | int | float | str | list | tuple)


def line(error: BaseException) -> str:
    """Return an error on one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:300]
