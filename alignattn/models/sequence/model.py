"""What the models share that read one sequence and write another: both vocabularies, the loss, writing."""

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSeq2SeqLM, PreTrainedTokenizerFast
from transformers.modeling_outputs import Seq2SeqLMOutput

from alignattn.models.build import BuildContext, BuiltModel, EmbeddingsReport, build_model, checked_fields
from alignattn.models.sequence.decoding import Limits, State, beam_search, greedy
from alignattn.models.word_model import Sentences, WordModel, WordModelConfig, take_words
from alignattn.models.words import MAX_LENGTH, MAX_WORDS
from alignattn.tasks import SequenceToSequence
from alignattn.tasks.sequences import BEGIN, END, NO_LABEL, PADDING, SPECIAL, UNKNOWN, units_of
from alignattn.tasks.task_types import Units


@strict
class SequenceModelConfig(WordModelConfig):
    """The sizes of a model that writes.

    Args:
        target_vocab_size: how many of the words, the first ones, can be written.
        bos_token_id: what stands before the first word that is written.
        eos_token_id: what ends a sequence.
        longest_output: words written at most, the end one of them.
    """

    embedding_dim: int = 128
    hidden_dim: int = 256
    dropout: float = 0.2
    target_vocab_size: int = len(SPECIAL)
    bos_token_id: int = SPECIAL.index(BEGIN)
    eos_token_id: int = SPECIAL.index(END)
    longest_output: int = 128


