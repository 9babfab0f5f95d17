"""An LSTM that writes, and attends at each word to what was read (Bahdanau et al. 2015, Luong et al. 2015)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.attention.attend import CHILD_NAME, attend_with_weights
from alignattn.attention.masks import CrossMask, Earlier
from alignattn.attention.values import Identity
from alignattn.models.sequence.hard_attention import BASELINE_KEPT, at_place, drawn_place, entropy, log_of, reinforced
from alignattn.models.sequence.model import SequenceModel, SequenceModelConfig, log_likelihood
from alignattn.models.word_model import Sentences
from alignattn.tasks.sequences import NO_LABEL
from alignattn.utils.errors import AlignAttnError


@strict
class LstmWriterConfig(SequenceModelConfig):
    """The sizes, and how a step attends.

    Args:
        attends_first: whether a step attends by the state before it, and reads what it attended (Bahdanau et al. 2015,
            eqs. 4 to 6); otherwise by its own state (Luong et al. 2015, §3).
        input_feeding: whether a step that attends by its own state reads what the one before attended (Luong et al.
            2015, §3.3).
        hard_attention: whether a step attends to one word, drawn by the weights in training and the one of the largest
            weight otherwise, learned by REINFORCE (Xu et al. 2015, section 4.1); of no value but the plain one.
        reward_weight: λ_r of Xu et al. 2015, of what the drawn words are rewarded with.
        entropy_weight: likewise, of the entropy of the weights.
    """

    attends_first: bool = False
    input_feeding: bool = True
    hard_attention: bool = False
    reward_weight: float = 1.0
    entropy_weight: float = 0.01


class DecoderState(NamedTuple):
    """What the decoder knows between two words.

    Attributes:
        hidden: `[B, d]`, of the LSTM.
        cell: likewise.
        attentional: `[B, d]`, what the last word was made of.
        spent: `[B, 1, 1, n]`, the weight that each word that is read was given so far; of the end, -inf.
        steps: how many words were written.
        log_choice: `[B]`, log p of the place that the last step drew; 0 where none is drawn.
        entropy: `[B]`, of its weights, likewise.
        choices: `[B, T]`, the places to attend to where they are given, and not drawn; None otherwise.
    """

    hidden: Tensor
    cell: Tensor
    attentional: Tensor
    spent: Tensor
    steps: int
    log_choice: Tensor
    entropy: Tensor
    choices: Tensor | None = None


class StepAttention(nn.Module):
    """Attention of one state of a decoder to the words that are read: an `AttentionLayer` of one head.

    Args:
        size: of the states, d.
    """

    num_heads = 1
    has_one_query = True

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
    """What was read.

    Attributes:
        tokens: states `[B, n, d]`.
        mask: `[B, n]` bool, which are real.
        keys: `[B, n, d]`, of the attention's `key_projection`.
        first: `[B, d]`, the decoder's state before the first word.
        spent: `[B, 1, 1, n]`, 0, and -inf for what has no budget.
    """

    tokens: Tensor
    mask: Tensor
    keys: Tensor
    first: Tensor
    spent: Tensor


class LstmWriter(SequenceModel):
    """An LSTM writes, and attends at each word to what was read, which is a subclass's own."""

    config_class = LstmWriterConfig
    config: LstmWriterConfig
    baseline: Tensor

    def __init__(self, config: LstmWriterConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        self.attention = StepAttention(size)
        self.is_fed = config.attends_first or config.input_feeding
        self.decoder = nn.LSTMCell(config.embedding_dim + size * self.is_fed, size)
        self.combination = nn.Linear(2 * size, size)
        self.classifier = nn.Linear(size, config.target_vocab_size)
        self.register_buffer("baseline", torch.zeros(()))

    def told_of(self, memory: Memory, labels: Tensor, choices: Tensor | None) -> Seq2SeqLMOutput:
        """Return how probable right sequences are, as `SequenceModel.forward`, and likewise of hard attention.

        Args:
            memory: what was read.
            labels: `[B, T]`.
            choices: `[B, T]`, of hard attention the places that each step attends to, which are otherwise drawn.

        Returns:
            As `SequenceModel.forward`; of hard attention that is trained, the gradient of the loss is `reinforced`'s.
        """
        if not self.config.hard_attention or not (self.training or choices is not None):
            return self.output_of(self.logits(self.told(labels), memory), labels)
        state, steps = self.begin(memory)._replace(choices=choices), []
        for column in self.told(labels).unbind(dim=1):
            logits, state = self.step(column, state, memory)
            steps.append((logits, state.log_choice, state.entropy))
        logits, log_choice, spread = (torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))
        likelihood, real = log_likelihood(logits, labels), labels != NO_LABEL
        bonus = self.config.entropy_weight * (spread * real).sum(dim=1)
        log_choice = (log_choice * real).sum(dim=1)
        weight = self.config.reward_weight
        loss = reinforced(likelihood, log_choice, self.baseline, reward_weight=weight, bonus=bonus)
        if self.training:
            with torch.no_grad():
                self.baseline.lerp_(likelihood.mean().to(self.baseline.dtype), 1 - BASELINE_KEPT)
        return Seq2SeqLMOutput(loss=loss.mean(), logits=logits)

    def begin(self, memory: Any) -> DecoderState:
        """Return the state before the first word."""
        first = memory.first
        nothing = torch.zeros_like(first)
        return DecoderState(first, nothing, nothing, memory.spent, 0, nothing[:, 0], nothing[:, 0])

    def step(self, tokens: Tensor, state: Any, memory: Any) -> tuple[Tensor, DecoderState]:
        """Return the logits of the next word, `[B, V]`, and the state after it."""
        word = self.dropout(self.vectors(tokens))
        if self.config.attends_first:
            context, weights, drawn = self._attend(state.hidden, state, memory)
            read = torch.cat((word, context), dim=-1)
        else:
            read = torch.cat((word, state.attentional), dim=-1) if self.is_fed else word
        hidden, cell = self.decoder(read, (state.hidden, state.cell))
        if not self.config.attends_first:
            context, weights, drawn = self._attend(hidden, state, memory)
        # Luong et al. 2015, eq. 5.
        attentional = torch.tanh(self.combination(torch.cat((context, hidden), dim=-1)))
        logits = self.classifier(self.dropout(attentional))
        spent, steps = state.spent + weights, state.steps + 1
        return logits, DecoderState(hidden, cell, attentional, spent, steps, *drawn, state.choices)

    def weights_of_words(self, recorded: Sequence[Tensor]) -> Tensor:
        """Return the weights of all steps, `[B, T, n]`; of hard attention 1 at the place that is taken."""
        weights = torch.cat(list(recorded), dim=2)[:, 0]
        return at_place(drawn_place(weights, draws=False), weights) if self.config.hard_attention else weights

    def _attend(
        self, hidden: Tensor, state: DecoderState, memory: Memory
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """What is attended, `[B, d]`, by which weights, and of what was drawn log p and the entropy of the weights."""
        earlier = Earlier(state.steps, state.spent)
        attended, weights = self.attention(hidden, memory.keys, Sentences(memory.tokens, memory.mask), earlier)
        if not self.config.hard_attention:
            return attended, weights, (state.log_choice, state.entropy)
        slots = getattr(self.attention, CHILD_NAME, None)
        if slots is not None and not isinstance(slots.value_slot, Identity):
            raise AlignAttnError("hard_attention takes what is drawn as it is: leave out --value")
        of_places = weights[:, 0, 0]
        if state.choices is None:
            place = drawn_place(of_places.detach(), draws=self.training)
        else:
            place = state.choices[:, state.steps]
        rows = torch.arange(len(place), device=place.device)
        drawn = at_place(place[:, None, None], weights)
        return memory.tokens[rows, place], drawn, (log_of(of_places[rows, place]), entropy(of_places))
