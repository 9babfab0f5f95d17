"""A classifier of texts by both directions of an LSTM (Hochreiter & Schmidhuber 1997)."""

from huggingface_hub.dataclasses import strict
from torch import Tensor

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Recurrent
from alignattn.models.pooling import last_states
from alignattn.models.text_classifier import TextClassifier, TextClassifierConfig
from alignattn.models.word_model import Sentences


@strict
class LstmConfig(TextClassifierConfig):
    """`hidden_dim` units a direction."""

    model_type = MODEL_TYPE_PREFIX + "lstm"


class LstmForSequenceClassification(TextClassifier):
    """Both directions of an LSTM, and what each ends with."""

    config_class = LstmConfig
    config: LstmConfig

    def __init__(self, config: LstmConfig) -> None:
        super().__init__(config, 2 * config.hidden_dim)
        self.encoder = Recurrent(config.embedding_dim, config.hidden_dim)
        self.post_init()  # type: ignore[no-untyped-call]

    def pooled(self, input_ids: Tensor, mask: Tensor) -> Tensor:
        """Return `[B, 2 · hidden_dim]`, as `TextClassifier.pooled`."""
        return last_states(self.encoder(Sentences(self.embedded(input_ids), mask)))
