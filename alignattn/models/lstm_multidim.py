"""A classifier of texts by both directions of an LSTM with multi-dimensional attention (Shen et al. 2018)."""

from huggingface_hub.dataclasses import strict

from alignattn.attention.pooling import FeaturePooling
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.lstm_att import LstmAttConfig, LstmAttForSequenceClassification


@strict
class LstmMultidimConfig(LstmAttConfig):
    """The same sizes."""

    model_type = MODEL_TYPE_PREFIX + "lstm-multidim"


class LstmMultidimForSequenceClassification(LstmAttForSequenceClassification):
    """Both directions of an LSTM, and each feature of the words pooled by weights of its own."""

    config_class = LstmMultidimConfig
    config: LstmMultidimConfig
    pooling_class = FeaturePooling
