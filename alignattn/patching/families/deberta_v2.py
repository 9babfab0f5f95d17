"""DeBERTa-v2 and v3 (He et al. 2021): disentangled attention, whose scores include terms of relative positions."""

from typing import Any

from torch import Tensor
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

from alignattn.attention.attend import CHILD_NAME
from alignattn.patching.families.slotted import SlottedAttention, heads_of


class SlottedDisentangledSelfAttention(SlottedAttention, DisentangledSelfAttention):
    """Disentangled self-attention with slots: N normalises the sum of S(Q, K) and the model's own position terms.

    In DeBERTa-v3 these terms, content to position and position to content, come from the same projections of queries
    and keys, which are called again on embeddings of positions.
    """

    plain_class = DisentangledSelfAttention

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend `[B, n, hidden]`, with arguments and results of the model's own forward."""
        slots: Any = self._modules.get(CHILD_NAME)
        if slots is None:  # a hook around the forward outlived `unpatch`
            output: tuple[Tensor, Tensor | None] = DisentangledSelfAttention.forward(
                self, hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
            )
            return output
        asking = hidden_states if query_states is None else query_states
        query, key, value = (
            heads_of(project(states), self.num_attention_heads)
            for project, states in (
                (self.query_proj, asking),
                (self.key_proj, hidden_states),
                (self.value_proj, hidden_states),
            )
        )
        parts = 1 + ("c2p" in self.pos_att_type) + ("p2c" in self.pos_att_type)
        attended, weights = slots(
            query,
            key,
            value,
            self.check_pairs(attention_mask, hidden_states).bool(),
            None,
            bias=self._bias(query, key, relative_pos, rel_embeddings, parts) if self.relative_attention else None,
            scale=(query.shape[-1] * parts) ** -0.5,
            dropout=self.dropout.p if self.training else 0.0,
            wants_weights=output_attentions,
        )
        return attended.transpose(1, 2).flatten(2), weights if output_attentions else None

    def _bias(
        self, query: Tensor, key: Tensor, relative_pos: Tensor | None, rel_embeddings: Tensor | None, parts: int
    ) -> Tensor | None:
        """Return the bias of the scores, `[B, H, n, n]`; None without one."""
        positions = self.pos_dropout(rel_embeddings)
        bias: Any = self.disentangled_attention_bias(  # type: ignore[no-untyped-call]
            query.flatten(0, 1), key.flatten(0, 1), relative_pos, positions, parts
        )
        # Without position terms the model's own function returns the number 0.
        return bias.unflatten(0, query.shape[:2]) if isinstance(bias, Tensor) else None
