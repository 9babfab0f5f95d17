"""The base class of the families' attention modules with slots."""

from typing import ClassVar

from torch import Tensor, nn

from alignattn.utils.errors import AlignAttnError


class SlottedAttention(nn.Module):
    """A self-attention module whose forward calls its slots; as a base class, it precedes the model's own class.

    The slots attend with the model's own bias of the scores. A patch with an alignment alone keeps the model's own
    class, because hooks observe it.

    Attributes:
        plain_class: class of the module without slots.
    """

    plain_class: ClassVar[type[nn.Module]]

    def check_pairs(self, mask: Tensor, states: Tensor) -> Tensor:
        """Return a mask of pairs of the tokens `[B, n, hidden]` as slots read it, `[B, 1, n, n]`.

        Raises:
            AlignAttnError: if it has another shape, such as that of one mask per head or of other tokens.
        """
        shape = (len(states), 1, states.shape[1], states.shape[1])
        if mask.dim() != len(shape) or any(size not in (1, full) for size, full in zip(mask.shape, shape, strict=True)):
            raise AlignAttnError(
                f"{self.plain_class.__name__} is given a mask {list(mask.shape)}, which slots cannot read: they need "
                f"{list(shape)}, [batch, 1, tokens, tokens]"
            )
        return mask.expand(shape)


def heads_of(projected: Tensor, num_heads: int) -> Tensor:
    """Split the output of a projection, `[B, n, H * d]`, into heads, `[B, H, n, d]`."""
    return projected.unflatten(-1, (num_heads, -1)).transpose(1, 2)
