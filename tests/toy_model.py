"""A model added as a user adds one: this file and a line in the registry, which `test_own_models.py` writes."""

from itertools import chain

from own_encoder import OwnEncoder
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuiltModel
from alignattn.models.words import build_tokenizer


class ToyConfig(PreTrainedConfig):
    model_type = MODEL_TYPE_PREFIX + "toy"

    def __init__(self, vocab_size=2, **fields):
        super().__init__(**fields)
        self.vocab_size = vocab_size


class ToyClassifier(PreTrainedModel):
    config_class, auto_class = ToyConfig, AutoModelForSequenceClassification

    def __init__(self, config):
        super().__init__(config)
        self.encoder = OwnEncoder(config.vocab_size, config.num_labels)
        self.post_init()

    @classmethod
    def build(cls, context):
        texts = chain.from_iterable(context.rows[column] for column in context.task.text_columns)
        tokenizer = build_tokenizer(texts)
        config = ToyConfig(vocab_size=len(tokenizer), num_labels=context.task.num_labels)
        return BuiltModel(cls(config).eval(), tokenizer)

    def forward(self, input_ids, attention_mask=None, token_type_ids=None, labels=None):
        return SequenceClassifierOutput(**self.encoder(input_ids, attention_mask, labels))
