"""Adapters of peft on a patched model: the patch's parameters stay trainable, and each adapter saves them.

Imported only if peft is installed. peft asks every `AuxiliaryTrainingWrapper` which of its tensors go into an adapter's
file, so a patch's modules get that class as a second base. All adapters of a model share these modules.

Some adapters freeze each parameter whose name lacks their prefix, and prompts freeze the whole model. So the two
methods by which peft adds adapters to a model are replaced while a patched model lives: they leave `requires_grad` of a
patch's parameters unchanged.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from peft import PeftConfig, PeftMixedModel, PeftModel
from peft.config import PeftConfigMixin
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils.other import TrainableTokensWrapper
from torch import Tensor, nn
from transformers import PreTrainedConfig
from transformers.integrations.peft import PeftAdapterMixin

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.checkpoint_files import (
    DESCRIPTION,
    FILE_OPTIONS,
    adapter_contents,
    adapter_fields,
    function_parameters_in,
    labels_of,
    written_description,
)
from alignattn.patching.process_changes import ProcessChange, replace_attributes
from alignattn.patching.saving import ADAPTERS_COPIES, LOADING_HINT, SAVING, is_changed, refused_by_plain_peft
from alignattn.patching.slots import LayerSlots, Patch, patch_of, update_taps
from alignattn.utils.errors import AlignAttnError, listing


class _Carried(TrainableTokensWrapper):
    """The interface of a module that peft trains along with an adapter, for a module that wraps nothing.

    `TrainableTokensWrapper` is the only such class that peft's `get_model_status` does not count as an adapter layer.

    Attributes:
        is_copied: whether the module is inside a copy that an adapter trains; the adapter then saves the copy.
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
        """Raise `AttributeError`, so that peft leaves the module unchanged when it unloads an adapter."""
        raise AttributeError

    def _get_available_adapters(self) -> set[str]:
        return set()

    def enable_adapters(self, enabled: bool) -> None:
        """Leave the module as it is."""

    def check_set_adapter(self, adapter_name: str | list[str]) -> None:
        """Return None: the module has no adapter of its own."""

    def set_adapter(self, adapter_names: str | list[str], inference_mode: bool = False) -> None:
        """Note the active adapters; the module stays as it is."""
        self._active_adapter = [adapter_names] if isinstance(adapter_names, str) else list(adapter_names)

    def set_requires_grad(self, adapter_names: Any, requires_grad: bool = True) -> None:
        """Leave the module as it is."""

    def delete_adapter(self, adapter_name: str, new_active_adapters: list[str] | None) -> None:
        """Note the adapters that are active afterwards; the module stays as it is."""
        if new_active_adapters is not None:
            self.set_adapter(new_active_adapters)

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors of this module that go into an adapter's file."""
        return {} if self.is_copied else {name: state_dict[name] for name in self.state_dict()}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        """Return the names in an adapter's file that differ from the model's: none."""
        return {}


