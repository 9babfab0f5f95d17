"""A classifier of texts by both directions of an LSTM with attention (LSTM-Att of Wu et al. 2020)."""

from typing import ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor

from alignattn.attention.pooling import AttentionPooling, FeaturePooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Recurrent
from alignattn.models.lstm import LstmConfig
from alignattn.models.text_classifier import TextClassifier
from alignattn.models.word_model import Sentences


@strict
class LstmAttConfig(LstmConfig):
    """The same sizes."""

    model_type = MODEL_TYPE_PREFIX + "lstm-att"


class LstmAttForSequenceClassification(TextClassifier):
    """Both directions of an LSTM, and the words pooled by a learned query."""

    config_class = LstmAttConfig
    config: LstmAttConfig
    pooling_class: ClassVar[type[AttentionPooling] | type[FeaturePooling]] = AttentionPooling

    def __init__(self, config: LstmAttConfig) -> None:
        super().__init__(config, 2 * config.hidden_dim)
        self.encoder = Recurrent(config.embedding_dim, config.hidden_dim)
        self.pooling = self.pooling_class(2 * config.hidden_dim)
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        states: Tensor = self.pooling(*self.encoder(Sentences(self.embedded(input_ids), mask)))
        return states
