"""Classifiers of single texts: an encoder of words, a pooling and a linear layer (Wu et al. 2020, table 1)."""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.attention.pooling import AttentionPooling, FeaturePooling, QueryPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel
from alignattn.models.layers import Convolution, Recurrent, TransformerEncoder, average, last_states, maximum
from alignattn.models.word_model import Sentences, WordModel, WordModelConfig, take_words

SENTENCE_ENDS = (".", "!", "?", "。", "！", "？")

BYTES = 256
NO_BYTE = 0
"""The padding word, which no text contains."""


@strict
class TextClassifierConfig(WordModelConfig):
    """Sizes of Wu et al. 2020, §4.1: 300-d vectors, 256 filters or 256 units per direction; the dropout is ours."""

    hidden_dim: int = 256
    dropout: float = 0.2


class TextClassifier(WordModel):
    """Classifies the vector `[B, pooled_dim]` that a subclass returns from `pooled`."""

    config_class = TextClassifierConfig
    config: TextClassifierConfig

    def __init__(self, config: TextClassifierConfig, pooled_dim: int) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(pooled_dim, config.num_labels)

    @abstractmethod
    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return one vector per text, `[B, pooled_dim]`.

        Args:
            input_ids: `[B, n]`, padded on the right.
            mask: `[B, n]` bool, True = a real word; each row has one.
        """

    def embedded(self, input_ids: Tensor) -> Tensor:
        """Return word vectors `[…, n, embedding_dim]` of ids `[…, n]`, with dropout in training."""
        vectors: Tensor = self.dropout(self.embedding(input_ids))
        return vectors

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Classify texts.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.
            labels: as for transformers' classifiers: `[B]` integers for classes, floats for a regression; `[B,
                num_labels]` floats for several labels at once.

        Returns:
            `logits` `[B, num_labels]`, and `loss` if there are labels.
        """
        words = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        # An empty text becomes one word of padding, whose vector is 0: no pooling over nothing is finite.
        words.mask[:, 0] = True
        return self.output(self.classifier(self.dropout(self.pooled(*words))), labels)


@strict
class ConvolutionConfig(TextClassifierConfig):
    """`hidden_dim` filters of `filter_width` words."""

    filter_width: int = 3


@strict
class TransformerEncoderConfig(TextClassifierConfig):
    """Wu et al. 2020 do not give the numbers of layers and heads: these are ours."""

    num_attention_heads: int = 8
    num_hidden_layers: int = 2


class Encoder(NamedTuple):
    """How to build an encoder from a config; its states have the size `directions * hidden_dim`."""

    build: Callable[[Any], nn.Module]
    directions: int


CONVOLUTION = Encoder(lambda config: Convolution(config.embedding_dim, config.hidden_dim, config.filter_width), 1)
LSTM = Encoder(lambda config: Recurrent(config.embedding_dim, config.hidden_dim), 2)
TRANSFORMER = Encoder(
    lambda config: TransformerEncoder(
        config.embedding_dim, config.hidden_dim, config.num_attention_heads, config.num_hidden_layers, config.dropout
    ),
    1,
)

Pooling = Callable[[Tensor, Tensor], Tensor] | type[AttentionPooling] | type[FeaturePooling]
"""A function of states `[B, n, d]` and their mask `[B, n]`, or the class of such a module, called with d."""


