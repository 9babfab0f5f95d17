"""The learned basis of an alignment whose scope is `basis`, folded into the projections of queries and keys."""

import torch.distributed as dist
from accelerate.utils import extract_model_from_parallel
from torch import nn

from alignattn.attention.alignment.in_basis import AlignmentInBasis
from alignattn.patching.heads import balanced_heads, check_in_memory
from alignattn.patching.slots import Patch
from alignattn.utils.errors import AlignAttnError


def fold_basis(model: nn.Module) -> dict[str, tuple[float, ...]]:
    """Take the projections of queries and keys to the basis that `gradient_scope="basis"` has learned, in place.

        condition = alignattn.fold_basis(model)
        model.save_pretrained("out")

    `AlignmentTrainer.train` does it at its end; a loop of one's own does before it saves. Until then, and in every
    checkpoint of a training, the projections are raw and the basis lies beside them: folded in, they would no longer be
    what the optimizer's moments are of. The outputs stay but for rounding, and the basis begins anew at the identity.

    Args:
        model: patched with that scope, or around one that is.

    Returns:
        The condition of A by the name of the attention module, a number a head.

    Raises:
        AlignAttnError: if it is not, or as `alignattn.balance` does of the model.
    """
    model = extract_model_from_parallel(model, keep_torch_compile=False)
    if not learns_basis(model):
        raise AlignAttnError(f"this {type(model).__name__} learns no basis: patch it with gradient_scope='basis'")
    heads = balanced_heads(model)
    check_in_memory(heads)
    learned = {module.collector: module.alignments for module in model.modules() if isinstance(module, Patch)}
    if dist.is_available() and dist.is_initialized():
        # Each process has means of its own rows.
        for module in model.modules():
            if isinstance(module, AlignmentInBasis):
                dist.broadcast(module.means, 0)
    conditions = {}
    for part in heads:
        alignment = learned[part.slots.collector][str(part.slots.head_dim)]
        assert isinstance(alignment, AlignmentInBasis)
        basis = alignment.basis(part.slots.layer)
        part.change(basis)
        conditions[part.path] = tuple(basis.condition.tolist())
    forget_basis(model)
    return conditions


def forget_basis(model: nn.Module) -> None:
    """Let the learned basis of a model begin anew, if it has one: its projections are in another."""
    for module in model.modules():
        if isinstance(module, AlignmentInBasis):
            module.reset()


def learns_basis(model: nn.Module) -> bool:
    """Tell whether a model, or a part of it, is patched with the scope `basis`."""
    return any(isinstance(module, AlignmentInBasis) for module in model.modules())


def check_foldable(model: nn.Module) -> None:
    """Refuse a model into whose projections no basis could be folded.

    Args:
        model: with slots.

    Raises:
        AlignAttnError: as `alignattn.balance` does; and if keys have no bias, which c is folded into.
    """
    for part in balanced_heads(model):
        if part.key[1] is None:
            raise AlignAttnError(
                f"gradient_scope 'basis': {part.path} adds no bias to its keys, which would take the shift c: choose "
                "'projections', or give the keys a bias"
            )
