"""Sentence-pair classifiers without pretraining: Decomposable Attention and ESIM.

Importing this package registers both with transformers: a folder that `save_pretrained` wrote then loads with
`AutoModelForSequenceClassification.from_pretrained`, its tokenizer with `AutoTokenizer.from_pretrained`.
"""

from transformers import AutoConfig, AutoModelForSequenceClassification

from alignattn.models.build import BASELINE_TRAINING, BASELINES, EmbeddingsReport, build_baseline
from alignattn.models.decomposable_attention import (
    DecomposableAttentionConfig,
    DecomposableAttentionForSequenceClassification,
)
from alignattn.models.esim import EsimConfig, EsimForSequenceClassification
from alignattn.models.words import Embeddings, build_tokenizer, embedding_matrix, read_embeddings

__all__ = [
    "BASELINES",
    "BASELINE_TRAINING",
    "DecomposableAttentionConfig",
    "DecomposableAttentionForSequenceClassification",
    "Embeddings",
    "EmbeddingsReport",
    "EsimConfig",
    "EsimForSequenceClassification",
    "build_baseline",
    "build_tokenizer",
    "embedding_matrix",
    "read_embeddings",
]

for _model in BASELINES.values():
    AutoConfig.register(_model.config_class.model_type, _model.config_class, exist_ok=True)
    AutoModelForSequenceClassification.register(_model.config_class, _model, exist_ok=True)
