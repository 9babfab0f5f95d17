"""A task type whose rows are numbers, and a model for it: nothing here has a tokenizer."""

from dataclasses import dataclass

import torch
from torch import nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel, default_data_collator
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuiltModel
from alignattn.tasks import LabelledTask
from alignattn.tasks.task import name_classes


@dataclass(frozen=True, kw_only=True)
class VectorClassification(LabelledTask):
    kind = "vector-classification"
    auto_class = "AutoModel"
    reads_texts = False

    vector_column: str

    @property
    def input_columns(self):
        return (self.vector_column,)

    def input_problems(self, dataset, *, may_be_empty):
        return {}

    def configure(self, config):
        name_classes(config, self.labels)

    def encode(self, dataset, tokenizer, options):
        assert tokenizer is None
        return dataset.rename_columns({self.vector_column: "vectors", self.label_column: "label"})

    def collator(self, tokenizer, split, *, is_training=False):
        assert tokenizer is None
        return default_data_collator


class VectorConfig(PreTrainedConfig):
    model_type = MODEL_TYPE_PREFIX + "vectors"
    size: int = 2


class VectorModel(PreTrainedModel):
    config_class, auto_class = VectorConfig, AutoModel
    main_input_name = "vectors"

    def __init__(self, config):
        super().__init__(config)
        self.classifier = nn.Linear(config.size, config.num_labels)
        self.post_init()

    @classmethod
    def build(cls, context):
        torch.manual_seed(context.seed)
        size = len(context.rows[0][context.task.vector_column])
        return BuiltModel(cls(VectorConfig(size=size, num_labels=context.task.num_labels)).eval(), None)

    def forward(self, vectors, labels=None):
        logits = self.classifier(vectors)
        loss = None if labels is None else nn.functional.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)
