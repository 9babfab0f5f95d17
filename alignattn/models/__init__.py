"""The models by name, with their capabilities; imports nothing heavy.

To add a model is to add its file and its entry in `MODELS`. The entry has its capabilities, which are read before torch
is imported; its class is a `PreTrainedModel` of transformers with

* `config_class`, whose `model_type` is `MODEL_TYPE_PREFIX` and its name: so a saved folder tells whose it is;
* `auto_class`, the class of transformers that loads such a folder;
* `build`, a class method: of what a run knows, `alignattn.models.build.BuildContext`, an untrained model, `BuiltModel`.

`tests/toy_model.py` is such a file. All other models are pretrained encoders of Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignattn.attention.choices import ALIGNMENTS, SLOTS, VALUES
from alignattn.attention.config import PLAIN
from alignattn.tasks import (
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
    """What a model can do, and what a run needs to know of it.

    Attributes:
        tasks: the kinds of tasks that it can be trained on.
        is_pretrained: whether it starts from a checkpoint; otherwise it is built for the words of a run's rows.
        slots: the slots of its attention that can be filled; without any, only plain attention may be asked of it.
        reasons_unsupported: why each other slot cannot be filled, in words that follow the model's name; empty where
            `slots` is.
        texts_per_row: how many texts a row of classes may have.
        own_score: the score that it attends by, one of `SCORES`, where the attention names no other.
        default_slot_options: options of choices where the user does not say, by slot and choice.
        attends_edges: whether it attends along the edges of a graph.
        has_positions: whether its queries have positions among what they attend to, from which a window is counted.
        attends_step_by_step: whether it attends by one query at a time, and sums the weights of earlier steps.
        reads_texts_alone: whether all that it attends to are tokens of texts.
        calls_per_layer: attention calls for each of the layers that its config counts.
        reads_embeddings: whether it takes a file of word vectors (`--embeddings`).
        has_crf: whether it tags words by a CRF of its own.
        training_defaults: fields of `TrainingArguments` that it is trained with where the user does not say.
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
    calls_per_layer: int = 1
    reads_embeddings: bool = False
    has_crf: bool = False
    training_defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots and self.reasons_unsupported.keys() != SLOTS.keys() - set(self.slots):
            raise ValueError(f"each slot other than {self.slots} needs a reason in reasons_unsupported")

    @property
    def has_attention(self) -> bool:
        """Whether it has attention whose slots can be filled."""
        return bool(self.slots)

    @property
    def has_heads(self) -> bool:
        """Whether its words attend to words: where a learned query alone does, there are no queries to study."""
        return "alignment" in self.slots


@dataclass(frozen=True)
class ModelEntry(ModelCapabilities, Entry):
    """What the registry says of a model: its class, and its capabilities as fields."""


ALL_SLOTS = tuple(SLOTS)
POOLING_SLOTS = tuple(slot for slot in SLOTS if slot != "alignment")
POOLS = {"alignment": "pools by a learned query, which has no distribution to align"}
STEP_BY_STEP = {"alignment": "attends by one query at a time, which is no distribution to align"}
CAUSAL = {"value": "writes word by word, and values that meet all queries would tell a word of those behind it"}
"""Reasons why a slot cannot be filled."""

VALUES_FROM_SCRATCH = {
    "value": {name: value.options_from_scratch for name, value in VALUES.items() if value.options_from_scratch}
}

WHOLE = 2**20
"""Nodes of a batch where a batch is the whole graph, whatever it is asked for: all of a split in one."""

Training = Mapping[str, Any]


def _adam(
    learning_rate: float, epochs: int, schedule: str, batch_size: int = 64, max_grad_norm: float = 5.0
) -> Training:
    """Return training defaults with Adam and without weight decay."""
    return {
        "optim": "adamw_torch",
        "weight_decay": 0.0,
        "learning_rate": learning_rate,
        "lr_scheduler_type": schedule,
        "num_train_epochs": epochs,
        "per_device_train_batch_size": batch_size,
        "max_grad_norm": max_grad_norm,
    }


def _pair_classifier(
    target: str, description: str, work: str, training: Training, slots: tuple[str, ...] = ()
) -> ModelEntry:
    return ModelEntry(
        f".sentence_pairs:{target}",
        description,
        work,
        tasks=(TextClassification,),
        slots=slots,
        reasons_unsupported=POOLS if slots else {},
        default_slot_options=VALUES_FROM_SCRATCH,
        has_positions=False,
        texts_per_row=(2,),
        reads_embeddings=True,
        training_defaults=training,
    )


def _text_model(
    target: str,
    description: str,
    work: str,
    slots: tuple[str, ...],
    tasks: tuple[type[Task], ...] = (TextClassification, MultiLabelClassification),
    epochs: int = 5,
) -> ModelEntry:
    return ModelEntry(
        target,
        description,
        work,
        tasks=tasks,
        slots=slots,
        reasons_unsupported=POOLS if slots == POOLING_SLOTS else {},
        default_slot_options=VALUES_FROM_SCRATCH,
        has_positions=slots != POOLING_SLOTS,
        texts_per_row=(1,),
        reads_embeddings=True,
        has_crf=tasks == (TokenClassification,),
        # Wu et al. 2020 do not say how they train: these are ours, with a tenth of the rows to stop by.
        training_defaults=_adam(1e-3, epochs, "constant"),
    )


