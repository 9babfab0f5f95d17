"""LSTM decoders that attend to the input at each word (Bahdanau et al. 2015, Luong et al. 2015)."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.attention.attend import CHILD_NAME, attend_with_weights
from alignattn.attention.choices import PREDICTIVE
from alignattn.attention.masks import CrossMask, Earlier
from alignattn.attention.values import Identity
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.layers import Recurrent
from alignattn.models.sequence.model import SequenceModel, SequenceModelConfig, log_likelihood
from alignattn.models.word_model import Sentences
from alignattn.tasks.sequence_to_sequence import NO_LABEL
from alignattn.utils.errors import AlignAttnError

BASELINE_DECAY = 0.9
"""Decay of the moving average of the likelihood, the baseline of REINFORCE."""


@strict
class LstmGeneratorConfig(SequenceModelConfig):
    """The sizes, and how a step attends.

    Args:
        attends_first: whether the query of a step is the previous state, and the step reads the attended context
            (Bahdanau et al. 2015, eqs. 4 to 6); otherwise the query is the step's own state (Luong et al. 2015, §3).
        input_feeding: whether a step whose query is its own state also reads the attentional state of the previous
            step (Luong et al. 2015, §3.3).
        hard_attention: whether a step attends to one word: in training sampled by the weights, otherwise the word with
            the largest weight. Learned by REINFORCE (Xu et al. 2015, §4.1); only with the plain value.
        reward_weight: weight of the reward of the sampled words, λ_r of Xu et al. 2015.
        entropy_weight: weight of the entropy of the attention weights.
    """

    attends_first: bool = False
    input_feeding: bool = True
    hard_attention: bool = False
    reward_weight: float = 1.0
    entropy_weight: float = 0.01


class DecoderState(NamedTuple):
    """The decoder between two words.

    Attributes:
        hidden: `[B, d]`, hidden state of the LSTM.
        cell: `[B, d]`, cell state of the LSTM.
        attentional: `[B, d]`, the state that predicted the last word.
        spent: `[B, 1, 1, n]`, the sum of the weights of each input word so far; -inf for the end.
        steps: number of generated words.
        log_choice: `[B]`, log p of the place that the last step attended to; 0 without hard attention.
        entropy: `[B]`, entropy of the last step's weights; 0 without hard attention.
        choices: `[B, T]`, places to attend to instead of sampled ones, or None.
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
    """Attention of one decoder state of size d to the input: an `AttentionLayer` of one head."""

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
            keys: `[B, n, d]`, the output of `key_projection`.
            memory: the values, `[B, n, d]`, and the mask of real ones.
            earlier: the attention of earlier steps.

        Returns:
            The weighted mean, `[B, d]`, and the weights, `[B, 1, 1, n]`.
        """
        query = self.query_projection(state)[:, None, None]
        mask = CrossMask(None, memory.mask, earlier)
        attended, weights = attend_with_weights(self, query, keys[:, None], memory.tokens[:, None], mask)
        return attended[:, 0, 0], weights


class Memory(NamedTuple):
    """The encoded input.

    Attributes:
        tokens: states `[B, n, d]`.
        mask: `[B, n]` bool, True = a real one.
        keys: `[B, n, d]`, the output of the attention's `key_projection`.
        first: `[B, d]`, the decoder's state before the first word.
        spent: `[B, 1, 1, n]`, 0, and -inf for words without a budget.
    """

    tokens: Tensor
    mask: Tensor
    keys: Tensor
    first: Tensor
    spent: Tensor


class LstmGenerator(SequenceModel):
    """An LSTM decoder that attends to the input at each word; a subclass encodes the input."""

    config_class = LstmGeneratorConfig
    config: LstmGeneratorConfig
    baseline: Tensor

    def __init__(self, config: LstmGeneratorConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        self.attention = StepAttention(size)
        self.is_fed = config.attends_first or config.input_feeding
        self.decoder = nn.LSTMCell(config.embedding_dim + size * self.is_fed, size)
        self.combination = nn.Linear(2 * size, size)
        self.classifier = nn.Linear(size, config.target_vocab_size)
        self.register_buffer("baseline", torch.zeros(()))

    def forward_from(self, memory: Memory, labels: Tensor, choices: Tensor | None) -> Seq2SeqLMOutput:
        """Return the output of `SequenceModel.forward`, also for hard attention.

        Args:
            memory: the encoded input.
            labels: `[B, T]`.
            choices: `[B, T]`, the places that the steps of hard attention attend to; sampled if None.

        Returns:
            As `SequenceModel.forward`; in training with hard attention the gradient of the loss is `reinforce_loss`'s.
        """
        if not self.config.hard_attention or not (self.training or choices is not None):
            return self.output_of(self.logits(self.shifted(labels), memory), labels)
        state, steps = self.begin(memory)._replace(choices=choices), []
        for column in self.shifted(labels).unbind(dim=1):
            logits, state = self.step(column, state, memory)
            steps.append((logits, state.log_choice, state.entropy))
        logits, log_choice, spread = (torch.stack(parts, dim=1) for parts in zip(*steps, strict=True))
        likelihood, real = log_likelihood(logits, labels), labels != NO_LABEL
        bonus = self.config.entropy_weight * (spread * real).sum(dim=1)
        log_choice = (log_choice * real).sum(dim=1)
        weight = self.config.reward_weight
        loss = reinforce_loss(likelihood, log_choice, self.baseline, reward_weight=weight, bonus=bonus)
        if self.training:
            with torch.no_grad():
                self.baseline.lerp_(likelihood.mean().to(self.baseline.dtype), 1 - BASELINE_DECAY)
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
            context, weights, sampled = self._attend(state.hidden, state, memory)
            read = torch.cat((word, context), dim=-1)
        else:
            read = torch.cat((word, state.attentional), dim=-1) if self.is_fed else word
        hidden, cell = self.decoder(read, (state.hidden, state.cell))
        if not self.config.attends_first:
            context, weights, sampled = self._attend(hidden, state, memory)
        # Luong et al. 2015, eq. 5.
        attentional = torch.tanh(self.combination(torch.cat((context, hidden), dim=-1)))
        logits = self.classifier(self.dropout(attentional))
        spent, steps = state.spent + weights, state.steps + 1
        return logits, DecoderState(hidden, cell, attentional, spent, steps, *sampled, state.choices)

    def weights_of_words(self, recorded: Sequence[Tensor]) -> Tensor:
        """Return the weights of all steps, `[B, T, n]`; for hard attention 1 at the chosen place."""
        weights = torch.cat(list(recorded), dim=2)[:, 0]
        return one_hot(choose_place(weights, samples=False), weights) if self.config.hard_attention else weights

    def _attend(
        self, hidden: Tensor, state: DecoderState, memory: Memory
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        """The context, `[B, d]`, the weights, and log p and entropy of a sampled place."""
        earlier = Earlier(state.steps, state.spent)
        attended, weights = self.attention(hidden, memory.keys, Sentences(memory.tokens, memory.mask), earlier)
        if not self.config.hard_attention:
            return attended, weights, (state.log_choice, state.entropy)
        slots = getattr(self.attention, CHILD_NAME, None)
        if slots is not None and not isinstance(slots.value_slot, Identity):
            raise AlignAttnError("hard_attention allows no value: leave --value out")
        if slots is not None and slots.config.choices["normalizer"].counts_positions:
            raise AlignAttnError(
                "hard_attention needs a word to attend to at each step, and the window of normalizer "
                f"{slots.config.normalizer!r} may hold none: set kind={PREDICTIVE!r}, or choose another normalizer"
            )
        # Places are drawn by shares; the rows of a predictive window sum to less than 1.
        place_weights = weights[:, 0, 0] / weights[:, 0, 0].sum(dim=-1, keepdim=True)
        if state.choices is None:
            place = choose_place(place_weights.detach(), samples=self.training)
        else:
            place = state.choices[:, state.steps]
        rows = torch.arange(len(place), device=place.device)
        chosen = one_hot(place[:, None, None], weights)
        log_choice, entropy = safe_log(place_weights[rows, place]), -(place_weights * safe_log(place_weights)).sum(-1)
        return memory.tokens[rows, place], chosen, (log_choice, entropy)


def choose_place(weights: Tensor, *, samples: bool) -> Tensor:
    """Return one place per row, `[B]`: sampled by weights `[B, n]`, or the place of the largest weight."""
    return torch.multinomial(weights, 1)[:, 0] if samples else weights.argmax(dim=-1)


def one_hot(place: Tensor, weights: Tensor) -> Tensor:
    """Return 1 at a place `[…]` and 0 elsewhere, like weights `[…, n]`."""
    return nn.functional.one_hot(place, weights.shape[-1]).to(weights)


def safe_log(weights: Tensor) -> Tensor:
    """Return the logarithm of weights, finite and without a gradient where a weight is 0."""
    return weights.clamp(min=torch.finfo(weights.dtype).tiny).log()


def reinforce_loss(
    log_likelihood: Tensor,
    log_choice: Tensor,
    baseline: Tensor,
    *,
    reward_weight: float = 1.0,
    bonus: Tensor | float = 0.0,
) -> Tensor:
    """Return -log p(y | s), whose gradient is that of its expectation over the sampled places s.

    The gradient is -[∂ log p(y | s) + λ (log p(y | s) - b) ∂ log p(s) + ∂ bonus] (Xu et al. 2015, §4.1), whose mean
    over s with λ = 1 is the gradient of -Σ p(s) log p(y | s), whatever the baseline b.

    Args:
        log_likelihood: log p(y | s), `[B]`.
        log_choice: log p(s), `[B]`, the sum over the places of a row.
        baseline: b, a scalar.
        reward_weight: λ.
        bonus: a term added only for its gradient, `[B]`: the weighted entropy.
    """
    advantage = (log_likelihood - baseline).detach()
    surrogate = reward_weight * advantage * log_choice + bonus
    return -log_likelihood - (surrogate - surrogate.detach())


@strict
class Seq2SeqLstmConfig(LstmGeneratorConfig):
    """The sizes; each direction of the encoder has half the size of the decoder."""

    model_type = MODEL_TYPE_PREFIX + "seq2seq-lstm"


class Seq2SeqLstm(LstmGenerator):
    """A bidirectional LSTM encoder, and an LSTM decoder that attends to it at each word."""

    config_class = Seq2SeqLstmConfig
    config: Seq2SeqLstmConfig

    def __init__(self, config: Seq2SeqLstmConfig) -> None:
        super().__init__(config)
        size = config.hidden_dim
        if size % 2:
            raise ValueError(f"hidden_dim {size} must be even, because each direction has half of it")
        self.encoder = Recurrent(config.embedding_dim, size // 2)
        self.bridge = nn.Linear(size // 2, size)
        self.post_init()  # type: ignore[no-untyped-call]

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        labels: Tensor,
        attention_mask: Tensor | None = None,
        choices: Tensor | None = None,
    ) -> Seq2SeqLMOutput:
        """Compute the loss and logits of target sequences; see `SequenceModel.forward` and `forward_from`."""
        return self.forward_from(self.read_ids(input_ids, attention_mask), labels, choices)

    def read(self, words: Sentences) -> Memory:
        """Return the states of both directions; the first state is the backward one's last (Bahdanau, A.2.2)."""
        mask = words.mask
        states = self.encoder(Sentences(self.dropout(self.embedding(words.tokens)), mask)).tokens
        states = self.dropout(states)
        first = torch.tanh(self.bridge(states[:, 0, states.shape[-1] // 2 :]))
        # The end, which is last, has no budget: it is a sink for the remaining weight (Malaviya et al. 2018).
        last = mask.sum(dim=1)[:, None, None, None] - 1
        spent = torch.zeros_like(states[:, None, None, :, 0]).scatter(-1, last, -torch.inf)
        return Memory(states, mask, self.attention.key_projection(states), first, spent)
