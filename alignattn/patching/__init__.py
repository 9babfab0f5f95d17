"""Slots in models: patch and unpatch them, record what their attention does, save and load them."""

from alignattn.patching.patch import (
    CHILD_NAME,
    LOADING_HINT,
    Patch,
    alignment_parameters,
    collect,
    function_parameters,
    is_patched,
    patch,
    patch_alignment,
    patch_of,
    patch_qvi,
    unpatch,
)

__all__ = [
    "CHILD_NAME",
    "LOADING_HINT",
    "Patch",
    "alignment_parameters",
    "collect",
    "function_parameters",
    "is_patched",
    "patch",
    "patch_alignment",
    "patch_of",
    "patch_qvi",
    "unpatch",
]
