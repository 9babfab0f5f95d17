"""An encoder and a decoder of LSTMs, between them attention (Bahdanau et al. 2015, Luong et al. 2015)."""

from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.attend import attend_with_weights
from alignattn.attention.cross_mask import CrossMask, Earlier
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Recurrent
from alignattn.models.sequences import SequenceModel, SequenceModelConfig
from alignattn.models.word_model import Sentences


@strict
class Seq2SeqLstmConfig(SequenceModelConfig):
    """The sizes; the states of both directions of the encoder are as large as one of the decoder.

    Args:
        attends_first: whether a step attends by the state before it, and reads what it attended (Bahdanau et al. 2015,
            eqs. 4 to 6); otherwise by its own state (Luong et al. 2015, §3).
        input_feeding: whether a step that attends by its own state reads what the one before attended (Luong et al.
            2015, §3.3).
    """

    model_type = MODEL_TYPE_PREFIX + "seq2seq-lstm"

    attends_first: bool = False
    input_feeding: bool = True


class DecoderState(NamedTuple):
    """What the decoder knows between two words.

    Attributes:
        hidden: `[B, d]`, of the LSTM.
        cell: likewise.
        attentional: `[B, d]`, what the last word was made of.
        spent: `[B, 1, 1, n]`, the weight that each word that is read was given so far; of the end, -inf.
        steps: how many words were written.
    """

    hidden: Tensor
    cell: Tensor
    attentional: Tensor
    spent: Tensor
    steps: int


class StepAttention(nn.Module):
    """Attention of one state of a decoder to the words that are read: an `AttentionLayer` of one head.

    Args:
        size: of the states, d.
    """

    num_heads = 1

    def __init__(self, size: int) -> None:
        super().__init__()
        self.query_projection = nn.Linear(size, size, bias=False)
        self.key_projection = nn.Linear(size, size, bias=False)

    def forward(self, state: Tensor, keys: Tensor, memory: Sentences, earlier: Earlier) -> tuple[Tensor, Tensor]:
        """Attend.

        Args:
            state: `[B, d]`.
            keys: `[B, n, d]`, of `key_projection`.
            memory: what is averaged, `[B, n, d]`, and which of it is real.
            earlier: what the steps before this one attended.

        Returns:
            What is attended, `[B, d]`, and the weights, `[B, 1, 1, n]`.
        """
        query = self.query_projection(state)[:, None, None]
        mask = CrossMask(None, memory.mask, earlier)
        attended, weights = attend_with_weights(self, query, keys[:, None], memory.tokens[:, None], mask)
        return attended[:, 0, 0], weights


class Memory(NamedTuple):
    """What is read: states `[B, n, d]`, which are real, `[B, n]`, and their keys `[B, n, d]`."""

    tokens: Tensor
    mask: Tensor
    keys: Tensor


class Seq2SeqLstm(SequenceModel):
    """An LSTM reads in both directions; another writes, and attends at each word to what was read."""

    config_class = Seq2SeqLstmConfig
    config: Seq2SeqLstmConfig

    def __init__(self, config: Seq2SeqLstmConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        if size % 2:
            raise ValueError(f"hidden_dim {size} is odd, and half of it is of each direction")
        self.encoder = Recurrent(config.embedding_dim, size // 2)
        self.bridge = nn.Linear(size // 2, size)
        self.attention = StepAttention(size)
        self.is_fed = config.attends_first or config.input_feeding
        self.decoder = nn.LSTMCell(config.embedding_dim + size * self.is_fed, size)
        self.combination = nn.Linear(2 * size, size)
        self.classifier = nn.Linear(size, config.target_vocab_size)
        self.post_init()  # type: ignore[no-untyped-call]

    def read(self, words: Sentences) -> Any:
        """Return the states of both directions and their keys, as a `Memory`."""
        states = self.encoder(Sentences(self.dropout(self.embedding(words.tokens)), words.mask)).tokens
        states = self.dropout(states)
        return Memory(states, words.mask, self.attention.key_projection(states))

    def begin(self, memory: Any) -> DecoderState:
        """Return the state before the first word, of what the backward direction ends with (Bahdanau et al., A.2.2)."""
        states = memory.tokens
        hidden = torch.tanh(self.bridge(states[:, 0, states.shape[-1] // 2 :]))
        nothing = torch.zeros_like(hidden)
        # The end, which stands last, may be attended ever again: a sink of what is over (Malaviya et al. 2018).
        last = memory.mask.sum(dim=1)[:, None, None, None] - 1
        spent = torch.zeros_like(states[:, None, None, :, 0]).scatter(-1, last, -torch.inf)
        return DecoderState(hidden, nothing, nothing, spent, 0)

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, DecoderState]:
        """Return the logits of the next word, `[B, V]`, and the state after it."""
        word = self.dropout(self.target_embedding(tokens))
        if self.config.attends_first:
            context, weights = self._attend(state.hidden, state, memory)
            read = torch.cat((word, context), dim=-1)
        else:
            read = torch.cat((word, state.attentional), dim=-1) if self.is_fed else word
        hidden, cell = self.decoder(read, (state.hidden, state.cell))
        if not self.config.attends_first:
            context, weights = self._attend(hidden, state, memory)
        # Luong et al. 2015, eq. 5.
        attentional = torch.tanh(self.combination(torch.cat((context, hidden), dim=-1)))
        logits = self.classifier(self.dropout(attentional))
        return logits, DecoderState(hidden, cell, attentional, state.spent + weights, state.steps + 1)

    def _attend(self, hidden: Tensor, state: DecoderState, memory: Memory) -> tuple[Tensor, Tensor]:
        earlier = Earlier(state.steps, state.spent)
        attended: tuple[Tensor, Tensor] = self.attention(
            hidden, memory.keys, Sentences(memory.tokens, memory.mask), earlier
        )
        return attended
