"""What Decomposable Attention and ESIM share: two sentences out of one batch, and the alignment between them."""

from itertools import chain
from typing import Any, NamedTuple

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models.build import BuiltModel, Material, build_word_model
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import TextClassification


@strict
class SentencePairConfig(PreTrainedConfig):
    """The sizes of a sentence-pair classifier.

    Args:
        vocab_size: number of words, padding and unknown included.
        embedding_dim: size of a word's vector.
        hidden_dim: size of the hidden layers.
        dropout: probability with which a hidden unit is dropped in training.
        train_embeddings: whether the word vectors are trained or stay as they are.
        pad_token_id: the word that fills up a batch; its vector is zero and stays so.
    """

    vocab_size: int = 2
    embedding_dim: int = 300
    hidden_dim: int = 300
    dropout: float = 0.0
    train_embeddings: bool = True
    pad_token_id: int = 0


class Sentences(NamedTuple):
    """One sentence of each pair: token ids or vectors `[B, n]` or `[B, n, d]`, and which are real, `[B, n]` bool."""

    tokens: Tensor
    mask: Tensor


def split_pair(input_ids: Tensor, attention_mask: Tensor, token_type_ids: Tensor, pad: int) -> list[Sentences]:
    """Take joined pairs apart.

    Args:
        input_ids: `[B, n]`.
        attention_mask: `[B, n]`, not 0 = a real token.
        token_type_ids: `[B, n]`, 0 = a token of the first sentence, 1 = of the second.
        pad: the id that fills up the shorter sentences.

    Returns:
        The first and the second sentences, each right-padded to its own longest, `[B, n_a]` and `[B, n_b]`. A batch
        of nothing but empty sentences has the length 1, so that later layers have something to mask.
    """
    # Sorting brings a sentence's tokens to the front, in their order, wherever the padding stood; a batch without any
    # token still has a column to take.
    ids = F.pad(input_ids, (0, 1), value=pad)
    sentences = []
    for sentence in (0, 1):
        belongs = F.pad(attention_mask.bool() & (token_type_ids == sentence), (0, 1))
        longest = max(int(belongs.sum(dim=1).max()), 1)
        order = belongs.int().argsort(dim=1, descending=True, stable=True)[:, :longest]
        mask = belongs.gather(1, order)
        sentences.append(Sentences(ids.gather(1, order).masked_fill(~mask, pad), mask))
    return sentences


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax over the last dimension among what `mask` keeps.

    Args:
        scores: `[..., n]`.
        mask: bool, broadcasts to `scores`, True = kept.

    Returns:
        Weights like `scores`, exactly 0 where not kept; all 0 where nothing is kept.
    """
    return scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(dim=-1) * mask


def attend_both_ways(scores: Tensor, a: Sentences, b: Sentences) -> tuple[Tensor, Tensor]:
    """Soft alignment: each token's weighted mean of the other sentence (Parikh et al. 2016, eq. 2).

    Args:
        scores: e, `[B, n_a, n_b]`.
        a: vectors `[B, n_a, d]` and their mask.
        b: vectors `[B, n_b, d]` and their mask.

    Returns:
        For each token of a what it meets in b, `[B, n_a, d]`, and for each of b what it meets in a, `[B, n_b, d]`;
        zeros where the other sentence is empty.
    """
    of_b = masked_softmax(scores, b.mask[:, None]) @ b.tokens
    of_a = masked_softmax(scores.mT, a.mask[:, None]) @ a.tokens
    return of_b, of_a


class SentencePairClassifier(PreTrainedModel):
    """Embeds the words of joined pairs and hands the two sentences to `classify`, which a subclass gives.

    It reads what BERT reads, without special tokens, so that transformers' Trainer and collators carry it.
    """

    auto_class = AutoModelForSequenceClassification
    config_class = SentencePairConfig
    config: SentencePairConfig
    _input_embed_layer = "embedding"

    def __init__(self, config: SentencePairConfig) -> None:
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.embedding_dim, padding_idx=config.pad_token_id)
        self._fix_embeddings()

    @classmethod
    def build(cls, material: Material) -> BuiltModel:
        """Return an untrained model for the words of the pairs; raises as `build_word_model` does."""
        task = material.task
        assert isinstance(task, TextClassification)
        return build_word_model(
            cls,
            chain.from_iterable(material.rows[column] for column in task.text_columns),
            num_labels=task.num_labels,
            embeddings=material.embeddings,
            seed=material.seed,
            skip_bad_rows=material.skip_bad_rows,
            config_fields=material.config_fields,
        )

    @classmethod
    def from_pretrained(cls, *args: Any, **kwargs: Any) -> Any:
        """Load a model; transformers' own function would leave fixed word vectors trainable."""
        loaded = super().from_pretrained(*args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded  # a tuple with output_loading_info=True
        model._fix_embeddings()
        return loaded

    def _fix_embeddings(self) -> None:
        self.embedding.weight.requires_grad_(self.config.train_embeddings)

    def classify(self, a: Sentences, b: Sentences) -> Tensor:
        """Logits `[B, num_labels]` of embedded sentences `[B, n_a, embedding_dim]` and `[B, n_b, embedding_dim]`."""
        raise NotImplementedError

    # No **kwargs: with them, Trainer takes the loss for one that it need not divide by the accumulation steps.
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
            labels: `[B]`, integers for cross entropy; floats for the squared error where `num_labels` is 1.

        Returns:
            `logits` `[B, num_labels]`, and `loss` where there are labels.

        Raises:
            AlignAttnError: if `token_type_ids` is None.
        """
        if token_type_ids is None:
            name = type(self).__name__
            raise AlignAttnError(
                f"{name} needs token_type_ids to tell two texts apart: use the tokenizer saved with it"
            )
        pad = self.config.pad_token_id
        if attention_mask is None:
            attention_mask = input_ids != pad
        a, b = split_pair(input_ids, attention_mask, token_type_ids, pad)
        logits = self.classify(*(Sentences(self.embedding(ids), mask) for ids, mask in (a, b)))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Glorot-uniform linear layers; word vectors of length 1 on average, as Parikh et al. scale theirs (§5.2)."""
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            init.zeros_(module.bias)
        elif isinstance(module, nn.Embedding):
            vectors = torch.randn_like(module.weight) * module.embedding_dim**-0.5
            vectors[module.padding_idx] = 0.0
            init.copy_(module.weight, vectors)
