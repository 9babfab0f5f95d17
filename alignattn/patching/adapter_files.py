"""Load adapters that `PeftModel.save_pretrained` wrote for a patched model, and merge adapters into their model."""

import json
from collections.abc import Collection, Mapping
from typing import Any

from safetensors import safe_open
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from alignattn.attention.config import AttentionConfig
from alignattn.models.packaged import installed_source
from alignattn.patching.attach import unpatch
from alignattn.patching.patch import patch
from alignattn.patching.saving import DESCRIPTION, FUNCTION_SLOT, read_description
from alignattn.patching.sizes import find_file
from alignattn.patching.slots import is_patched
from alignattn.utils.errors import AlignAttnError, install_extra

CONFIG_FIELD = "base_model_name_or_path"
"""Field of an adapter's config that names its base model."""


def adapter_fields(path: str, hub: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an adapter's config, or None if there is no adapter in a folder or on the Hub."""
    file = find_file(path, ADAPTER_CONFIG_NAME, hub)
    if file is None:
        return None
    fields: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return fields


def adapter_contents(path: str, hub: Mapping[str, Any]) -> tuple[frozenset[str], dict[str, Any]]:
    """Return the names of an adapter's weights and the description of the patch in its file, empty without a patch."""
    file = find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, hub)
    if file is None:
        raise AlignAttnError(f"{path!r} has no {ADAPTER_SAFE_WEIGHTS_NAME}: save the adapter with save_pretrained")
    with safe_open(file, "pt") as weights:
        names = frozenset(weights.keys())
        descriptions = [weights.get_tensor(name) for name in names if name.endswith(DESCRIPTION)]
    description = read_description(descriptions[0]) if descriptions else {}
    return frozenset(_names_in_model(names)), description


def _names_in_model(names: Collection[str]) -> dict[str, str]:
    """Return the names in an adapter's file by those of the model's weights, without their prefix."""
    # Prompts stand beside the model's weights.
    prefix = "base_model." if "prompt_embeddings" in names else "base_model.model."
    return {name.removeprefix(prefix): name for name in names}


def function_parameters_in(path: str, hub: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the parameters of slots that change the function in an adapter's file, by their names in the model."""
    with safe_open(find_file(path, ADAPTER_SAFE_WEIGHTS_NAME, hub), "pt") as weights:
        names = _names_in_model(weights.keys()).items()
        return {own: weights.get_tensor(name) for own, name in names if FUNCTION_SLOT.search(name)}


def base_model_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the path or Hub id of an adapter's base model.

    Raises:
        AlignAttnError: if its config names none, or peft is not installed.
    """
    if not is_peft_available():
        raise AlignAttnError(f"{path!r} is an adapter, which needs peft: {install_extra('peft')}")
    name = fields.get(CONFIG_FIELD)
    if not name:
        raise AlignAttnError(
            f"the adapter {path!r} does not name its model ({CONFIG_FIELD} in {ADAPTER_CONFIG_NAME}): set it there, or "
            "patch the model and pass it to peft.PeftModel.from_pretrained"
        )
    return installed_source(str(name))


def load_adapter(
    model: PreTrainedModel,
    path: str,
    fields: Mapping[str, Any],
    weights: Collection[str],
    description: Mapping[str, Any],
    *,
    is_trainable: bool = False,
    **hub: Any,
) -> Any:
    """Patch a base model and load an adapter into it, given `adapter_fields` and `adapter_contents`.

    It returns a `peft.PeftModel` around the model, in evaluation mode unless `is_trainable`.
    """
    from peft import PeftConfig, PeftModel

    if description:
        if is_patched(model):
            unpatch(model)
        patch(model, AttentionConfig.from_dict(description["attention"]))
    # Without weights for an adapter, peft only warns and continues with new ones.
    lost = [name for name in weights if "." in name and not hasattr(model, name.partition(".")[0])]
    if lost:
        raise AlignAttnError(
            f"the adapter {path!r} does not fit a {type(model).__name__} ({len(lost)} of its weights match no part of "
            f"it, such as {min(lost)}): give the class of model that was adapted, or the folder of the merged model"
        )
    if description:
        fields = {**fields, "task_type": description["task_type"]}
    config = PeftConfig.from_peft_type(**fields)
    return PeftModel.from_pretrained(model, path, config=config, is_trainable=is_trainable, **hub)


def merge_adapters(model: Any) -> Any:
    """Return a model with its adapters merged into its weights; the model itself if it has none."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
