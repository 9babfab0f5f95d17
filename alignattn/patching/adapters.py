"""Adapters of peft around a patched model: its own parameters stay trainable, and are saved with each adapter.

Imported only where peft is installed. peft asks every `AuxiliaryTrainingWrapper` what of it an adapter's file takes: a
patch's modules take that class beside their own. They are one set for all adapters of a model.

Some adapters freeze all of a model but what is theirs by name, and prompts freeze it whole. So the two methods by which
peft gives a model its adapters leave a patch's parameters as they were before.
"""

import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from peft import PeftConfig, PeftModel
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedConfig

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.saving import is_changed
from alignattn.patching.slots import LayerSlots, Patch, patch_of
from alignattn.patching.state_dicts import ADAPTERS_COPIES, DESCRIPTION, written_description
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.saved_config import LOADING_HINT

LABEL_FIELDS = ("id2label", "label2id", "problem_type")
"""Fields of a model's config that an adapter's own files lack, without which its head cannot be made."""


SAVING = "save_pretrained"
"""The method of an adapter's config that is replaced while a patched model is saved."""


class _Carried(TrainableTokensWrapper):
    """What peft asks of a module that is trained beside an adapter, for one that wraps nothing.

    Of all such modules these alone are no adapters' layers in what peft says of a model (`get_model_status`).

    Attributes:
        is_copied: whether it is in a copy that an adapter trains, which saves it.
    """

    adapter_layer_names = ()
    other_param_names = ()
    _adapters: set[str] = set()  # noqa: RUF012 - a class of peft declares it so
    _active_adapter: list[str] = []  # noqa: RUF012 - a class of peft declares it so
    _disable_adapters = False
    is_copied = False
    token_adapter: Any = SimpleNamespace(trainable_tokens_delta={}, trainable_tokens_original={})

    __getattr__ = nn.Module.__getattr__

    @property
    def unload_and_optionally_merge_module(self) -> Any:
        """Missing: unloading an adapter leaves the module as it is."""
        raise AttributeError

    def _get_available_adapters(self) -> set[str]:
        return set()

    def enable_adapters(self, enabled: bool) -> None:
        """Leave the module as it is."""

    def check_set_adapter(self, adapter_name: str | list[str]) -> None:
        """Say that no adapter is the module's own."""

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        """Note the active adapters; the module stays as it is."""
        self._active_adapter = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)

    def set_requires_grad(self, adapter_names: Any, requires_grad: bool = True) -> None:
        """Leave the module as it is."""

    def delete_adapter(self, adapter_name: str, new_active_adapters: list[str] | None) -> None:
        """Note the adapters that are active then; the module stays as it is."""
        if new_active_adapters is not None:
            self.set_adapter(new_active_adapters)

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what an adapter's file takes of this module's `state_dict`."""
        return {} if self.is_copied else {name: state_dict[name] for name in self.state_dict()}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        """Return the names in an adapter's file that differ from the model's: none."""
        return {}


class CarriedSlots(LayerSlots, _Carried):
    """Slots whose parameters every adapter carries."""

    def forward(self, *args: Any, adapter_names: Any = None, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Attend as `LayerSlots` do, whichever adapter each sample of a batch is for."""
        return super().forward(*args, **kwargs)


