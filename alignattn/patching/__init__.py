"""Patch and unpatch models, record their attention, and save and load them."""

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.attach import attach, unpatch
from alignattn.patching.loss import alignment_loss, collect, discard, step_alignments
from alignattn.patching.patch import patch, patch_alignment, patch_qvi
from alignattn.patching.slots import (
    Patch,
    aligned_patches,
    alignment_parameters,
    function_parameters,
    has_alignment,
    is_patched,
    patch_of,
)

__all__ = [
    "CHILD_NAME",
    "Patch",
    "aligned_patches",
    "alignment_loss",
    "alignment_parameters",
    "attach",
    "collect",
    "discard",
    "function_parameters",
    "has_alignment",
    "is_patched",
    "patch",
    "patch_alignment",
    "patch_of",
    "patch_qvi",
    "step_alignments",
    "unpatch",
]