def _generator(
    target: str, description: str, work: str, reasons: Mapping[str, str], task: type[Task] = SequenceToSequence
) -> ModelEntry:
    return ModelEntry(
        target,
        description,
        work,
        tasks=(task,),
        slots=tuple(slot for slot in SLOTS if slot not in reasons),
        reasons_unsupported=reasons,
        default_slot_options=VALUES_FROM_SCRATCH,
        # A word's position in a caption is none among the cells of a picture.
        has_positions=task is SequenceToSequence,
        attends_step_by_step=reasons is STEP_BY_STEP,
        texts_per_row=(),
        reads_texts_alone=False,
        # Ours, as are the sizes; Luong et al. 2015 clip at 5, too.
        training_defaults={**_adam(2e-3, 10, "linear"), "per_device_eval_batch_size": 256},
    )


def _graph_network(target: str, description: str, work: str, own_score: str) -> ModelEntry:
    points = {name: {"points": choice.points_on_graph} for name, choice in ALIGNMENTS.items() if choice.points_on_graph}
    return ModelEntry(
        f".graphs:{target}",
        description,
        work,
        tasks=(NodeClassification,),
        slots=ALL_SLOTS,
        own_score=own_score,
        default_slot_options={"alignment": points},
        attends_edges=True,
        # Adam with L2, neither a schedule nor clipping, and at most 1,000 epochs (Veličković et al. 2018, §3.3; the
        # epochs and the patience are a config's). Their code stops at 100,000, which patience never reaches.
        training_defaults={
            "optim": "adamw_torch",
            "learning_rate": 0.005,
            "l2_penalty": 5e-4,
            "lr_scheduler_type": "constant",
            "max_grad_norm": 0.0,
            "per_device_train_batch_size": WHOLE,
            "per_device_eval_batch_size": WHOLE,
            "num_train_epochs": 200,
        },
    )


