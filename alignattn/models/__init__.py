"""The models by name, with their capabilities; imports nothing heavy.

To add a model, add its file, its entry here and its line in `training_defaults.yaml`. Capabilities are read before
torch is imported. The class is a `PreTrainedModel` of transformers with

* `config_class`, whose `model_type` is `MODEL_TYPE_PREFIX` and the name, so that a saved folder identifies its model;
* `auto_class`, the class of transformers that loads such a folder;
* `build`, a class method that builds an untrained `BuiltModel` from an `alignattn.models.build.BuildContext`.

`tests/toy_model.py` is an example. All other models are pretrained encoders of Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from alignattn.attention.choices import ALIGNMENTS, SLOTS, VALUES
from alignattn.attention.config import PLAIN
from alignattn.tasks import (
    ImageClassification,
    ImageToText,
    MultiLabelClassification,
    MultipleChoice,
    NodeClassification,
    QuestionAnswering,
    SequenceToSequence,
    Task,
    TextClassification,
    TokenClassification,
    VisualQuestionAnswering,
)
from alignattn.utils.registry import Entry, Registry

MODEL_TYPE_PREFIX = "alignattn-"


@dataclass(frozen=True, kw_only=True)
class ModelCapabilities:
    """The capabilities of a model that runs depend on.

    Attributes:
        tasks: the task types that it can be trained on.
        is_pretrained: whether it starts from a checkpoint; otherwise it is built for the words of a run's rows.
        slots: the slots of its attention that can be filled; if empty, the model supports only plain attention.
        reasons_unsupported: why each other slot cannot be filled, in words that follow the model's name; empty if
            `slots` is.
        texts_per_row: how many texts a row with one class may have.
        own_score: its default score, one of `SCORES`.
        default_slot_options: default options of choices, by slot and choice.
        attends_edges: whether it attends along the edges of a graph.
        has_positions: whether its queries have positions among the keys, as a window needs.
        attends_step_by_step: whether it attends with one query at a time, and sums the weights of earlier steps.
        reads_texts_alone: whether it attends only to tokens of texts.
        reads_embeddings: whether it accepts a file of word vectors (`--embeddings`).
        has_crf: whether it always tags words by a CRF.
        training_defaults: its default fields of `TrainingArguments`.
    """

    tasks: tuple[type[Task], ...] = (Task,)
    is_pretrained: bool = False
    slots: tuple[str, ...] = ()
    reasons_unsupported: Mapping[str, str] = field(default_factory=dict)
    texts_per_row: tuple[int, ...] = (1, 2)
    own_score: str = PLAIN.score
    default_slot_options: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    attends_edges: bool = False
    has_positions: bool = True
    attends_step_by_step: bool = False
    reads_texts_alone: bool = True
    reads_embeddings: bool = False
    has_crf: bool = False
    training_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots and self.reasons_unsupported.keys() != SLOTS.keys() - set(self.slots):
            raise ValueError(f"every slot besides {self.slots} needs a reason in reasons_unsupported")

    @property
    def has_attention(self) -> bool:
        """Whether it has attention whose slots can be filled."""
        return bool(self.slots)

    @property
    def has_heads(self) -> bool:
        """Whether its words attend to words; with only a learned query there are no queries to study."""
        return "alignment" in self.slots


@dataclass(frozen=True)
class ModelEntry(ModelCapabilities, Entry):
    """The registry entry of a model: its class, and its capabilities as fields."""


ALL_SLOTS = tuple(SLOTS)
POOLING_SLOTS = tuple(slot for slot in SLOTS if slot != "alignment")
POOLS = {"alignment": "pools by a learned query, which is not a distribution"}
STEP_BY_STEP = {"alignment": "attends with one query at a time, which is not a distribution"}
CAUSAL = {"value": "generates word by word, and values that read all queries would leak later words"}
"""Reasons why a model does not support a slot."""

VALUES_FROM_SCRATCH = {
    "value": {name: value.options_from_scratch for name, value in VALUES.items() if value.options_from_scratch}
}

Fields = Mapping[str, Any]
"""Capabilities that several models share."""

OF_POOLING: Fields = {"slots": POOLING_SLOTS, "reasons_unsupported": POOLS, "has_positions": False}

OF_TEXTS: Fields = {
    "tasks": (TextClassification, MultiLabelClassification),
    "texts_per_row": (1,),
    "reads_embeddings": True,
}
OF_TAGS: Fields = {**OF_TEXTS, "tasks": (TokenClassification,), "slots": ALL_SLOTS, "has_crf": True}
OF_PAIRS: Fields = {
    **OF_TEXTS,
    "tasks": (TextClassification,),
    "texts_per_row": (2,),
    "has_positions": False,
}
OF_GENERATORS: Fields = {
    "texts_per_row": (),
    "reads_texts_alone": False,
}
OF_LSTM_GENERATORS: Fields = {
    **OF_GENERATORS,
    "slots": POOLING_SLOTS,
    "reasons_unsupported": STEP_BY_STEP,
    "attends_step_by_step": True,
}
OF_GRAPHS: Fields = {
    "tasks": (NodeClassification,),
    "slots": ALL_SLOTS,
    "default_slot_options": {
        "alignment": {
            name: {"points": choice.points_on_graph} for name, choice in ALIGNMENTS.items() if choice.points_on_graph
        }
    },
    "attends_edges": True,
}

_ENTRIES = {
    "da": ModelEntry(
        ".sentence_pairs:DecomposableAttentionForSequenceClassification",
        "Decomposable Attention (Parikh et al. 2016)",
        "parikh2016decomposable",
        **OF_PAIRS,
    ),
    "esim": ModelEntry(
        ".sentence_pairs:EsimForSequenceClassification",
        "ESIM, the enhanced sequential inference model (Chen et al. 2017)",
        "chen2017enhanced",
        **OF_PAIRS,
    ),
    "co-attention": ModelEntry(
        ".sentence_pairs:CoAttentionForSequenceClassification",
        "two texts, each weighted by the other (parallel co-attention of Lu et al. 2016)",
        "lu2016hierarchical",
        **{**OF_PAIRS, **OF_POOLING},
    ),
    "gat": ModelEntry(
        ".graphs:GatForNodeClassification",
        "a graph attention network (Veličković et al. 2018)",
        "velickovic2018graph",
        own_score="gat",
        **OF_GRAPHS,
    ),
    "gatv2": ModelEntry(
        ".graphs:Gatv2ForNodeClassification",
        "GATv2, a graph attention network (Brody et al. 2022)",
        "brody2022attentive",
        own_score="gatv2",
        **OF_GRAPHS,
    ),
    "mcan": ModelEntry(
        ".vqa:McanForVisualQuestionAnswering",
        "MCAN, a deep modular co-attention network (Yu et al. 2019)",
        "yu2019deep",
        tasks=(VisualQuestionAnswering,),
        slots=ALL_SLOTS,
        reads_texts_alone=False,
        reads_embeddings=True,
        # A region has no position among the regions, or among the words of the question.
        has_positions=False,
    ),
    "cnn": ModelEntry(
        ".text_classifiers:CnnForSequenceClassification",
        "convolutions over words, and the maximum of each filter (Kim 2014)",
        "kim2014convolutional",
        **OF_TEXTS,
    ),
    "cnn-att": ModelEntry(
        ".text_classifiers:CnnAttForSequenceClassification",
        "convolutions over words, pooled by a learned query (CNN-Att of Wu et al. 2020)",
        "wu2020improving",
        **OF_TEXTS,
        **OF_POOLING,
    ),
    "lstm": ModelEntry(
        ".text_classifiers:LstmForSequenceClassification",
        "a bidirectional LSTM (Hochreiter & Schmidhuber 1997)",
        "hochreiter1997long",
        **OF_TEXTS,
    ),
    "lstm-att": ModelEntry(
        ".text_classifiers:LstmAttForSequenceClassification",
        "a bidirectional LSTM, pooled by a learned query (LSTM-Att of Wu et al. 2020)",
        "wu2020improving",
        **OF_TEXTS,
        **OF_POOLING,
    ),
    "lstm-multidim": ModelEntry(
        ".text_classifiers:LstmMultidimForSequenceClassification",
        "a bidirectional LSTM, each feature pooled with its own weights (Shen et al. 2018)",
        "shen2018disan",
        **OF_TEXTS,
        **OF_POOLING,
    ),
    "lstm-dme": ModelEntry(
        ".text_classifiers:LstmDmeForSequenceClassification",
        "an LSTM over dynamic meta-embeddings: weighted vectors of words and of their spelling (Kiela et al. 2018)",
        "kiela2018dynamic",
        **OF_TEXTS,
        **OF_POOLING,
    ),
    "han": ModelEntry(
        ".text_classifiers:HanForSequenceClassification",
        "a hierarchical attention network over words and sentences (Yang et al. 2016)",
        "yang2016hierarchical",
        **OF_TEXTS,
        **OF_POOLING,
    ),
    "transformer": ModelEntry(
        ".text_classifiers:TransformerForSequenceClassification",
        "a Transformer encoder from scratch (Vaswani et al. 2017)",
        "vaswani2017attention",
        slots=ALL_SLOTS,
        **OF_TEXTS,
    ),
    "seq2seq-lstm": ModelEntry(
        ".sequence.lstm:Seq2SeqLstm",
        "an LSTM decoder that attends to an LSTM encoder (Luong et al. 2015)",
        "luong2015effective",
        tasks=(SequenceToSequence,),
        **OF_LSTM_GENERATORS,
    ),
    "seq2seq-transformer": ModelEntry(
        ".sequence.transformer:Seq2SeqTransformer",
        "a Transformer encoder-decoder from scratch (Vaswani et al. 2017)",
        "vaswani2017attention",
        tasks=(SequenceToSequence,),
        slots=tuple(slot for slot in SLOTS if slot not in CAUSAL),
        reasons_unsupported=CAUSAL,
        **OF_GENERATORS,
    ),
    "memn2n": ModelEntry(
        ".memory:MemN2NForSequenceClassification",
        "an end-to-end memory network for questions about a story (Sukhbaatar et al. 2015)",
        "sukhbaatar2015end",
        **{**OF_PAIRS, **OF_POOLING, "reasons_unsupported": STEP_BY_STEP, "reads_embeddings": False},
    ),
    "transformer-crf": ModelEntry(
        ".taggers.transformer_crf:TransformerCrfForTokenClassification",
        "a Transformer encoder from scratch with a CRF (Transformer-CRF of Wu et al. 2020)",
        "lafferty2001conditional",
        **OF_TAGS,
    ),
    "cnn-transformer-crf": ModelEntry(
        ".taggers.transformer_crf:CnnTransformerCrfForTokenClassification",
        "convolutions over words and a Transformer encoder with a CRF (CNN-Transformer-CRF of Wu et al. 2020)",
        "lafferty2001conditional",
        **OF_TAGS,
    ),
    "captioner": ModelEntry(
        ".sequence.captioner:Captioner",
        "an LSTM decoder that attends to the cells of a picture (Xu et al. 2015)",
        "xu2015show",
        tasks=(ImageToText,),
        # A word's position in a caption is no position among the cells of a picture.
        has_positions=False,
        **OF_LSTM_GENERATORS,
    ),
}

_TRAINING: Mapping[str, Fields] = yaml.safe_load((Path(__file__).parent / "training_defaults.yaml").read_text())

MODELS = Registry(
    "model",
    {
        name: replace(
            entry,
            training_defaults=_TRAINING[name],
            default_slot_options={**VALUES_FROM_SCRATCH, **entry.default_slot_options},
        )
        for name, entry in _ENTRIES.items()
    },
    package=__name__,
)
"""The models that are trained from scratch."""

TEXT_TASKS = (
    TextClassification,
    MultiLabelClassification,
    MultipleChoice,
    TokenClassification,
    QuestionAnswering,
)
"""The task types whose rows are tokenized."""

SAMPLING_OPTION = "train_sampling_strategy"
AT_RANDOM, IN_FILE_ORDER, BY_LENGTH, REBALANCED = "random", "sequential", "group_by_length", "batch_rebalance"
"""Sampling strategies of `Trainer`; batches of similar lengths need little padding."""

ENCODER = ModelCapabilities(
    tasks=(*TEXT_TASKS, ImageClassification),
    is_pretrained=True,
    slots=ALL_SLOTS,
    training_defaults={SAMPLING_OPTION: BY_LENGTH},
)
"""Capabilities of any pretrained encoder of Hugging Face."""


def capabilities_of_config(config: Any) -> ModelCapabilities:
    """Return the capabilities of the model that a transformers config belongs to."""
    model_type = str(getattr(config, "model_type", ""))
    is_own = model_type.startswith(MODEL_TYPE_PREFIX)
    return capabilities_of(model_type.removeprefix(MODEL_TYPE_PREFIX)) if is_own else ENCODER


def capabilities_of(model: str) -> ModelCapabilities:
    """Return the capabilities of a value of `--model`: one of `MODELS`, otherwise a pretrained encoder."""
    return MODELS.get(model, ENCODER)
