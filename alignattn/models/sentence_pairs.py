"""Classifiers of pairs of texts: decomposable attention, ESIM and parallel co-attention."""

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.attention.pooling import AttentionPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.layers import Recurrent, average, masked_softmax, maximum, run_recurrent
from alignattn.models.word_model import Sentences, WordModel, WordModelConfig, take_words
from alignattn.tasks.names import MAX_TEXTS
from alignattn.utils.errors import AlignAttnError


def split_pair(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, pad: int) -> list[Sentences]:
    """Split joined pairs.

    Args:
        input_ids: `[B, n]`.
        attention_mask: `[B, n]`, not 0 = a real token.
        token_type_ids: `[B, n]`, 0 = a token of the first sentence, 1 = of the second.
        pad: the padding id.

    Returns:
        The first and the second sentences, as from `take_words`, `[B, n_a]` and `[B, n_b]`.
    """
    return [
        take_words(input_ids, attention_mask.bool() & (token_type_ids == sentence), pad)
        for sentence in range(MAX_TEXTS)
    ]


def attend_both_ways(scores: Tensor, a: Sentences, b: Sentences) -> tuple[Tensor, Tensor]:
    """Return each token's weighted mean of the other sentence, the soft alignment (Parikh et al. 2016, eq. 2).

    Args:
        scores: e, `[B, n_a, n_b]`.
        a: vectors `[B, n_a, d]` and their mask.
        b: vectors `[B, n_b, d]` and their mask.

    Returns:
        The mean of b for each token of a, `[B, n_a, d]`, and of a for each token of b, `[B, n_b, d]`; zeros if the
        other sentence is empty.
    """
    of_b = masked_softmax(scores, b.mask[:, None]) @ b.tokens
    of_a = masked_softmax(scores.mT, a.mask[:, None]) @ a.tokens
    return of_b, of_a


def side_by_side(first: Tensor, second: Tensor) -> Tensor:
    """Return two vectors, their difference and their product, `[…, 4 · d]` of `[…, d]` each (Mou et al. 2016, §3)."""
    return torch.cat([first, second, first - second, first * second], dim=-1)


class SentencePairClassifier(WordModel):
    """Embeds the words of joined pairs; a subclass classifies the two sentences."""

    reads_pairs = True

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Return logits `[B, num_labels]` of embedded sentences, `[B, n_a, embedding_dim]` and `[B, n_b, …]`."""
        raise NotImplementedError

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> SequenceClassifierOutput:
        """Classify joined pairs.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real token; None = all but `pad_token_id` are.
            token_type_ids: `[B, n]`, 0 = premise, 1 = hypothesis.
            labels: `[B]`, integers for cross entropy; floats for the squared error if `num_labels` is 1.

        Returns:
            `logits` `[B, num_labels]`, and `loss` if there are labels.

        Raises:
            AlignAttnError: if `token_type_ids` is None.
        """
        if token_type_ids is None:
            name = type(self).__name__
            raise AlignAttnError(
                f"{name} needs token_type_ids to separate the two texts: use the tokenizer saved with it"
            )
        words = self.real_words(input_ids, attention_mask)
        a, b = split_pair(input_ids, words, token_type_ids, self.config.pad_token_id)
        logits = self.classify(*(Sentences(self.embedding(ids), mask) for ids, mask in (a, b)))
        return self.output(logits, labels)


@strict
class DecomposableAttentionConfig(WordModelConfig):
    """Sizes of AllenNLP's `decomposable_attention.jsonnet`: fixed 300-d GloVe vectors projected to 200."""

    model_type = "alignattn-da"

    hidden_dim: int = 200
    dropout: float = 0.2
    train_embeddings: bool = False


