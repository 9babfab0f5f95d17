"""A Transformer's encoder and decoder (Vaswani et al. 2017)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.masks import CrossMask
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.layers import GuidedAttentionUnit, TransformerEncoder, WordProjection
from alignattn.models.sequence.model import SequenceModel, SequenceModelConfig
from alignattn.models.word_model import Sentences


@strict
class Seq2SeqTransformerConfig(SequenceModelConfig):
    """The sizes, which are ours.

    Args:
        num_attention_heads: heads of each attention.
        num_hidden_layers: layers of the encoder, and of the decoder.
    """

    model_type = MODEL_TYPE_PREFIX + "seq2seq-transformer"

    dropout: float = 0.1
    num_attention_heads: int = 4
    num_hidden_layers: int = 2


class Prefix(NamedTuple):
    """The words so far, `[B, t]`, to which each step attends."""

    tokens: Tensor


class Seq2SeqTransformer(SequenceModel):
    """A Transformer encoder, and a decoder that attends to the words so far and to the input."""

    config_class = Seq2SeqTransformerConfig
    config: Seq2SeqTransformerConfig

    def __init__(self, config: Seq2SeqTransformerConfig) -> None:
        super().__init__(config)
        size, sizes = config.hidden_dim, (config.num_attention_heads, config.num_hidden_layers, config.dropout)
        self.encoder = TransformerEncoder(config.embedding_dim, size, *sizes)
        self.projection = WordProjection(config.embedding_dim, size)
        units = (size, config.num_attention_heads, config.dropout)
        self.decoder = nn.ModuleList(GuidedAttentionUnit(*units) for _ in range(config.num_hidden_layers))
        self.classifier = nn.Linear(size, config.target_vocab_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def read(self, words: Sentences) -> Sentences:
        """Return the states of the input words."""
        return self.encoder(Sentences(self.embedding(words.tokens), words.mask))

    def begin(self, memory: Any) -> Prefix:
        """Return an empty prefix."""
        return Prefix(torch.empty(len(memory.mask), 0, dtype=torch.long, device=memory.mask.device))

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, Prefix]:
        """Return the logits of the next word, `[B, V]`, and all words so far."""
        prefix = torch.cat((state.tokens, tokens[:, None]), dim=1)
        return self.logits(prefix, memory)[:, -1], Prefix(prefix)

    def logits(self, tokens: Tensor, memory: Any) -> Tensor:
        """Return the logits of the word after each of the target words, `[B, T, V]` of `[B, T]`."""
        states = self.dropout(self.projection(self.target_embedding(tokens)))
        real = tokens != self.config.pad_token_id
        earlier = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool, device=tokens.device).tril()
        pairs, across = earlier & real[:, None, None, :], CrossMask(real, memory.mask)
        for unit in self.decoder:
            states = unit(states, pairs, memory.tokens, across)
        logits: Tensor = self.classifier(states)
        return logits

    def weights_of_words(self, recorded: Sequence[Tensor]) -> Tensor:
        """Return the weights of the last call, averaged over heads, `[B, T, n]`."""
        return recorded[-1].mean(dim=1)
