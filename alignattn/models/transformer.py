"""A Transformer's encoder (Vaswani et al. 2017) from nothing, as a classifier of texts."""

from huggingface_hub.dataclasses import strict
from torch import Tensor

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import TransformerEncoder
from alignattn.models.pooling import average
from alignattn.models.text_classifier import TextClassifier, TextClassifierConfig
from alignattn.models.word_model import Sentences


@strict
class TransformerConfig(TextClassifierConfig):
    """Wu et al. 2020 do not say how many layers and heads theirs has: these are ours."""

    model_type = MODEL_TYPE_PREFIX + "transformer"

    num_attention_heads: int = 8
    num_hidden_layers: int = 2


class TransformerForSequenceClassification(TextClassifier):
    """Layers of self-attention, and the mean of the words."""

    config_class = TransformerConfig
    config: TransformerConfig

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config, config.hidden_dim)
        self.encoder = TransformerEncoder(
            config.embedding_dim,
            config.hidden_dim,
            config.num_attention_heads,
            config.num_hidden_layers,
            config.dropout,
        )
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, hidden_dim]`, as `TextClassifier.pooled`."""
        return average(self.encoder(Sentences(self.embedded(input_ids), mask)))
