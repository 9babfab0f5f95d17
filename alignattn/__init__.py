"""Fine-tune pretrained models with alignment attention.

Names are imported on first use, so `import alignattn` is fast.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from alignattn.attention.attend import AttentionLayer, attend
    from alignattn.attention.config import PRESETS, AttentionConfig
    from alignattn.attention.masks import CrossMask
    from alignattn.finetuning.predictor import Predictor, load_run
    from alignattn.patching import (
        alignment_loss,
        attach,
        collect,
        discard,
        is_patched,
        patch,
        patch_alignment,
        patch_qvi,
        unpatch,
    )
    from alignattn.patching.balance import BalanceReport, balance
    from alignattn.patching.checkpoints import from_pretrained
    from alignattn.patching.recording import LayerRecord, Recording
    from alignattn.training.arguments import AlignmentArguments, AlignmentTrainingArguments
    from alignattn.training.distributed import shard_slots
    from alignattn.training.parameter_groups import parameter_groups
    from alignattn.training.trainer import AlignmentMixin, AlignmentTrainer
    from alignattn.utils.errors import AlignAttnError

__version__ = "0.1.0"

_NAMES = {
    "attention.attend": ("AttentionLayer", "attend"),
    "attention.config": ("PRESETS", "AttentionConfig"),
    "attention.masks": ("CrossMask",),
    "patching": (
        "alignment_loss",
        "attach",
        "collect",
        "discard",
        "is_patched",
        "patch",
        "patch_alignment",
        "patch_qvi",
        "unpatch",
    ),
    "patching.balance": ("BalanceReport", "balance"),
    "patching.checkpoints": ("from_pretrained",),
    "patching.recording": ("LayerRecord", "Recording"),
    "finetuning.predictor": ("Predictor", "load_run"),
    "utils.errors": ("AlignAttnError",),
    "training.arguments": ("AlignmentArguments", "AlignmentTrainingArguments"),
    "training.parameter_groups": ("parameter_groups",),
    "training.distributed": ("shard_slots",),
    "training.trainer": ("AlignmentMixin", "AlignmentTrainer"),
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names}

__all__ = [
    "PRESETS",
    "AlignAttnError",
    "AlignmentArguments",
    "AlignmentMixin",
    "AlignmentTrainer",
    "AlignmentTrainingArguments",
    "AttentionConfig",
    "AttentionLayer",
    "BalanceReport",
    "CrossMask",
    "LayerRecord",
    "Predictor",
    "Recording",
    "alignment_loss",
    "attach",
    "attend",
    "balance",
    "collect",
    "discard",
    "from_pretrained",
    "is_patched",
    "load_run",
    "parameter_groups",
    "patch",
    "patch_alignment",
    "patch_qvi",
    "shard_slots",
    "unpatch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(_HOMES))