class DecomposableAttentionForSequenceClassification(SentencePairClassifier):
    """Attend, compare, aggregate (Parikh et al. 2016, §3).

    The NULL token of the paper is left out, because the encoding has no special tokens; the scaling of word vectors to
    length 1 is left out as in AllenNLP.
    """

    config_class = DecomposableAttentionConfig

    def __init__(self, config: DecomposableAttentionConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        hidden = config.hidden_dim
        self.projection = nn.Linear(config.embedding_dim, hidden)
        self.attend = _feed_forward(hidden, hidden, config.dropout)
        self.compare = _feed_forward(2 * hidden, hidden, config.dropout)
        self.aggregate = nn.Sequential(
            nn.Linear(2 * hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(hidden, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Return logits `[B, num_labels]`, eqs. 1 to 5."""
        a, b = (Sentences(self.projection(vectors), mask) for vectors, mask in (a, b))
        scores = self.attend(a.tokens) @ self.attend(b.tokens).mT  # eq. 1
        beta, alpha = attend_both_ways(scores, a, b)  # eq. 2
        return self.aggregate(torch.cat([self._compared(a, beta), self._compared(b, alpha)], dim=-1))  # eq. 5

    def _compared(self, sentences: Sentences, aligned: Tensor) -> Tensor:
        """Σ_i G([x_i, aligned_i]) over the real tokens, eqs. 3 and 4: `[B, hidden_dim]`."""
        compared = self.compare(torch.cat([sentences.tokens, aligned], dim=-1))
        return (compared * sentences.mask[..., None]).sum(dim=1)


def _feed_forward(size: int, hidden: int, dropout: float) -> nn.Sequential:
    """The networks F and G: two ReLU layers."""
    return nn.Sequential(
        nn.Linear(size, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Dropout(dropout),
    )


@strict
class EsimConfig(WordModelConfig):
    """Sizes of AllenNLP's `esim.jsonnet` and of the paper: trained 300-d GloVe vectors, 300 hidden units."""

    model_type = "alignattn-esim"

    hidden_dim: int = 300
    dropout: float = 0.5
    train_embeddings: bool = True


class EsimForSequenceClassification(SentencePairClassifier):
    """The sequential model of Chen et al. 2017, §3, without the tree LSTM.

    As in AllenNLP the last hidden layer is a ReLU; the paper has a tanh. AllenNLP's dropout before the LSTMs drops the
    same units at every position; this one does not.
    """

    config_class = EsimConfig

    def __init__(self, config: EsimConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        hidden = config.hidden_dim
        self.encoder = nn.LSTM(config.embedding_dim, hidden, batch_first=True, bidirectional=True)
        self.projection = nn.Sequential(nn.Linear(8 * hidden, hidden), nn.ReLU())
        self.composition = nn.LSTM(hidden, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(8 * hidden, hidden), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(hidden, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Return logits `[B, num_labels]`, eqs. 1, 2 and 11 to 20."""
        a, b = self._run(self.encoder, a), self._run(self.encoder, b)  # eqs. 1, 2
        scores = a.tokens @ b.tokens.mT  # eq. 11
        aligned_a, aligned_b = attend_both_ways(scores, a, b)  # eqs. 12, 13
        pooled = [*self._compose(a, aligned_a), *self._compose(b, aligned_b)]
        return self.classifier(self.dropout(torch.cat(pooled, dim=-1)))  # eq. 20

    def _run(self, lstm: nn.LSTM, sentences: Sentences) -> Sentences:
        """The hidden states of both directions, `[B, n, 2 · hidden_dim]`."""
        return run_recurrent(lstm, Sentences(self.dropout(sentences.tokens), sentences.mask))

    def _compose(self, sentences: Sentences, aligned: Tensor) -> tuple[Tensor, Tensor]:
        """Enhance, compose and pool, eqs. 14 to 19: two tensors `[B, 2 · hidden_dim]`."""
        states, mask = sentences
        composed = self._run(self.composition, Sentences(self.projection(side_by_side(states, aligned)), mask))
        return average(*composed), maximum(*composed)


@strict
class CoAttentionConfig(WordModelConfig):
    """`hidden_dim` units per direction; the sizes are ours, because Lu et al. 2016 pair a question with an image."""

    model_type = MODEL_TYPE_PREFIX + "co-attention"

    hidden_dim: int = 256
    dropout: float = 0.2


class ParallelCoAttention(nn.Module):
    """Pools two texts, each by weights that depend on the other (Lu et al. 2016, eqs. 3 to 5).

        C = tanh(A W_c Bᵀ)
        H_a = tanh(W_a A + C (W_b B)),    a = softmax(w_a · H_a)
        â = Σ a_i A_i, and the same for b with Cᵀ.

    Each side is a pooling with keys H, and has slots. W_a and W_b have biases, as all keys of `AttentionPooling`.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.affinity = nn.Linear(dim, dim, bias=False)
        self.pooling_a = AttentionPooling(dim)
        self.pooling_b = AttentionPooling(dim)

    def forward(self, a: Sentences, b: Sentences) -> tuple[Tensor, Tensor]:
        """Return one vector per text, `[B, d]` each, of nonempty texts `[B, n_a, d]` and `[B, n_b, d]`."""
        affinity = torch.tanh(self.affinity(a.tokens) @ b.tokens.mT) * (a.mask[:, :, None] & b.mask[:, None])
        from_a, from_b = self.pooling_a.key_projection(a.tokens), self.pooling_b.key_projection(b.tokens)
        pooled_a = self.pooling_a.pool(torch.tanh(from_a + affinity @ from_b), *a)
        return pooled_a, self.pooling_b.pool(torch.tanh(from_b + affinity.mT @ from_a), *b)


class CoAttentionForSequenceClassification(SentencePairClassifier):
    """A bidirectional LSTM over each text, co-attention, and a classifier of the two vectors side by side.

    It has only the paper's LSTM level, not its levels of words and phrases. `side_by_side` replaces the paper's sum of
    both vectors, which does not distinguish the texts.
    """

    config_class = CoAttentionConfig
    config: CoAttentionConfig

    def __init__(self, config: CoAttentionConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        size = 2 * config.hidden_dim
        self.encoder = Recurrent(config.embedding_dim, config.hidden_dim)
        self.co_attention = ParallelCoAttention(size)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Sequential(
            nn.Linear(4 * size, size), nn.ReLU(), nn.Dropout(config.dropout), nn.Linear(size, config.num_labels)
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Return logits `[B, num_labels]`; an empty text counts as one word of padding, whose vector is 0."""
        for side in (a, b):
            side.mask[:, 0] = True
        read = [self.encoder(Sentences(self.dropout(vectors), mask)) for vectors, mask in (a, b)]
        return self.classifier(self.dropout(side_by_side(*self.co_attention(*read))))
