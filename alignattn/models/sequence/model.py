"""The base of models that generate sequences: vocabulary, loss, greedy decoding and beam search."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.models.build import BuildContext, BuiltModel, EmbeddingsReport, build_model, checked_fields
from alignattn.models.word_model import Sentences, WordModel, WordModelConfig, take_words
from alignattn.models.words import MAX_LENGTH, MAX_WORDS
from alignattn.tasks import SequenceToSequence
from alignattn.tasks.sequence_to_sequence import BEGIN, END, NO_LABEL, PADDING, SPECIAL, UNKNOWN, Units, units_of

State = tuple[Any, ...]
"""A decoder's state: tensors `[B, …]`, and entries that all rows share."""

Step = Callable[[Tensor, State], tuple[Tensor, State]]
"""Maps the last tokens, `[B]`, and a state to the logits of the next tokens, `[B, V]`, and the next state."""


@dataclass(frozen=True)
class Limits:
    """Where generated sequences begin and end.

    Attributes:
        begin: the token before the first.
        end: the token of the end.
        padding: the token after the end.
        longest: the maximum number of tokens, the end included.
    """

    begin: int
    end: int
    padding: int
    longest: int


def take_rows(state: State, rows: Tensor) -> State:
    """Return rows of a state, given their numbers `[B']`."""
    parts = (part[rows] if isinstance(part, Tensor) else part for part in state)
    return type(state)._make(parts) if hasattr(state, "_make") else tuple(parts)


def greedy(step: Step, state: State, size: int, limits: Limits, device: torch.device) -> tuple[Tensor, Tensor]:
    """Generate the most probable token at each step.

    Args:
        step: the decoder's step.
        state: the state before the first token.
        size: the number of rows B.
        limits: begin, end and maximum length.
        device: the device of the tokens.

    Returns:
        The tokens, `[B, n]`, and the logarithm of their probability, `[B]`.
    """
    tokens = torch.full((size,), limits.begin, device=device)
    done = torch.zeros(size, dtype=torch.bool, device=device)
    total: Tensor | None = None
    generated = []
    for _ in range(limits.longest):
        logits, state = step(tokens, state)
        best, tokens = logits.log_softmax(dim=-1).max(dim=-1)
        total = best.masked_fill(done, 0) + (0 if total is None else total)
        tokens = tokens.masked_fill(done, limits.padding)
        generated.append(tokens)
        done = done | (tokens == limits.end)
        if done.all():
            break
    assert total is not None
    return torch.stack(generated, dim=1), total


