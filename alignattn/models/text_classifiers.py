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
"""What stands behind a word that is shorter than others: no text has it."""


@strict
class TextClassifierConfig(WordModelConfig):
    """Sizes of Wu et al. 2020, §4.1: vectors of 300, 256 filters, or units a direction; the dropout is ours."""

    hidden_dim: int = 256
    dropout: float = 0.2


class TextClassifier(WordModel):
    """Hands the words of texts to `pooled`, which a subclass gives, and classifies what it makes of them.

    Args:
        config: the sizes.
        pooled_dim: size of what `pooled` returns.
    """

    config_class = TextClassifierConfig
    config: TextClassifierConfig

    def __init__(self, config: TextClassifierConfig, pooled_dim: int) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(pooled_dim, config.num_labels)

    @abstractmethod
    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return a vector a text, `[B, pooled_dim]`.

        Args:
            input_ids: `[B, n]`, padded on the right.
            mask: `[B, n]` bool, True = a real word, of which each row has one.
        """

    def embedded(self, input_ids: Tensor) -> Tensor:
        """Return word vectors `[…, n, embedding_dim]` of ids `[…, n]`, some numbers dropped in training."""
        vectors: Tensor = self.dropout(self.embedding(input_ids))
        return vectors

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Classify texts.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real word; None = all but `pad_token_id` are.
            labels: as of transformers' classifiers: `[B]` integers for classes, floats for a regression; `[B,
                num_labels]` floats where each label is right or wrong by itself.

        Returns:
            `logits` `[B, num_labels]`, and `loss` where there are labels.
        """
        words = take_words(input_ids, self.real_words(input_ids, attention_mask), self.config.pad_token_id)
        # An empty text is read as one word of padding, whose vector is 0: no pooling is finite over nothing.
        words.mask[:, 0] = True
        return self.output(self.classifier(self.dropout(self.pooled(*words))), labels)


@strict
class ConvolutionConfig(TextClassifierConfig):
    """`hidden_dim` filters of `filter_width` words."""

    filter_width: int = 3


@strict
class TransformerEncoderConfig(TextClassifierConfig):
    """Wu et al. 2020 do not say how many layers and heads theirs has: these are ours."""

    num_attention_heads: int = 8
    num_hidden_layers: int = 2


class Encoder(NamedTuple):
    """A kind of encoder.

    Attributes:
        build: makes one as a config says.
        directions: the size of its states is so many times `hidden_dim`.
    """

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
"""A function of states `[B, n, d]` and their mask `[B, n]`, or the class of a module that is one, given d."""


