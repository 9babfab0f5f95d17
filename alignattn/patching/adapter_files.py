"""Load what `PeftModel.save_pretrained` wrote of a patched model, and merge adapters into their model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from transformers import PreTrainedModel
from transformers.utils.hub import cached_file
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME, ADAPTER_SAFE_WEIGHTS_NAME

from alignattn.attention.config import AttentionConfig
from alignattn.models.packaged import installed_source
from alignattn.patching.attach import unpatch
from alignattn.patching.patch import patch
from alignattn.patching.slots import is_patched
from alignattn.patching.state_dicts import DESCRIPTION, read_description
from alignattn.support.errors import AlignAttnError, install_extra

CONFIG_FIELD = "base_model_name_or_path"
"""Field of an adapter's config that names the model it is of."""


def adapter_fields(path: str, hub: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the fields of an adapter's config, or None if there is no adapter at `path`.

    Args:
        path: a folder or Hub id.
        hub: keyword arguments that say where a file is found.
    """
    file = cached_file(path, ADAPTER_CONFIG_NAME, **_OPTIONAL, **hub)
    if file is None:
        return None
    fields: dict[str, Any] = json.loads(Path(file).read_text(encoding="utf-8"))
    return fields


def adapter_description(path: str, hub: Mapping[str, Any]) -> dict[str, Any]:
    """Return what an adapter's file tells of the patch of its model; empty if that had none.

    Args:
        path: a folder or Hub id.
        hub: as for `adapter_fields`.
    """
    file = cached_file(path, ADAPTER_SAFE_WEIGHTS_NAME, **_OPTIONAL, **hub)
    if file is None:
        raise AlignAttnError(f"{path!r} holds no {ADAPTER_SAFE_WEIGHTS_NAME}: save the adapter with save_pretrained")
    with safe_open(file, "pt") as weights:
        for name in weights.keys():  # noqa: SIM118 - a safe_open handle is not iterable
            if name.endswith(DESCRIPTION):
                return read_description(weights.get_tensor(name))
    return {}


_OPTIONAL = {"_raise_exceptions_for_missing_entries": False}


def base_model_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return what the model that an adapter is of is loaded from.

    Raises:
        AlignAttnError: if its config names none, or peft is not installed.
    """
    if not is_peft_available():
        raise AlignAttnError(f"{path!r} is an adapter, which needs peft: {install_extra('peft')}")
    name = fields.get(CONFIG_FIELD)
    if not name:
        raise AlignAttnError(
            f"the adapter {path!r} does not name its model ({CONFIG_FIELD} in {ADAPTER_CONFIG_NAME}): set it there, or "
            "patch the model and give it to peft.PeftModel.from_pretrained"
        )
    return installed_source(str(name))


def load_adapter(
    model: PreTrainedModel,
    path: str,
    fields: Mapping[str, Any],
    description: Mapping[str, Any],
    *,
    is_trainable: bool = False,
    **hub: Any,
) -> Any:
    """Give a model the patch and the adapter of a folder.

    Args:
        model: the base model.
        path: the adapter's folder or Hub id.
        fields: of its config.
        description: that its file holds of the patch.
        is_trainable: whether the adapter is to be trained on.
        **hub: as for `adapter_fields`.

    Returns:
        A `peft.PeftModel` around `model`, in evaluation mode unless it is to be trained on.
    """
    from peft import PeftConfig, PeftModel

    if description:
        if is_patched(model):
            unpatch(model)
        patch(model, AttentionConfig.from_dict(description["attention"]))
        fields = {**fields, "task_type": description["task_type"]}
    config = PeftConfig.from_peft_type(**fields)
    return PeftModel.from_pretrained(model, path, config=config, is_trainable=is_trainable, **hub)


def merge_adapters(model: Any) -> Any:
    """Return a model without its adapters, with what they change merged into its weights; itself if it has none."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model
