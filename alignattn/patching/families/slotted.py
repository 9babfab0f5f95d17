"""The base class of all families' attention modules with slots."""

from typing import Any, ClassVar

from torch import Tensor, nn

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.slots import LayerSlots
from alignattn.utils.errors import AlignAttnError


class SlottedAttention(nn.Module):
    """A self-attention module whose forward serves its slots; comes before the model's own class among the bases.

    The slots attend, with the model's own bias of the scores. A patch that adds an alignment alone leaves the model its
    own class: hooks observe it.

    Attributes:
        plain_class: of the module without slots.
    """

    plain_class: ClassVar[type[nn.Module]]

    def check_pairs(self, mask: Tensor, states: Tensor) -> Tensor:
        """Return a mask as slots read it, `[B, 1, n, n]`.

        Args:
            mask: of pairs of tokens, that need not differ by sample or query.
            states: `[B, n, hidden]`, what attends.

        Raises:
            AlignAttnError: if it is another: of each head, or of other tokens.
        """
        shape = (len(states), 1, states.shape[1], states.shape[1])
        if mask.dim() != len(shape) or any(size not in (1, full) for size, full in zip(mask.shape, shape, strict=True)):
            raise AlignAttnError(
                f"{self.plain_class.__name__} is given a mask {list(mask.shape)}, which slots cannot read: they take "
                f"{list(shape)}, [batch, 1, tokens, tokens]"
            )
        return mask.expand(shape)

    def dropout_of(self, dropout: nn.Dropout) -> float:
        """Return the probability with which a weight is dropped now."""
        return dropout.p if self.training else 0.0


def heads_of(projected: Tensor, num_heads: int) -> Tensor:
    """Return what a projection gave, `[B, n, H * d]`, by heads: `[B, H, n, d]`."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def slots_of(module: nn.Module) -> LayerSlots | None:
    """Return the slots of an attention module; None where a hook that stands around its forward outlived `unpatch`."""
    slots: Any = module._modules.get(CHILD_NAME)
    return slots
