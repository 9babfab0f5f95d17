"""A convolutional classifier of texts with attention (CNN-Att of Wu et al. 2020)."""

from huggingface_hub.dataclasses import strict
from torch import Tensor

from alignattn.attention.pooling import AttentionPooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.cnn import CnnConfig
from alignattn.models.encoders import Convolution
from alignattn.models.text_classifier import TextClassifier
from alignattn.models.word_model import Sentences


@strict
class CnnAttConfig(CnnConfig):
    """The same sizes."""

    model_type = MODEL_TYPE_PREFIX + "cnn-att"


class CnnAttForSequenceClassification(TextClassifier):
    """Filters, and the words pooled by a learned query."""

    config_class = CnnAttConfig
    config: CnnAttConfig

    def __init__(self, config: CnnAttConfig) -> None:
        super().__init__(config, config.hidden_dim)
        self.encoder = Convolution(config.embedding_dim, config.hidden_dim, config.filter_width)
        self.pooling = AttentionPooling(config.hidden_dim)
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, hidden_dim]`, as `TextClassifier.pooled`."""
        states: Tensor = self.pooling(*self.encoder(Sentences(self.embedded(input_ids), mask)))
        return states
