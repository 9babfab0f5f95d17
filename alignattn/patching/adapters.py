"""Adapters of peft around a patched model: its own parameters stay trainable, and are saved and loaded with each adapter.

Imported only where peft is installed. peft freezes every parameter that is neither an adapter's nor below an
`AuxiliaryTrainingWrapper`, and asks those modules what of theirs an adapter's file takes: a patch's modules take that
class beside their own. They are one set for all adapters of a model.
"""

import json
from collections.abc import Mapping
from typing import Any

import torch
from peft import PeftConfig, PeftModel
from peft.utils.other import AuxiliaryTrainingWrapper
from torch import Tensor, nn
from transformers import PreTrainedModel

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.patching.attach import LOADING_HINT
from alignattn.patching.patch import patch
from alignattn.patching.slots import LayerSlots, Patch, is_patched, patch_of
from alignattn.support.errors import AlignAttnError

DESCRIPTION = "description"
"""Name below the patch's of the tensor in an adapter's file that holds, as JSON, what the patch is."""

LABEL_FIELDS = ("id2label", "label2id", "problem_type")
"""Fields of a model's config that an adapter's own files lack, without which its head cannot be made."""


class _Carried(AuxiliaryTrainingWrapper):
    """What peft asks of a module that is trained beside an adapter, for one that wraps nothing."""

    _adapters: frozenset[str] = frozenset()
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

    def adapter_state_dict(self, adapter_name: str, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
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

    def adapter_state_dict(self, adapter_name: str, state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return what an adapter's file takes of this module's `state_dict`, and the choices."""
        model: Any = self.collector.owner
        adapter = model.peft_config[adapter_name]
        if adapter.task_type != LOADING_HINT:
            self.task_types[adapter_name] = adapter.task_type
        if self.config.changes_function:
            # Read next, and written into the adapter's config: plain peft refuses a task of this name.
            adapter.task_type = LOADING_HINT
        fields = model.config.to_dict()
        description = {
            "attention": self.config.to_dict(),
            "task_type": self.task_types[adapter_name],
            "labels": {name: fields[name] for name in LABEL_FIELDS if fields.get(name) is not None},
        }
        text = torch.tensor(list(json.dumps(description).encode()), dtype=torch.uint8)
        return super().adapter_state_dict(adapter_name, state_dict) | {DESCRIPTION: text}


def carry(model: nn.Module) -> None:
    """Have adapters, those there are and those to come, carry the slots and the alignment of a patched model."""
    patch_of(model).__class__ = CarriedPatch
    for module in model.modules():
        if isinstance(module, LayerSlots):
            module.__class__ = CarriedSlots


def load_adapted(
    model: PreTrainedModel, path: str, fields: Mapping[str, Any], description: Mapping[str, Any], **kwargs: Any
) -> PeftModel:
    """Give a model the patch and the adapter that `PeftModel.save_pretrained` wrote from one that had both.

    Args:
        model: the base model, as it is loaded.
        path: the adapter's folder or Hub id.
        fields: of its config.
        description: that its file holds of the patch; empty where it was not patched.
        **kwargs: as for `PeftModel.from_pretrained`.
    """
    if description:
        patch(model, AttentionConfig.from_dict(description["attention"]))
        fields = {**fields, "task_type": description["task_type"]}
    config = PeftConfig.from_peft_type(**PeftConfig.check_kwargs(**fields))
    return PeftModel.from_pretrained(model, path, config=config, **kwargs)


def merged(model: nn.Module) -> nn.Module:
    """Return the model without its adapters, their changes merged into its weights; itself if it has none."""
    return model.merge_and_unload() if isinstance(model, PeftModel) else model


def check_same(model: nn.Module, description: Tensor) -> None:
    """Refuse an adapter that was trained with another attention function than the model's.

    Args:
        model: patched.
        description: the tensor of this name in the adapter's file.

    Raises:
        AlignAttnError: if so.
    """
    theirs = AttentionConfig.from_dict(read_description(description)["attention"])
    mine = patch_of(model).config if is_patched(model) else AttentionConfig()
    if function_of(theirs) != function_of(mine):
        raise AlignAttnError(
            f"the adapter was trained with attention {theirs.name!r}, and the model is patched with {mine.name!r}: "
            "patch it with the adapter's, or load the adapter with alignattn.from_pretrained"
        )