MODELS = Registry(
    "model",
    {
        # Optimizer, learning rate, batch size and clipping are those of AllenNLP's configurations (allenai/
        # allennlp-models, training_config/pair_classification), whose Adagrad runs at PyTorch's learning rate and whose
        # Adam is AdamW without decay. Ours are the numbers of epochs (theirs 140 and 75, stopped early), da's clipping
        # by norm (theirs clips each number at 5) and esim's schedule (theirs halves the rate when a score stalls).
        "da": _pair_classifier(
            "DecomposableAttentionForSequenceClassification",
            "Decomposable Attention (Parikh et al. 2016)",
            "parikh2016decomposable",
            {**_adam(0.01, 30, "constant"), "optim": "adagrad"},
        ),
        "esim": _pair_classifier(
            "EsimForSequenceClassification",
            "ESIM, the enhanced sequential inference model (Chen et al. 2017)",
            "chen2017enhanced",
            _adam(4e-4, 10, "linear", max_grad_norm=10.0),
        ),
        # Ours, as of the classifiers of single texts.
        "co-attention": _pair_classifier(
            "CoAttentionForSequenceClassification",
            "two texts, each weighed by the other (parallel co-attention of Lu et al. 2016)",
            "lu2016hierarchical",
            _adam(1e-3, 5, "constant"),
            POOLING_SLOTS,
        ),
        "gat": _graph_network(
            "GatForNodeClassification",
            "a graph attention network (Veličković et al. 2018)",
            "velickovic2018graph",
            "gat",
        ),
        "gatv2": _graph_network(
            "Gatv2ForNodeClassification",
            "GATv2, a graph attention network (Brody et al. 2022)",
            "brody2022attentive",
            "gatv2",
        ),
        # Adam and the rate of Yu et al. 2019 (their code's base; 13 epochs on VQA-v2), with a linear decay where theirs
        # steps down twice.
        "mcan": ModelEntry(
            ".vqa:McanForVisualQuestionAnswering",
            "MCAN, a deep modular co-attention network (Yu et al. 2019)",
            "yu2019deep",
            tasks=(VisualQuestionAnswering,),
            slots=ALL_SLOTS,
            reads_texts_alone=False,
            calls_per_layer=3,
            reads_embeddings=True,
            training_defaults={
                "optim": "adamw_torch",
                "learning_rate": 1e-4,
                "weight_decay": 0.0,
                "num_train_epochs": 13,
                "per_device_train_batch_size": 64,
                "per_device_eval_batch_size": 256,
            },
        ),
        "cnn": _text_model(
            ".text_classifiers:CnnForSequenceClassification",
            "filters over words, and the maximum of each (Kim 2014)",
            "kim2014convolutional",
            (),
        ),
        "cnn-att": _text_model(
            ".text_classifiers:CnnAttForSequenceClassification",
            "filters over words, pooled by a learned query (CNN-Att of Wu et al. 2020)",
            "wu2020improving",
            POOLING_SLOTS,
        ),
        "lstm": _text_model(
            ".text_classifiers:LstmForSequenceClassification",
            "both directions of an LSTM (Hochreiter & Schmidhuber 1997)",
            "hochreiter1997long",
            (),
        ),
        "lstm-att": _text_model(
            ".text_classifiers:LstmAttForSequenceClassification",
            "both directions of an LSTM, pooled by a learned query (LSTM-Att of Wu et al. 2020)",
            "wu2020improving",
            POOLING_SLOTS,
        ),
        "lstm-multidim": _text_model(
            ".text_classifiers:LstmMultidimForSequenceClassification",
            "both directions of an LSTM, each feature pooled by weights of its own (Shen et al. 2018)",
            "shen2018disan",
            POOLING_SLOTS,
        ),
        "lstm-dme": _text_model(
            ".text_classifiers:LstmDmeForSequenceClassification",
            "an LSTM over dynamic meta-embeddings: a word's vector and spelling, weighed (Kiela et al. 2018)",
            "kiela2018dynamic",
            POOLING_SLOTS,
        ),
        "han": _text_model(
            ".text_classifiers:HanForSequenceClassification",
            "a hierarchical attention network, of words and of sentences (Yang et al. 2016)",
            "yang2016hierarchical",
            POOLING_SLOTS,
        ),
        "transformer": _text_model(
            ".text_classifiers:TransformerForSequenceClassification",
            "a Transformer's encoder from scratch (Vaswani et al. 2017)",
            "vaswani2017attention",
            ALL_SLOTS,
        ),
        "seq2seq-lstm": _generator(
            ".sequence.seq2seq_lstm:Seq2SeqLstm",
            "an LSTM that writes, and attends to what another read (Luong et al. 2015)",
            "luong2015effective",
            STEP_BY_STEP,
        ),
        "seq2seq-transformer": _generator(
            ".sequence.seq2seq_transformer:Seq2SeqTransformer",
            "a Transformer's encoder and decoder from scratch (Vaswani et al. 2017)",
            "vaswani2017attention",
            CAUSAL,
        ),
        # Theirs is SGD with an annealed rate over 100 epochs of batches of 32 (§4.2): Adam takes fewer.
        "memn2n": ModelEntry(
            ".memory:MemN2NForSequenceClassification",
            "an end-to-end memory network, which answers questions about a story (Sukhbaatar et al. 2015)",
            "sukhbaatar2015end",
            tasks=(TextClassification,),
            slots=POOLING_SLOTS,
            reasons_unsupported=STEP_BY_STEP,
            default_slot_options=VALUES_FROM_SCRATCH,
            has_positions=False,
            texts_per_row=(2,),
            training_defaults=_adam(0.01, 30, "linear", batch_size=32, max_grad_norm=40.0),
        ),
        "transformer-crf": _text_model(
            ".taggers.transformer_crf:TransformerCrfForTokenClassification",
            "a Transformer's encoder from scratch, and a CRF over tags (Transformer-CRF of Wu et al. 2020)",
            "lafferty2001conditional",
            ALL_SLOTS,
            (TokenClassification,),
            epochs=10,
        ),
        "cnn-transformer-crf": _text_model(
            ".taggers.transformer_crf:CnnTransformerCrfForTokenClassification",
            "the same over filters of neighbouring words (CNN-Transformer-CRF of Wu et al. 2020)",
            "lafferty2001conditional",
            ALL_SLOTS,
            (TokenClassification,),
            epochs=10,
        ),
        "captioner": _generator(
            ".sequence.captioner:Captioner",
            "an LSTM that writes, and attends to the cells of a picture (Xu et al. 2015)",
            "xu2015show",
            STEP_BY_STEP,
            ImageToText,
        ),
    },
    package=__name__,
)
"""The models that are not pretrained encoders."""

TEXT_TASKS = (
    TextClassification,
    MultiLabelClassification,
    MultipleChoice,
    TokenClassification,
    QuestionAnswering,
)
"""The kinds whose rows a tokenizer reads."""

SAMPLING_OPTION = "train_sampling_strategy"
AT_RANDOM, IN_FILE_ORDER, BY_LENGTH, REBALANCED = "random", "sequential", "group_by_length", "batch_rebalance"
"""Of `Trainer`: which training rows make a batch; those of like length have little padding."""

ENCODER = ModelCapabilities(
    tasks=TEXT_TASKS, is_pretrained=True, slots=ALL_SLOTS, training_defaults={SAMPLING_OPTION: BY_LENGTH}
)
"""What is true of any pretrained encoder of Hugging Face."""


def capabilities_of_config(config: Any) -> ModelCapabilities:
    """Return `capabilities_of` the model of a config of transformers."""
    model_type = str(getattr(config, "model_type", ""))
    is_own = model_type.startswith(MODEL_TYPE_PREFIX)
    return capabilities_of(model_type.removeprefix(MODEL_TYPE_PREFIX)) if is_own else ENCODER


def capabilities_of(model: str) -> ModelCapabilities:
    """Return the capabilities of the model that `--model` names: one of `MODELS`, or else a pretrained encoder."""
    return MODELS.get(model, ENCODER)