class CarriedPatch(Patch, _Carried):
    """A patch whose choices and parameters every adapter carries.

    Attributes:
        adapters: the configs of the model's adapters by name, once it has some.
    """

    adapters: Mapping[str, PeftConfig] | None = None

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what an adapter's file takes of this module's `state_dict`, and the choices."""
        model: Any = self.collector.owner
        if self.adapters is None:
            raise AlignAttnError(
                f"the adapters are of a model that the patched {type(model).__name__} is a part of, and their files "
                "would not tell: patch the whole model instead (alignattn.unpatch the part first)"
            )
        if is_changed(model):
            raise AlignAttnError(
                f"layers of this {type(model).__name__} were changed after its patch, and the adapter is of a model "
                "that has all: save that model without them, and patch and adapt what is loaded from there"
            )
        config = getattr(model, "config", None)
        fields = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
        description = {
            "attention": self.config.to_dict(),
            "task_type": self.adapters[adapter_name].task_type,
            "labels": {name: fields[name] for name in LABEL_FIELDS if fields.get(name) is not None},
        }
        name = DESCRIPTION.rpartition(".")[2]
        return super().adapter_state_dict(adapter_name, state_dict) | {name: written_description(description)}


@contextmanager
def refused_by_plain_peft(model: Any) -> Iterator[None]:
    """Have the adapters of a model write, while they are saved, a task that plain peft refuses.

    Only where a patch changes the model's function. The user's own configs stay as they are.

    Args:
        model: that has adapters, or the `peft.PeftModel` around one.
    """
    patch = getattr(model, CHILD_NAME, None)
    configs = model.peft_config.values() if isinstance(patch, Patch) and patch.config.changes_function else ()
    for config in configs:
        vars(config)[SAVING] = functools.partial(_save_with_hint, config)
    try:
        yield
    finally:
        for config in configs:
            vars(config).pop(SAVING, None)


def _save_with_hint(config: PeftConfig, *args: Any, **kwargs: Any) -> None:
    written = copy.copy(config)
    del vars(written)[SAVING]
    written.task_type = LOADING_HINT
    written.save_pretrained(*args, **kwargs)


def _keeping_patches(give: Callable[..., Any], model_of: Callable[..., nn.Module]) -> Callable[..., Any]:
    """Return a method of peft that gives a model an adapter, and leaves what a patch trains as it was before."""

    @functools.wraps(give)
    def give_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = model_of(self, *args, **kwargs)
        carried = [module for module in model.modules() if isinstance(module, _Carried)]
        trained = {own: own.requires_grad for module in carried for own in module.parameters()}
        given = give(self, *args, **kwargs)
        for own, is_trained in trained.items():
            own.requires_grad_(is_trained)
        _claim(model, self.peft_config, self.active_adapters)
        return given

    return give_and_keep


def _claim(model: Any, configs: Mapping[str, PeftConfig], active: list[str]) -> None:
    """Have a patch know the adapters of its model, and which of them are active."""
    patch = getattr(model, CHILD_NAME, None)
    if isinstance(patch, CarriedPatch):
        patch.adapters = configs
    for path, module in model.named_modules():
        if isinstance(module, _Carried):
            module.set_adapter(active)
            module.is_copied = ADAPTERS_COPIES in path.split(".")


BaseTuner.inject_adapter = _keeping_patches(  # type: ignore[method-assign]
    BaseTuner.inject_adapter, lambda _tuner, model, *_, **__: model
)
PeftModel._setup_prompt_encoder = _keeping_patches(  # type: ignore[method-assign]
    PeftModel._setup_prompt_encoder, lambda peft_model, *_, **__: peft_model.base_model
)

_save_peft_model = PeftModel.save_pretrained


@functools.wraps(_save_peft_model)
def _save_patched(self: PeftModel, *args: Any, **kwargs: Any) -> Any:
    with refused_by_plain_peft(self):
        return _save_peft_model(self, *args, **kwargs)


PeftModel.save_pretrained = _save_patched  # type: ignore[method-assign]


def carry(model: Any) -> None:
    """Have adapters, those there are and those to come, carry the slots and the alignment of a patched model.

    Args:
        model: with a patch; or a `peft.PeftModel` with prompts around one.
    """
    encoder = model.get_base_model() if hasattr(model, "get_base_model") else model
    patch_of(encoder).__class__ = CarriedPatch
    for module in encoder.modules():
        if isinstance(module, LayerSlots):
            module.__class__ = CarriedSlots
    configs = getattr(model, "peft_config", None)
    if isinstance(configs, dict):
        layers = (module for module in encoder.modules() if isinstance(module, BaseTunerLayer))
        active = next((layer.active_adapters for layer in layers), list(configs)[:1])
        _claim(encoder, configs, active)
