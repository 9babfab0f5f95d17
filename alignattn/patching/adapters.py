"""Adapters of peft around a patched model: its own parameters stay trainable, and are saved with each adapter.

Imported only where peft is installed. peft freezes every parameter that is neither an adapter's nor below an
`AuxiliaryTrainingWrapper`, and asks those modules what of theirs an adapter's file takes: a patch's modules take that
class beside their own. They are one set for all adapters of a model.
"""

from collections.abc import Mapping
from typing import Any

from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from transformers import PreTrainedConfig

from alignattn.patching.slots import LOADING_HINT, LayerSlots, Patch, patch_of
from alignattn.patching.state_dicts import DESCRIPTION, written_description

LABEL_FIELDS = ("id2label", "label2id", "problem_type")
"""Fields of a model's config that an adapter's own files lack, without which its head cannot be made."""


class _Carried(AuxiliaryTrainingWrapper):
    """What peft asks of a module that is trained beside an adapter, for one that wraps nothing."""

    _adapters: set[str] = set()  # noqa: RUF012 - a class of peft declares it so
    _active_adapter: list[str] = []  # noqa: RUF012 - a class of peft declares it so
    _disable_adapters = False

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
        """Leave the module as it is."""

    def set_requires_grad(self, adapter_names: Any, requires_grad: bool = True) -> None:
        """Leave the module as it is."""

    def delete_adapter(self, adapter_name: str, new_active_adapters: list[str] | None) -> None:
        """Leave the module as it is."""

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what an adapter's file takes of this module's `state_dict`."""
        return {name: state_dict[name] for name in self.state_dict()}

    def adapter_state_dict_load_map(self, adapter_name: str) -> dict[str, str]:
        """Return the names in an adapter's file that differ from the model's: none."""
        return {}


class CarriedSlots(LayerSlots, _Carried):
    """Slots whose parameters every adapter carries."""

    def forward(self, *args: Any, adapter_names: Any = None, **kwargs: Any) -> tuple[Tensor, Tensor | None]:
        """Attend as `LayerSlots` do, whichever adapter each sample of a batch is for."""
        return super().forward(*args, **kwargs)


class CarriedPatch(Patch, _Carried):
    """A patch whose choices and parameters every adapter carries."""

    def adapter_state_dict(  # type: ignore[override]  # peft's own wrappers take both, its base class one
        self, adapter_name: str, state_dict: Mapping[str, Tensor]
    ) -> dict[str, Tensor]:
        """Return what an adapter's file takes of this module's `state_dict`, and the choices."""
        model: Any = self.collector.owner
        adapter = model.peft_config[adapter_name]
        if adapter.task_type != LOADING_HINT:
            self.task_types[adapter_name] = adapter.task_type
        if self.config.changes_function:
            # Read next, and written into the adapter's config: plain peft refuses a task of this name.
            adapter.task_type = LOADING_HINT
        config = getattr(model, "config", None)
        fields = config.to_dict() if isinstance(config, PreTrainedConfig) else {}
        description = {
            "attention": self.config.to_dict(),
            "task_type": self.task_types[adapter_name],
            "labels": {name: fields[name] for name in LABEL_FIELDS if fields.get(name) is not None},
        }
        name = DESCRIPTION.rpartition(".")[2]
        return super().adapter_state_dict(adapter_name, state_dict) | {name: written_description(description)}


def carry(model: nn.Module) -> None:
    """Have adapters, those there are and those to come, carry the slots and the alignment of a patched model."""
    patch_of(model).__class__ = CarriedPatch
    for module in model.modules():
        if isinstance(module, LayerSlots):
            module.__class__ = CarriedSlots
