"""Taggers from scratch: the (CNN-)Transformer-CRF of Wu et al. 2020, table 2."""

from dataclasses import replace
from itertools import chain
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import AutoModelForTokenClassification

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel, build_word_model
from alignattn.models.layers import Convolution, TransformerEncoder
from alignattn.models.taggers.crf import CRF_FIELD, LinearChainCrf, TagOutput, init_crf, where_words_begin
from alignattn.models.text_classifiers import TransformerEncoderConfig
from alignattn.models.word_model import Sentences, WordModel, to_the_front
from alignattn.tasks import TokenClassification
from alignattn.tasks.tags.entities import BIO, scheme_of


@strict
class TransformerCrfConfig(TransformerEncoderConfig):
    """The sizes, those of the text classifier.

    Args:
        crf_tags: the scheme of the tags, see `alignattn.tasks.tags.entities`.
    """

    model_type = MODEL_TYPE_PREFIX + "transformer-crf"

    crf_tags: str = BIO


class TransformerCrfForTokenClassification(WordModel):
    """Layers of self-attention over words, and a CRF over the scores of their tags."""

    auto_class: ClassVar[type[Any]] = AutoModelForTokenClassification
    config_class = TransformerCrfConfig
    config: TransformerCrfConfig
    whole_words = True

    def __init__(self, config: TransformerCrfConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        self.first = self._first_layer()
        self.encoder = TransformerEncoder(
            config.hidden_dim if self.first is not None else config.embedding_dim,
            config.hidden_dim,
            config.num_attention_heads,
            config.num_hidden_layers,
            config.dropout,
        )
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(config.hidden_dim, config.num_labels)
        self.crf = LinearChainCrf(config)
        self.post_init()  # type: ignore[no-untyped-call]

    def _first_layer(self) -> nn.Module | None:
        """Return the layer between words and Transformer, or None."""
        return None

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model, as `WordModel.build`, with the scheme of the rows' tags."""
        task = context.task
        assert isinstance(task, TokenClassification)
        scheme = scheme_of(task.labels, context.rows[task.tags_column])
        built = build_word_model(
            cls,
            chain.from_iterable(context.rows[task.tokens_column]),
            context,
            num_labels=len(task.labels),
            of_data=lambda _: {"id2label": dict(enumerate(task.labels)), CRF_FIELD: scheme.name},
        )
        return replace(built, remark=scheme.remark)

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        word_starts: Tensor | None = None,
        labels: Tensor | None = None,
    ) -> TagOutput:
        """Tag words.

        Args:
            input_ids: `[B, n]`.
            attention_mask: `[B, n]`, not 0 = a real token; None = all but `pad_token_id` are.
            word_starts: `[B, n]`, not 0 = a word begins; None = words begin at the labels, or at each real token.
            labels: `[B, n]`, the number of each word's tag, -100 where no word begins.
        """
        real = self.real_words(input_ids, attention_mask)
        order, mask = to_the_front(real)
        # An empty text becomes one word of padding: attention to nothing is not finite.
        mask = mask.index_fill(1, torch.zeros(1, dtype=torch.long, device=mask.device), True)
        sentences = Sentences(self.dropout(self.embedding(input_ids.gather(1, order))), mask)
        states = self.encoder(sentences if self.first is None else self.first(sentences)).tokens
        scores = self.classifier(self.dropout(states))
        emissions = scores.new_zeros((*input_ids.shape, scores.shape[-1]))
        emissions = emissions.scatter(1, order[..., None].expand_as(scores), scores)
        tagged: TagOutput = self.crf(emissions, where_words_begin(word_starts, labels, real), labels)
        return tagged

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if not init_crf(module):
            super()._init_weights(module)


@strict
class CnnTransformerCrfConfig(TransformerCrfConfig):
    """`hidden_dim` filters of `filter_width` words."""

    model_type = MODEL_TYPE_PREFIX + "cnn-transformer-crf"

    filter_width: int = 3


class CnnTransformerCrfForTokenClassification(TransformerCrfForTokenClassification):
    """Filters over neighbouring words before the layers of self-attention."""

    config_class = CnnTransformerCrfConfig
    config: CnnTransformerCrfConfig

    def _first_layer(self) -> nn.Module:
        config = self.config
        return Convolution(config.embedding_dim, config.hidden_dim, config.filter_width)
