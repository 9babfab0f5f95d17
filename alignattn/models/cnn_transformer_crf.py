"""A Transformer over filters that tags words, from nothing: CNN-Transformer-CRF of Wu et al. 2020, table 2."""

from huggingface_hub.dataclasses import strict
from torch import nn

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.encoders import Convolution
from alignattn.models.transformer_crf import TransformerCrfConfig, TransformerCrfForTokenClassification


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