def beam_search(
    step: Step, state: State, size: int, limits: Limits, device: torch.device, beams: int
) -> tuple[Tensor, Tensor]:
    """Generate the most probable sequence that a beam of `beams` prefixes finds; one beam equals `greedy`.

    A finished sequence stays in the beam as long as at most `beams - 1` are more probable. There is no length bonus:
    the search is for the most probable sequence. Other arguments and the results are those of `greedy`.
    """
    first = torch.arange(size, device=device)[:, None] * beams
    state = take_rows(state, torch.arange(size, device=device).repeat_interleave(beams))
    generated = torch.empty(size * beams, 0, dtype=torch.long, device=device)
    tokens = torch.full((size * beams,), limits.begin, device=device)
    done = torch.zeros(size * beams, dtype=torch.bool, device=device)
    total: Tensor | None = None
    for _ in range(limits.longest):
        logits, state = step(tokens, state)
        gains = logits.log_softmax(dim=-1)
        if total is None:
            # All beams are the same prefix, so only one of them continues.
            total = torch.full((size, beams), -torch.inf, dtype=gains.dtype, device=device)
            total[:, 0] = 0
        # The only continuation of a finished sequence is itself.
        ended = torch.full_like(gains[0], -torch.inf)
        ended[limits.padding] = 0
        gains = torch.where(done[:, None], ended, gains)
        sums = (total[:, :, None] + gains.unflatten(0, (size, beams))).flatten(1)
        total, places = sums.topk(beams, dim=1)
        origin = (first + places // gains.shape[1]).flatten()
        tokens = (places % gains.shape[1]).flatten()
        state = take_rows(state, origin)
        generated = torch.cat((generated[origin], tokens[:, None]), dim=1)
        done = done[origin] | (tokens == limits.end)
        if done.all():
            break
    assert total is not None
    return generated[first.flatten()], total[:, 0]


@strict
class SequenceModelConfig(WordModelConfig):
    """The sizes of a model that generates.

    Args:
        target_vocab_size: the number of words that can be generated, the first of the vocabulary.
        bos_token_id: the token before the first generated word.
        eos_token_id: the token of the end.
        longest_output: the maximum number of generated words, the end included.
    """

    vocab_size: int = len(SPECIAL)
    embedding_dim: int = 128
    hidden_dim: int = 256
    dropout: float = 0.2
    target_vocab_size: int = len(SPECIAL)
    bos_token_id: int = SPECIAL.index(BEGIN)
    eos_token_id: int = SPECIAL.index(END)
    longest_output: int = 128


class SequenceModel(WordModel):
    """Reads a sequence and generates another word by word; trained by teacher forcing."""

    auto_class: ClassVar[type[Any]] = AutoModelForSeq2SeqLM
    config_class = SequenceModelConfig
    config: SequenceModelConfig
    reads_words: ClassVar[bool] = True
    """Whether the input is words; otherwise only the generated words have vectors."""
    loss_is_of_rows: ClassVar[bool] = True
    """Read by the Trainer to accumulate batches."""

    def __init__(self, config: SequenceModelConfig) -> None:
        super().__init__(config)
        if self.reads_words:
            self.target_embedding = nn.Embedding(
                config.target_vocab_size, config.embedding_dim, padding_idx=config.pad_token_id
            )
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of both sides of the rows."""
        task, fields = context.task, checked_fields(context.config_fields, cls.config_class)
        assert isinstance(task, SequenceToSequence)
        sources = [units_of(text, task.source_units) for text in context.rows[task.source_column]]
        targets = [units_of(texts[0], task.target_units) for texts in context.rows[task.target_column]]
        tokenizer, target_words = build_sequence_tokenizer(sources, targets, task.source_units)
        fields = {"longest_output": longest_output(targets)} | fields
        fields |= {"vocab_size": len(tokenizer), "target_vocab_size": target_words}
        report = EmbeddingsReport(None, len(tokenizer) - len(SPECIAL), 0)
        return BuiltModel(build_model(cls, fields, context.seed), tokenizer, report)

    def vectors(self, tokens: Tensor) -> Tensor:
        """Return the vectors of generated words, `[…, embedding_dim]` of `[…]`."""
        table: nn.Embedding = self.target_embedding if self.reads_words else self.embedding
        vectors: Tensor = table(tokens)
        return vectors

    def read(self, words: Sentences) -> Any:
        """Return the memory of input words `[B, n]`: a named tuple of tensors `[B, …]`, the first `[B, n, d]`."""
        raise NotImplementedError

    @abstractmethod
    def begin(self, memory: Any) -> State:
        """Return the decoder's first state."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State, memory: Any) -> tuple[Tensor, State]:
        """Return the logits of the next word, `[B, V]`, and the next state, given the last words, `[B]`."""

    @abstractmethod
    def weights_of_words(self, recorded: Sequence[Tensor]) -> Tensor:
        """Return the attention of each generated word to the input, `[B, T, n]`.

        Args:
            recorded: the weights of a forward's attention calls to the input, as `collect` returns them.
        """

    def logits(self, tokens: Tensor, memory: Any) -> Tensor:
        """Return the logits of the word after each of the target words, `[B, T, V]` of `[B, T]`."""
        state, logits = self.begin(memory), []
        for column in tokens.unbind(dim=1):
            step_logits, state = self.step(column, state, memory)
            logits.append(step_logits)
        return torch.stack(logits, dim=1)

    def read_ids(self, input_ids: Tensor, attention_mask: Tensor | None) -> Any:
        """Return `read` of the real words."""
        words = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        # An empty text is read as one word of padding.
        words.mask[:, 0] = True
        return self.read(words)

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Seq2SeqLMOutput:
        """Compute the loss and logits of target sequences.

        Args:
            input_ids: `[B, n]`, the input.
            labels: `[B, T]`, the target words and the end, padded by -100.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.

        Returns:
            `logits` `[B, T, V]` of each next word, and `loss`, the mean over rows of a sequence's negative
            log-likelihood.
        """
        memory = self.read_ids(input_ids, attention_mask)
        return self.output_of(self.logits(self.shifted(labels), memory), labels)

    @staticmethod
    def output_of(logits: Tensor, labels: Tensor) -> Seq2SeqLMOutput:
        """Return the output for logits `[B, T, V]` and labels `[B, T]`."""
        return Seq2SeqLMOutput(loss=-log_likelihood(logits, labels).mean(), logits=logits)

    def shifted(self, labels: Tensor) -> Tensor:
        """Return the word before each label, `[B, T]`, padded where there is no label; the first is the beginning."""
        before = F.pad(labels[:, :-1], (1, 0), value=self.config.bos_token_id)
        # At the first padding, the word before it is the end, which an alignment would count.
        known = before.masked_fill((before == NO_LABEL) | (labels == NO_LABEL), self.config.pad_token_id)
        # A word that is in no training target has no number among the target words.
        return known.masked_fill(known >= self.config.target_vocab_size, SPECIAL.index(UNKNOWN))

    @torch.no_grad()
    def generate(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        num_beams: int = 1,
        max_length: int | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Generate sequences.

        Args:
            input_ids: `[B, n]`, the input.
            attention_mask: as for `forward`.
            num_beams: beams of the search; greedy decoding for 1.
            max_length: the maximum number of words, if it is less than the config's `longest_output`.

        Returns:
            The words, `[B, T]`, padded after their end, and the logarithm of the probability of each row, `[B]`.
        """
        return self.generate_from(self.read_ids(input_ids, attention_mask), num_beams, max_length)

    def generate_from(self, memory: Any, num_beams: int, max_length: int | None = None) -> tuple[Tensor, Tensor]:
        """Generate as `generate` does, from the memory that `read` returned."""
        config, device, size = self.config, memory[0].device, len(memory[0])
        state = self.begin(memory)
        memory = type(memory)._make(part.repeat_interleave(num_beams, dim=0) for part in memory)
        never = torch.tensor([SPECIAL.index(token) for token in (PADDING, UNKNOWN, BEGIN)], device=device)

        def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = self.step(tokens, state, memory)
            return logits.index_fill(-1, never, torch.finfo(logits.dtype).min), state

        longest = min(config.longest_output, max_length or config.longest_output)
        limits = Limits(config.bos_token_id, config.eos_token_id, config.pad_token_id, longest)
        start = state, size, limits, device
        return greedy(step, *start) if num_beams == 1 else beam_search(step, *start, num_beams)


def longest_output(targets: Iterable[Sequence[str]]) -> int:
    """Return the maximum number of generated words: 1.5 times the longest target, and the end."""
    longest = max(map(len, targets))
    return longest + longest // 2 + 1


def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log p(y) of sequences, `[B]`, the sum over words; `logits` `[B, T, V]`, `labels` `[B, T]`, -100 = none."""
    # A word that cannot be generated counts as unknown.
    known = labels.masked_fill(labels >= logits.shape[-1], SPECIAL.index(UNKNOWN))
    return -F.cross_entropy(logits.mT, known, ignore_index=NO_LABEL, reduction="none").sum(dim=1)


def build_sequence_tokenizer(
    sources: Iterable[Sequence[str]], targets: Iterable[Sequence[str]], units: Units
) -> tuple[PreTrainedTokenizerFast, int]:
    """Return a tokenizer of source texts, which adds the end, and the number of words that can be generated.

    The words that can be generated come first in the vocabulary, after `SPECIAL`, by frequency.

    Args:
        sources: each source text as a sequence of units.
        targets: each target text as a sequence of units.
        units: what the units of the source texts are.
    """
    by_frequency = []
    for side in (targets, sources):
        counts = Counter(unit for text in side for unit in text if unit not in SPECIAL)
        # Ties are broken by the word: not every run reads rows in the same order.
        by_frequency.append([unit for unit, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))])
    target_words, source_words = (side[:MAX_WORDS] for side in by_frequency)
    # A dict keeps the order, and each word once.
    words = list(dict.fromkeys([*SPECIAL, *target_words, *source_words]))
    tokenizer = Tokenizer(models.WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.NFC()
    split: Any = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.pre_tokenizer = split if units == "characters" else pre_tokenizers.WhitespaceSplit()
    ends = [(END, words.index(END))]
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {END}", special_tokens=ends)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=UNKNOWN,
        pad_token=PADDING,
        bos_token=BEGIN,
        eos_token=END,
        model_max_length=MAX_LENGTH,
        model_input_names=["input_ids", "attention_mask"],
    )
    return fast, len(SPECIAL) + len(target_words)
