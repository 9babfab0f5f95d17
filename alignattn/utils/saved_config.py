"""The fields of a saved `config.json` that mark a model patched with slots that change its function.

Imports nothing heavy: commands read these fields before they import torch.
"""

from collections.abc import Mapping
from typing import Any

LOADING_HINT = "load_with_alignattn_from_pretrained"
"""The attention implementation in the config of a patched model.

No implementation has this name, so plain transformers refuses the checkpoint instead of silently running it with soft
attention.
"""

TYPE_SUFFIX = f"_{LOADING_HINT}"
"""Suffix of the model type in such a config."""

HIDDEN_FIELD = "alignattn_hides"
"""Field of such a config that stores the original values of hidden fields, by name."""


def restored_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a saved config with its hidden fields and its model type restored.

    Args:
        fields: the content of a `config.json`, of any model.
    """
    model_type = fields.get("model_type")
    if not isinstance(model_type, str) or not model_type.endswith(TYPE_SUFFIX):
        return dict(fields)
    hidden = fields.get(HIDDEN_FIELD)
    if not isinstance(hidden, dict):
        raise ValueError(f"its config.json lacks {HIDDEN_FIELD}")
    rest = {name: value for name, value in fields.items() if name != HIDDEN_FIELD}
    return rest | hidden | {"model_type": model_type.removesuffix(TYPE_SUFFIX)}