class EncoderAndPooling(TextClassifier):
    """A classifier that is an encoder and a pooling and nothing else: a subclass names them."""

    encoder_kind: ClassVar[Encoder]
    pooling_kind: ClassVar[Pooling]

    def __init__(self, config: TextClassifierConfig) -> None:
        size = self.encoder_kind.directions * config.hidden_dim
        super().__init__(config, size)
        self.encoder = self.encoder_kind.build(config)
        pooling: Any = type(self).pooling_kind
        self.pooling = pooling(size) if isinstance(pooling, type) else pooling
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, d]`, as `TextClassifier.pooled`."""
        states: Tensor = self.pooling(*self.encoder(Sentences(self.embedded(input_ids), mask)))
        return states


def _classifier(
    name: str, config_class: type[TextClassifierConfig], encoder: Encoder, pooling: Pooling
) -> tuple[type[Any], type[Any]]:
    """Return the classes of the config and the model that `--model` calls by a name."""
    title = "".join(part.capitalize() for part in name.split("-"))
    fields = {"__module__": __name__, "__doc__": config_class.__doc__, "model_type": MODEL_TYPE_PREFIX + name}
    config: Any = strict(type(f"{title}Config", (config_class,), fields))
    kinds = {"config_class": config, "encoder_kind": encoder, "pooling_kind": staticmethod(pooling)}
    model = type(f"{title}ForSequenceClassification", (EncoderAndPooling,), {"__module__": __name__, **kinds})
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
    """`hidden_dim` units a direction of both GRUs.

    Args:
        sentence_ends: ids of the words that end a sentence.
        longest_sentence: words after which a sentence is taken to end, whatever stands there.
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
    def build(cls, material: BuildContext) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, that knows what ends a sentence."""
        built = super().build(material)
        words = built.tokenizer.get_vocab()
        built.model.config.sentence_ends = [words[end] for end in SENTENCE_ENDS if end in words]
        return built

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        ends = torch.tensor(self.config.sentence_ends, device=input_ids.device, dtype=input_ids.dtype)
        number, place = sentence_of_words(torch.isin(input_ids, ends), self.config.longest_sentence)
        rows = torch.arange(len(input_ids), device=input_ids.device)[:, None].expand_as(input_ids)
        counts = number.masked_fill(~mask, -1).amax(dim=1) + 1
        # Sentences of all texts, one after another: as many as there are, whatever the text with the most has.
        sentence = (counts.cumsum(0) - counts)[rows] + number
        words = _scattered(input_ids[mask], sentence[mask], place[mask], self.config.pad_token_id)
        sentences = self.word_pooling(*self.word_encoder(Sentences(self.embedded(words.tokens), words.mask)))
        owner = torch.arange(len(counts), device=counts.device).repeat_interleave(counts)
        turn = torch.arange(len(owner), device=counts.device) - (counts.cumsum(0) - counts)[owner]
        text: Tensor = self.sentence_pooling(*self.sentence_encoder(_scattered(sentences, owner, turn, 0)))
        return text


def sentence_of_words(ends: Tensor, longest: int) -> tuple[Tensor, Tensor]:
    """Return of each word its sentence's number in the text and its own in the sentence, both `[B, n]` from 0.

    Args:
        ends: `[B, n]` bool, whether a word ends a sentence; of several in turn, as `?!`, the last does.
        longest: words after which a sentence ends, whatever stands there.
    """
    index = torch.arange(ends.shape[1], device=ends.device).expand_as(ends)
    begins = torch.ones_like(ends)
    begins[:, 1:] = ends[:, :-1] & ~ends[:, 1:]
    since = index - index.where(begins, torch.zeros_like(index)).cummax(dim=1).values
    place = since % longest
    return (place == 0).cumsum(dim=1) - 1, place


def _scattered(items: Tensor, row: Tensor, column: Tensor, filling: int) -> Sentences:
    """Put items `[N, …]` at their row and column of a table that they make whole; what is left over is filled."""
    shape = int(row.max()) + 1, int(column.max()) + 1
    table = items.new_full((*shape, *items.shape[1:]), filling)
    mask = torch.zeros(shape, dtype=torch.bool, device=items.device)
    mask[row, column] = True
    return Sentences(table.index_put((row, column), items), mask)


@strict
class LstmDmeConfig(TextClassifierConfig):
    """The sizes of a text, and those of a word's spelling, which are ours; both are projected to `embedding_dim`.

    Args:
        byte_dim: size of a byte's vector.
        spelling_filters: filters over a word's bytes.
        filter_width: bytes that a filter sees, an odd number.
        longest_spelling: bytes of a word that are read.
    """

    model_type = MODEL_TYPE_PREFIX + "lstm-dme"

    byte_dim: int = 16
    spelling_filters: int = 100
    filter_width: int = 3
    longest_spelling: int = 24


class Spelling(nn.Module):
    """Vectors of words by their UTF-8 bytes: filters, and the maximum of each (Kim 2014, of bytes for words).

    Args:
        config: the sizes.
    """

    spellings: Tensor

    def __init__(self, config: LstmDmeConfig) -> None:
        super().__init__()
        spellings = torch.full((config.vocab_size, config.longest_spelling), NO_BYTE, dtype=torch.uint8)
        self.register_buffer("spellings", spellings)
        self.bytes = nn.Embedding(BYTES, config.byte_dim, padding_idx=NO_BYTE)
        self.filters = Convolution(config.byte_dim, config.spelling_filters, config.filter_width)

    def learn(self, words: Mapping[str, int]) -> None:
        """Note how words are spelled, given their ids; those that are not among them have no bytes."""
        longest = self.spellings.shape[1]
        spelled = bytearray().join(word.encode()[:longest].ljust(longest, bytes([NO_BYTE])) for word in words)
        self.spellings[list(words.values())] = torch.frombuffer(spelled, dtype=torch.uint8).view(-1, longest)

    def forward(self, ids: Tensor) -> Tensor:
        """Return `[N, spelling_filters]` of the ids of words, `[N]`; 0 of one that has no bytes."""
        # Each word is read once, however often it stands in the batch.
        words, place = ids.unique(return_inverse=True)
        spelled = self.spellings[words].long()
        vectors: Tensor = maximum(*self.filters(Sentences(self.bytes(spelled), spelled != NO_BYTE)))[place]
        return vectors


class Projections(nn.Module):
    """Each of several embeddings of a word projected to one size, w'_i = P_i w_i + b_i.

    Args:
        sizes: of the embeddings.
        size: of all that comes out.
    """

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__()
        self.out_features = size
        self.projections = nn.ModuleList(nn.Linear(each, size) for each in sizes)

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, embeddings, size]` of an embedding `[N, d_i]` each."""
        pairs = zip(self.projections, embeddings, strict=True)
        return torch.stack([project(embedding) for project, embedding in pairs], dim=1)


class MetaEmbedding(QueryPooling):
    """A word's vector of several: w = Σ_i α_i w'_i, α = softmax_i(a · w'_i), not contextualised (Kiela et al. 2018).

    Their bias of the scores, which moves all of a word alike, is left out.

    Args:
        sizes: of the embeddings.
        size: of the vector.
    """

    def __init__(self, *sizes: int, size: int) -> None:
        super().__init__(size**-0.5 * torch.randn(size), Projections(*sizes, size=size))

    def forward(self, *embeddings: Tensor) -> Tensor:
        """Return `[N, size]` of an embedding `[N, d_i]` each."""
        projected = self.key_projection(*embeddings)
        return self.pool(projected, projected)


class LstmDmeForSequenceClassification(TextClassifier):
    """A word's vector and its spelling weighed by a learned query, and the maximum over the states of an LSTM.

    Kiela et al. 2018 weigh vectors of several files; here one is of a file, or random, and the other of the spelling.
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
    def build(cls, material: BuildContext) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, that knows how its words are spelled."""
        built = super().build(material)
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
