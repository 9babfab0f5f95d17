"""MPNet (Song et al. 2020): scaled dot-product attention with a learned bias of relative positions."""

from typing import Any

from torch import Tensor
from transformers.models.mpnet.modeling_mpnet import MPNetSelfAttention

from alignattn.attention.alignment.base import sum_of
from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.families.slotted import SlottedAttention, heads_of
from alignattn.patching.masks import allowed_pairs


class SlottedMPNetSelfAttention(SlottedAttention, MPNetSelfAttention):
    """MPNet's self-attention with slots: N normalises the sum of S(Q, K) and the encoder's position bias."""

    plain_class = MPNetSelfAttention

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        """Attend `[B, n, hidden]`, with arguments and results of the model's own forward."""
        slots: Any = self._modules.get(CHILD_NAME)
        if slots is None:  # a hook around the forward outlived `unpatch`
            outputs: tuple[Tensor, ...] = MPNetSelfAttention.forward(
                self, hidden_states, attention_mask, position_bias, output_attentions, **kwargs
            )
            return outputs
        query, key, value = (
            heads_of(project(hidden_states), self.num_attention_heads) for project in (self.q, self.k, self.v)
        )
        # A custom mask may contain any numbers; where it masks, the slots mask.
        added = [part for part in (position_bias, attention_mask) if part is not None]
        attended, weights = slots(
            query,
            key,
            value,
            None if attention_mask is None else allowed_pairs(self.check_pairs(attention_mask, hidden_states)),
            None,
            bias=sum_of(added).to(query.dtype) if added else None,
            dropout=self.dropout.p if self.training else 0.0,
            wants_weights=output_attentions,
        )
        output = self.o(attended.transpose(1, 2).flatten(2))
        return (output,) if weights is None or not output_attentions else (output, weights)