class EncoderAndPooling(TextClassifier):
    """An encoder and a pooling, both set by a subclass."""

    encoder_spec: ClassVar[Encoder]
    pooling_spec: ClassVar[Pooling]

    def __init__(self, config: TextClassifierConfig) -> None:
        size = self.encoder_spec.directions * config.hidden_dim
        super().__init__(config, size)
        self.encoder = self.encoder_spec.build(config)
        pooling: Any = type(self).pooling_spec
        self.pooling = pooling(size) if isinstance(pooling, type) else pooling
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, d]`, as `TextClassifier.pooled`."""
        states: Tensor = self.pooling(*self.encoder(Sentences(self.embedded(input_ids), mask)))
        return states


def _classifier(
    name: str, config_class: type[TextClassifierConfig], encoder: Encoder, pooling: Pooling
) -> tuple[type[Any], type[Any]]:
    """Return the config class and the model class of a name of `--model`."""
    title = "".join(part.capitalize() for part in name.split("-"))
    fields = {"__module__": __name__, "__doc__": config_class.__doc__, "model_type": MODEL_TYPE_PREFIX + name}
    config: Any = strict(type(f"{title}Config", (config_class,), fields))
    attributes = {"config_class": config, "encoder_spec": encoder, "pooling_spec": staticmethod(pooling)}
    model = type(f"{title}ForSequenceClassification", (EncoderAndPooling,), {"__module__": __name__, **attributes})
    return config, model


CnnConfig, CnnForSequenceClassification = _classifier("cnn", ConvolutionConfig, CONVOLUTION, maximum)
CnnAttConfig, CnnAttForSequenceClassification = _classifier("cnn-att", ConvolutionConfig, CONVOLUTION, AttentionPooling)
LstmConfig, LstmForSequenceClassification = _classifier("lstm", TextClassifierConfig, LSTM, last_states)
LstmAttConfig, LstmAttForSequenceClassification = _classifier("lstm-att", TextClassifierConfig, LSTM, AttentionPooling)
LstmMultidimConfig, LstmMultidimForSequenceClassification = _classifier(
    "lstm-multidim", TextClassifierConfig, LSTM, FeaturePooling
)
TransformerConfig, TransformerForSequenceClassification = _classifier(
    "transformer", TransformerEncoderConfig, TRANSFORMER, average
)


@strict
class HanConfig(TextClassifierConfig):
    """`hidden_dim` units per direction of both GRUs.

    Args:
        sentence_ends: ids of the words that end a sentence.
        longest_sentence: maximum number of words of a sentence; longer ones are split.
    """

    model_type = MODEL_TYPE_PREFIX + "han"

    sentence_ends: list[int] | tuple[int, ...] = ()
    longest_sentence: int = 64


class HanForSequenceClassification(TextClassifier):
    """A GRU and a learned query over the words of each sentence, and the same over the sentences (§2.2)."""

    config_class = HanConfig
    config: HanConfig

    def __init__(self, config: HanConfig) -> None:
        size = 2 * config.hidden_dim
        super().__init__(config, size)
        self.word_encoder = Recurrent(config.embedding_dim, config.hidden_dim, nn.GRU)
        self.word_pooling = AttentionPooling(size)
        self.sentence_encoder = Recurrent(size, config.hidden_dim, nn.GRU)
        self.sentence_pooling = AttentionPooling(size)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, with the words that end a sentence."""
        built = super().build(context)
        words = built.tokenizer.get_vocab()
        built.model.config.sentence_ends = [words[end] for end in SENTENCE_ENDS if end in words]
        return built

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        ends = torch.tensor(self.config.sentence_ends, device=input_ids.device, dtype=input_ids.dtype)
        number, place = sentence_of_words(torch.isin(input_ids, ends), self.config.longest_sentence)
        rows = torch.arange(len(input_ids), device=input_ids.device)[:, None].expand_as(input_ids)
        counts = number.masked_fill(~mask, -1).amax(dim=1) + 1
        # All texts' sentences, one after another: texts with few sentences need no padding.
        sentence = (counts.cumsum(0) - counts)[rows] + number
        words = _scattered(input_ids[mask], sentence[mask], place[mask], self.config.pad_token_id)
        sentences = self.word_pooling(*self.word_encoder(Sentences(self.embedded(words.tokens), words.mask)))
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        turn = torch.arange(len(owner), device=counts.device) - (counts.cumsum(0) - counts)[owner]
        text: Tensor = self.sentence_pooling(*self.sentence_encoder(_scattered(sentences, owner, turn, 0)))
        return text


def sentence_of_words(ends: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return the sentence of each word and its place in the sentence, both `[B, n]` from 0.

    Args:
        ends: `[B, n]` bool, whether a word can end a sentence; in a sequence such as `?!` only the last does.
        longest: maximum number of words of a sentence; longer ones are split.
    """
    index = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    begins = torch.ones_like(ends)
    begins[:, 1:] = ends[:, :-1] & ~ends[:, 1:]
    since = index - index.where(begins, torch.zeros_like(index)).cummax(dim=1).values
    place = since % longest
    return (place == 0).cumsum(dim=1) - 1, place


def _scattered(items: Tensor, row: Tensor, column: Tensor, filling: int) -> Sentences:
    """Put items `[N, …]` at their rows and columns of a table, and fill its other cells."""
    shape = int(row.max()) + 1, int(column.max()) + 1
    table = items.new_full((*shape, *items.shape[1:]), filling)
    mask = torch.zeros(shape, dtype=torch.bool, device=items.device)
    mask[row, column] = True
    return Sentences(table.index_put((row, column), items), mask)


@strict
class LstmDmeConfig(TextClassifierConfig):
    """The sizes of the text classifier, and our sizes of spellings; both vectors are projected to `embedding_dim`.

    Args:
        byte_dim: size of a byte's vector.
        spelling_filters: number of filters over a word's bytes.
        filter_width: number of bytes that a filter covers, odd.
        longest_spelling: maximum number of bytes per word.
    """

    model_type = MODEL_TYPE_PREFIX + "lstm-dme"

    byte_dim: int = 16
    spelling_filters: int = 100
    filter_width: int = 3
    longest_spelling: int = 24


class Spelling(nn.Module):
    """Vectors of words by their UTF-8 bytes: filters, and the maximum of each (Kim 2014, with bytes for words)."""

    spellings: Tensor

    def __init__(self, config: LstmDmeConfig) -> None:
        super().__init__()
        spellings = torch.full((config.vocab_size, config.longest_spelling), NO_BYTE, dtype=torch.uint8)
        self.register_buffer("spellings", spellings)
        self.bytes = nn.Embedding(BYTES, config.byte_dim, padding_idx=NO_BYTE)
        self.filters = Convolution(config.byte_dim, config.spelling_filters, config.filter_width)

    def learn(self, words: Mapping[str, int]) -> None:
        """Store the spellings of words, given with their ids; other words have none."""
        longest = self.spellings.shape[1]
        spelled = bytearray().join(word.encode()[:longest].ljust(longest, bytes([NO_BYTE])) for word in words)
        self.spellings[list(words.values())] = torch.frombuffer(spelled, dtype=torch.uint8).view(-1, longest)

    def forward(self, ids: Tensor) -> Tensor:
        """Return `[N, spelling_filters]` of the ids of words, `[N]`; 0 for a word without a spelling."""
        # Each word is encoded once, however often it occurs in the batch.
        words, place = ids.unique(return_inverse=True)
        spelled = self.spellings[words].long()
        vectors: Tensor = maximum(*self.filters(Sentences(self.bytes(spelled), spelled != NO_BYTE)))[place]
        return vectors


class Projections(nn.Module):
    """Projects several embeddings of a word to one size, w'_i = P_i w_i + b_i."""

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__()
        self.out_features = size
        self.projections = nn.ModuleList(nn.Linear(each, size) for each in sizes)

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, number of embeddings, size]` of embeddings `[N, d_i]`."""
        pairs = zip(self.projections, embeddings, strict=True)
        return torch.stack([project(embedding) for project, embedding in pairs], dim=1)


class MetaEmbedding(QueryPooling):
    """Combines a word's vectors: w = Σ_i α_i w'_i, α = softmax_i(a · w'_i) (Kiela et al. 2018, without context).

    The bias of the scores is left out, because it shifts all scores of a word by the same amount.
    """

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__(size**-0.5 * torch.randn(size), Projections(*sizes, size=size))

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, size]` of embeddings `[N, d_i]`."""
        projected = self.key_projection(*embeddings)
        return self.pool(projected, projected)


class LstmDmeForSequenceClassification(TextClassifier):
    """Meta-embeddings of a word's vector and its spelling, and the maximum over the states of an LSTM.

    Kiela et al. 2018 combine vectors of several files.
    """

    config_class = LstmDmeConfig
    config: LstmDmeConfig

    def __init__(self, config: LstmDmeConfig) -> None:
        super().__init__(config, 2 * config.hidden_dim)
        self.spelling = Spelling(config)
        size = config.embedding_dim
        self.meta_embedding = MetaEmbedding(size, config.spelling_filters, size=size)
        self.encoder = Recurrent(size, config.hidden_dim)
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, with the spellings of its words."""
        built = super().build(context)
        special = set(built.tokenizer.all_special_tokens)
        words = {word: index for word, index in built.tokenizer.get_vocab().items() if word not in special}
        model: Any = built.model
        model.spelling.learn(words)
        return built

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        words = self.meta_embedding(self.embedded(input_ids)[mask], self.dropout(self.spelling(input_ids[mask])))
        texts = words.new_zeros(*mask.shape, words.shape[-1]).index_put((mask,), words)
        return maximum(*self.encoder(Sentences(texts, mask)))