class CarriedSlots(LayerSlots, _Carried):
    """Slots whose parameters every adapter saves."""

    def forward(self, *args: Any, adapter_names: Any = None, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Attend as `LayerSlots` do; `adapter_names`, the adapter of each sample, has no effect."""
        return super().forward(*args, **kwargs)


class CarriedPatch(Patch, _Carried):
    """A patch whose config and parameters every adapter saves.

    Attributes:
        adapters: the configs of the model's adapters by name; None before it has any.
    """

    adapters: Mapping[str, PeftConfig] | None = None

    def _changes(self) -> list[ProcessChange]:
        changes = [*super()._changes(), ADDED_ADAPTERS]
        return [*changes, SAVED_ADAPTERS] if self.config.changes_function else changes

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return the tensors of this module that go into an adapter's file, with a description of the patch."""
        model: Any = self.collector.owner
        if self.adapters is None:
            raise AlignAttnError(
                f"the adapters belong to a model that the patched {type(model).__name__} is a part of, and their files "
                "would not record the patch: patch the whole model instead (alignattn.unpatch the part first)"
            )
        if is_changed(model):
            raise AlignAttnError(
                f"layers of this {type(model).__name__} were changed after its patch, but the adapter is for a model "
                "with all of them: save the base model with its changed layers, load it, then patch and adapt it"
            )
        config = getattr(model, "config", None)
        fields = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
        description = {
            "attention": self.config.to_dict(),
            "task_type": self.adapters[adapter_name].task_type,
            "labels": labels_of(fields),
        }
        name = DESCRIPTION.rpartition(".")[2]
        return super().adapter_state_dict(adapter_name, state_dict) | {name: written_description(description)}


def _keeping_patches(give: Callable[..., Any], model_of: Callable[..., nn.Module]) -> Callable[..., Any]:
    """Wrap a method of peft that adds an adapter, so that it keeps `requires_grad` of a patch's parameters."""

    @functools.wraps(give)
    def give_and_keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        model = model_of(self, *args, **kwargs)
        carried = [module for module in model.modules() if isinstance(module, _Carried)]
        trained = {own: own.requires_grad for module in carried for own in module.parameters()}
        result = give(self, *args, **kwargs)
        for own, is_trained in trained.items():
            own.requires_grad_(is_trained)
        _claim(model, self.peft_config, self.active_adapters)
        return result

    return give_and_keep


def _claim(model: Any, configs: Mapping[str, PeftConfig], active: list[str]) -> None:
    """Tell a patch the adapters of its model, and which of them are active."""
    patch = getattr(model, CHILD_NAME, None)
    if isinstance(patch, CarriedPatch):
        patch.adapters = configs
    for path, module in model.named_modules():
        if isinstance(module, _Carried):
            module.set_adapter(active)
            module.is_copied = ADAPTERS_COPIES in path.split(".")
    # The adapter may have replaced projections.
    update_taps(model)


def _taking_patched(load: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method that loads an adapter: a model whose function a patch changes takes adapters of its kind."""
    signature = inspect.signature(load)

    @functools.wraps(load)
    def load_and_take(*args: Any, **kwargs: Any) -> Any:
        call = signature.bind(*args, **kwargs)
        call.apply_defaults()
        arguments = call.arguments
        model = arguments["model"] if "model" in arguments else arguments["self"]
        path = arguments.get("model_id") or arguments.get("peft_model_id")
        options = arguments["kwargs"] | (arguments.get("adapter_kwargs") or {})
        hub = {name: options[name] for name in FILE_OPTIONS if name in options}
        patch = getattr(model, CHILD_NAME, None)
        changes_function = isinstance(patch, Patch) and patch.config.changes_function
        fields = (adapter_fields(str(path), hub) or {}) if changes_function and path is not None else {}
        # A plain model refuses such an adapter, and peft takes every other one as it is.
        description = adapter_contents(str(path), hub)[1] if fields.get("task_type") == LOADING_HINT else {}
        if not description:
            return load(*args, **kwargs)
        adapters = getattr(model, "peft_config", {})
        # A trainer that resumes loads the adapters that are there again.
        if adapters and arguments["adapter_name"] not in adapters:
            held = (model.get_base_model() if hasattr(model, "get_base_model") else model).state_dict()
            for name, values in function_parameters_in(str(path), hub).items():
                if name in held and not torch.equal(values.to(held[name].dtype), held[name].cpu()):
                    raise AlignAttnError(
                        f"the adapter {str(path)!r} has other trained parameters of "
                        f"{patch_of(model).config.describe_slots()} than the model, and all adapters of a model share "
                        f"them, so {listing(sorted(adapters))} would change: load it alone by alignattn.from_pretrained"
                    )
        # peft reads the adapter's own task type instead of the one that it refuses.
        reader: Any = PeftConfigMixin
        of_class, read = vars(reader)["from_json_file"], reader.from_json_file
        reader.from_json_file = lambda *args, **kwargs: read(*args, **kwargs) | {"task_type": description["task_type"]}
        try:
            return load(*args, **kwargs)
        finally:
            reader.from_json_file = of_class

    return load_and_take


ADDED_ADAPTERS = ProcessChange(
    lambda: replace_attributes(
        {
            (BaseTuner, "inject_adapter"): _keeping_patches(
                BaseTuner.inject_adapter, lambda _tuner, model, *_, **__: model
            ),
            (PeftModel, "_setup_prompt_encoder"): _keeping_patches(
                PeftModel._setup_prompt_encoder, lambda peft_model, *_, **__: peft_model.base_model
            ),
        }
    )
)
"""Adapters that peft adds to a patched model keep the patch's parameters trainable, and save them."""


def _save_and_load_patches() -> Callable[[], None]:
    wrappers: tuple[Any, ...] = (PeftModel, PeftMixedModel)
    save = PeftModel.save_pretrained

    @functools.wraps(save)
    def save_patched(self: PeftModel, *args: Any, **kwargs: Any) -> Any:
        with refused_by_plain_peft(self):
            return save(self, *args, **kwargs)

    replacements: dict[tuple[type, str], Any] = {
        (PeftModel, SAVING): save_patched,
        **{(each, "from_pretrained"): classmethod(_taking_patched(each.from_pretrained.__func__)) for each in wrappers},
        **{(each, "load_adapter"): _taking_patched(each.load_adapter) for each in (*wrappers, PeftAdapterMixin)},
    }
    return replace_attributes(replacements)


SAVED_ADAPTERS = ProcessChange(_save_and_load_patches)
"""peft saves adapters of a model whose function a patch changes so that a plain model refuses them, and loads them into
a model with the same attention."""


def carry(model: Any) -> None:
    """Make present and future adapters of a patched model save its slots and its alignment.

    Args:
        model: a patched model, or a `peft.PeftModel` with prompts around one.
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