class SequenceModel(WordModel):
    """Reads a sequence, and writes another word by word, of which each is told those before it."""

    auto_class: ClassVar[type[Any]] = AutoModelForSeq2SeqLM
    config_class = SequenceModelConfig
    config: SequenceModelConfig
    reads_words: ClassVar[bool] = True
    """Whether it reads words; one that does not has a single table of vectors, of those that are written."""
    loss_is_of_rows: ClassVar[bool] = True
    """What a Trainer asks that puts a step together of several batches."""

    def __init__(self, config: SequenceModelConfig) -> None:
        super().__init__(config)
        if self.reads_words:
            self.target_embedding = nn.Embedding(
                config.target_vocab_size, config.embedding_dim, padding_idx=config.pad_token_id
            )
        self.dropout = nn.Dropout(config.dropout)

    @classmethod
    def build(cls, material: BuildContext) -> BuiltModel:
        """Return an untrained model for the words of both sides of the rows."""
        task, fields = material.task, checked_fields(material.config_fields, cls.config_class)
        assert isinstance(task, SequenceToSequence)
        sources = [units_of(text, task.source_units) for text in material.rows[task.source_column]]
        targets = [units_of(texts[0], task.target_units) for texts in material.rows[task.target_column]]
        tokenizer, written = build_sequence_tokenizer(sources, targets, task.source_units)
        fields = {"longest_output": longest_of(targets)} | fields
        fields |= {"vocab_size": len(tokenizer), "target_vocab_size": written}
        model = build_model(cls, fields, material.seed)
        words = len(tokenizer) - len(SPECIAL)
        return BuiltModel(model, tokenizer, EmbeddingsReport(None, words, 0))

    def vectors(self, tokens: Tensor) -> Tensor:
        """Return the vectors of words that were written, `[…, embedding_dim]` of `[…]`."""
        table: nn.Embedding = self.target_embedding if self.reads_words else self.embedding
        vectors: Tensor = table(tokens)
        return vectors

    def read(self, words: Sentences) -> Any:
        """Return what is attended of the words `[B, n]` that are read: tensors `[B, …]`, the first `[B, n, d]`."""
        raise NotImplementedError

    @abstractmethod
    def begin(self, memory: Any) -> State:
        """Return what the decoder knows before it writes."""

    @abstractmethod
    def step(self, tokens: Tensor, state: State, memory: Any) -> tuple[Tensor, State]:
        """Return the logits of the next word, `[B, V]`, and what is known then, given the last words, `[B]`."""

    @abstractmethod
    def weights_of_words(self, recorded: Sequence[Tensor]) -> Tensor:
        """Return by what weights each written word attended to those that were read, `[B, T, n]`.

        Args:
            recorded: the weights of all calls of attention of a forward, as `collect` gives them.
        """

    def logits(self, tokens: Tensor, memory: Any) -> Tensor:
        """Return the logits of the word after each of the right ones, `[B, T, V]` of `[B, T]`."""
        state, logits = self.begin(memory), []
        for column in tokens.unbind(dim=1):
            of_step, state = self.step(column, state, memory)
            logits.append(of_step)
        return torch.stack(logits, dim=1)

    def read_ids(self, input_ids: Tensor, attention_mask: Tensor | None) -> Any:
        """Return `read` of the words that are real."""
        words = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        # An empty text is read as one word of padding.
        words.mask[:, 0] = True
        return self.read(words)

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
    def forward(self, input_ids: Tensor, labels: Tensor, attention_mask: Tensor | None = None) -> Seq2SeqLMOutput:
        """Tell how probable right sequences are.

        Args:
            input_ids: `[B, n]`, what is read.
            labels: `[B, T]`, what is to be written, with the end; -100 fills up.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.

        Returns:
            `logits` `[B, T, V]`, each of the word that the ones before it are followed by; and `loss`, the negative
            logarithm of the probability of a sequence, its mean over the rows.
        """
        memory = self.read_ids(input_ids, attention_mask)
        return self.output_of(self.logits(self.told(labels), memory), labels)

    @staticmethod
    def output_of(logits: Tensor, labels: Tensor) -> Seq2SeqLMOutput:
        """Return the output for logits `[B, T, V]` and labels `[B, T]`."""
        return Seq2SeqLMOutput(loss=-log_likelihood(logits, labels).mean(), logits=logits)

    def told(self, labels: Tensor) -> Tensor:
        """Return the words before each label, `[B, T]`: the first is the beginning."""
        before = F.pad(labels[:, :-1], (1, 0), value=self.config.bos_token_id)
        known = before.masked_fill(before == NO_LABEL, self.config.pad_token_id)
        # What no training row wrote has no number among the words to write.
        return known.masked_fill(known >= self.config.target_vocab_size, SPECIAL.index(UNKNOWN))

    @torch.no_grad()
    def write(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, *, num_beams: int = 1, most: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Write sequences.

        Args:
            input_ids: `[B, n]`, what is read.
            attention_mask: as for `forward`.
            num_beams: beginnings that are followed at a time; of 1 the likeliest word is written each time.
            most: words, where that is less than the config's `longest_output`.

        Returns:
            The words, `[B, T]`, each row up to its end and filled up behind it; and the logarithm of the probability of
            each row, `[B]`.
        """
        return self.write_of(self.read_ids(input_ids, attention_mask), num_beams, most)

    def write_of(self, memory: Any, num_beams: int, most: int | None = None) -> tuple[Tensor, Tensor]:
        """Write as `write` does, of what `read` returned."""
        config, device, size = self.config, memory[0].device, len(memory[0])
        state = self.begin(memory)
        memory = type(memory)._make(part.repeat_interleave(num_beams, dim=0) for part in memory)
        never = torch.tensor([SPECIAL.index(token) for token in (PADDING, UNKNOWN, BEGIN)], device=device)

        def step(tokens: Tensor, state: State) -> tuple[Tensor, State]:
            logits, state = self.step(tokens, state, memory)
            return logits.index_fill(-1, never, torch.finfo(logits.dtype).min), state

        longest = min(config.longest_output, most or config.longest_output)
        limits = Limits(config.bos_token_id, config.eos_token_id, config.pad_token_id, longest)
        start = state, size, limits, device
        return greedy(step, *start) if num_beams == 1 else beam_search(step, *start, num_beams)


def longest_of(targets: Iterable[Sequence[str]]) -> int:
    """Return how many words are written at most: half as many again as the longest target has, and the end."""
    longest = max(map(len, targets))
    return longest + longest // 2 + 1


def log_likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    """Return log p(y) of sequences, `[B]`, the sum over words; `logits` `[B, T, V]`, `labels` `[B, T]`, -100 = none."""
    # What cannot be written is unknown, and as such it is learned.
    known = labels.masked_fill(labels >= logits.shape[-1], SPECIAL.index(UNKNOWN))
    return -F.cross_entropy(logits.mT, known, ignore_index=NO_LABEL, reduction="none").sum(dim=1)


def build_sequence_tokenizer(
    sources: Iterable[Sequence[str]], targets: Iterable[Sequence[str]], units: Units
) -> tuple[PreTrainedTokenizerFast, int]:
    """Return a tokenizer of texts that are read, which ends each, and how many of its words can be written.

    These stand first, after `SPECIAL`, by frequency.

    Args:
        sources: the units of texts that are read.
        targets: of those that are written.
        units: of the former.
    """
    written, known = (_by_frequency(side) for side in (targets, sources))
    words = [*SPECIAL, *written, *(word for word in known if word not in {*written, *SPECIAL})]
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
    return fast, len(SPECIAL) + len(written)


def _by_frequency(texts: Iterable[Sequence[str]]) -> list[str]:
    counts = Counter(unit for units in texts for unit in units if unit not in SPECIAL)
    # By the word where the counts are equal: not every run reads rows in one order.
    return sorted(counts, key=lambda word: (-counts[word], word))[:MAX_WORDS]
