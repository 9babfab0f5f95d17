"""A convolutional classifier of texts (Kim 2014)."""

from huggingface_hub.dataclasses import strict
from torch import Tensor

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Convolution
from alignattn.models.pooling import maximum
from alignattn.models.text_classifier import TextClassifier, TextClassifierConfig
from alignattn.models.word_model import Sentences


@strict
class CnnConfig(TextClassifierConfig):
    """`hidden_dim` filters of `filter_width` words."""

    model_type = MODEL_TYPE_PREFIX + "cnn"

    filter_width: int = 3


class CnnForSequenceClassification(TextClassifier):
    """Filters, and the maximum of each over the text."""

    config_class = CnnConfig
    config: CnnConfig

    def __init__(self, config: CnnConfig) -> None:
        super().__init__(config, config.hidden_dim)
        self.encoder = Convolution(config.embedding_dim, config.hidden_dim, config.filter_width)
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, hidden_dim]`, as `TextClassifier.pooled`."""
        return maximum(self.encoder(Sentences(self.embedded(input_ids), mask)))
