"""The models by name, and what a model says of itself; imports nothing heavy.

To add a model is to add its file and its line in `MODELS`. Its class is a `PreTrainedModel` of transformers with

* `traits`, what it says of itself;
* `config_class`, whose `model_type` is `MODEL_TYPE_PREFIX` and its name: so a saved folder tells whose it is;
* `auto_class`, the class of transformers that loads such a folder;
* `build`, a class method: of what a run knows, `alignattn.models.build.Material`, an untrained model, `BuiltModel`.

All other models are pretrained encoders of Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignattn.support.registry import Entry, Registry
from alignattn.tasks.task import Task

MODEL_TYPE_PREFIX = "alignattn-"


@dataclass(frozen=True, kw_only=True)
class Traits:
    """What a model says of itself.

    Attributes:
        tasks: the kinds of tasks that it can be trained on.
        is_pretrained: whether it starts from a checkpoint; otherwise it is built for the words of a run's rows.
        has_attention: whether it has layers of self-attention, whose slots can be filled.
        reads_pairs: whether it compares the two texts of a pair, and nothing else.
        reads_embeddings: whether it takes a file of word vectors (`--embeddings`).
        training: fields of `TrainingArguments` that it is trained with where the user says nothing.
    """

    tasks: tuple[type[Task], ...] = (Task,)
    is_pretrained: bool = False
    has_attention: bool = False
    reads_pairs: bool = False
    reads_embeddings: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)


MODELS = Registry(
    "model",
    {
        "da": Entry(
            ".decomposable_attention:DecomposableAttentionForSequenceClassification",
            "Decomposable Attention (Parikh et al. 2016)",
            "parikh2016decomposable",
        ),
        "esim": Entry(
            ".esim:EsimForSequenceClassification",
            "ESIM, the enhanced sequential inference model (Chen et al. 2017)",
            "chen2017enhanced",
        ),
    },
    package=__name__,
)
"""The models that are not pretrained encoders."""

ENCODER = Traits(is_pretrained=True, has_attention=True)
"""What is true of any pretrained encoder of Hugging Face."""


def traits_of(model: str) -> Traits:
    """Return what the model that `--model` names says of itself: one of `MODELS`, or else a pretrained encoder."""
    traits: Traits = MODELS.load(model).traits if model in MODELS else ENCODER
    return traits
