"""The models by name, and what a model says of itself; imports nothing heavy.

To add a model is to add its file and its entry in `MODELS`. The entry has its traits, which are read before torch is
imported; its class is a `PreTrainedModel` of transformers with

* `config_class`, whose `model_type` is `MODEL_TYPE_PREFIX` and its name: so a saved folder tells whose it is;
* `auto_class`, the class of transformers that loads such a folder;
* `build`, a class method: of what a run knows, `alignattn.models.build.BuildContext`, an untrained model, `BuiltModel`.

`tests/toy_model.py` is such a file. All other models are pretrained encoders of Hugging Face.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from alignattn.attention.choices import SLOTS
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
    """What a model says of itself.

    Attributes:
        tasks: the kinds of tasks that it can be trained on.
        is_pretrained: whether it starts from a checkpoint; otherwise it is built for the words of a run's rows.
        slots: those of its attention that can be filled; where they are left out it has none, and no attention but the
            plain one may be asked of it.
        refused: why a slot that is none of these cannot be filled, by its name; where some can be, each that cannot.
        texts: how many texts a row may have, of which a class is told.
        score: what it attends by, one of `SCORES`, where the attention names no other.
        slot_options: what a choice of a slot is of where the user does not say, by the slot's name and its own.
        attends_edges: whether it attends along the edges of a graph.
        has_places: whether its queries stand at places among what they attend to, from which a window is counted.
        counts_weights: whether it attends step by step, and counts the weights that a step gave before.
        reads_texts_alone: whether all that it attends to are tokens of texts.
        calls_a_layer: attention calls that it makes for each of the layers that its config counts.
        reads_embeddings: whether it takes a file of word vectors (`--embeddings`).
        has_crf: whether it tags words by a CRF of its own.
        training: fields of `TrainingArguments` that it is trained with where the user says nothing.
    """

    tasks: tuple[type[Task], ...] = (Task,)
    is_pretrained: bool = False
    slots: tuple[str, ...] = ()
    refused: Mapping[str, str] = field(default_factory=dict)
    texts: tuple[int, ...] = (1, 2)
    score: str = PLAIN.score
    slot_options: Mapping[str, Mapping[str, Mapping[str, Any]]] = field(default_factory=dict)
    attends_edges: bool = False
    has_places: bool = True
    counts_weights: bool = False
    reads_texts_alone: bool = True
    calls_a_layer: int = 1
    reads_embeddings: bool = False
    has_crf: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.slots and self.refused.keys() != SLOTS.keys() - set(self.slots):
            raise ValueError(f"of the slots other than {self.slots} {tuple(self.refused)} say why they are refused")

    @property
    def has_attention(self) -> bool:
        """Whether it has attention whose slots can be filled."""
        return bool(self.slots)

    @property
    def has_heads(self) -> bool:
        """Whether its words attend to words: where a learned query alone does, there are no queries to study."""
        return "alignment" in self.slots


@dataclass(frozen=True)
class ModelEntry(Entry):
    """What the registry says of a model.

    Attributes:
        traits: what it says of itself.
    """

    traits: ModelCapabilities = field(default_factory=ModelCapabilities)


ALL_SLOTS = tuple(SLOTS)
OF_POOLING = tuple(slot for slot in SLOTS if slot != "alignment")
ONE_QUERY = {"alignment": "pools by a learned query, which has no distribution to align"}


FROM_NOTHING: Mapping[str, Mapping[str, str]] = {"qvi": {"init": "paper"}, "sum": {"init": "paper"}}
"""No pretrained function is there to begin at."""


def _sentence_pair_traits(training: Mapping[str, Any], slots: tuple[str, ...] = ()) -> ModelCapabilities:
    training = {"weight_decay": 0.0, "per_device_train_batch_size": 64, **training}
    return ModelCapabilities(
        tasks=(TextClassification,),
        slots=slots,
        refused=ONE_QUERY if slots else {},
        slot_options={"value": FROM_NOTHING},
        has_places=False,
        texts=(2,),
        reads_embeddings=True,
        training=training,
    )


def _text_traits(
    slots: tuple[str, ...] = (),
    tasks: tuple[type[Task], ...] = (TextClassification, MultiLabelClassification),
    epochs: int = 5,
) -> ModelCapabilities:
    # Wu et al. 2020 do not say how they train: these are ours, with a tenth of the rows to stop by.
    training = {"optim": "adamw_torch", "weight_decay": 0.0, "learning_rate": 1e-3, "lr_scheduler_type": "constant"}
    training |= {"num_train_epochs": epochs, "per_device_train_batch_size": 64, "max_grad_norm": 5.0}
    return ModelCapabilities(
        tasks=tasks,
        slots=slots,
        refused=ONE_QUERY if slots == OF_POOLING else {},
        slot_options={"value": FROM_NOTHING},
        has_places=slots != OF_POOLING,
        texts=(1,),
        reads_embeddings=True,
        has_crf=tasks == (TokenClassification,),
        training=training,
    )


STEP_BY_STEP = {"alignment": "attends by one query at a time, which is no distribution to align"}
CAUSAL = {"value": "writes word by word, and values that meet all queries would tell a word of those behind it"}


def _writing_traits(refused: Mapping[str, str], task: type[Task] = SequenceToSequence) -> ModelCapabilities:
    # Ours, as are the sizes; Luong et al. 2015 clip at 5, too.
    training = {"optim": "adamw_torch", "weight_decay": 0.0, "learning_rate": 2e-3, "lr_scheduler_type": "linear"}
    training |= {"num_train_epochs": 10, "per_device_train_batch_size": 64, "max_grad_norm": 5.0}
    training |= {"per_device_eval_batch_size": 256}
    return ModelCapabilities(
        tasks=(task,),
        slots=tuple(slot for slot in SLOTS if slot not in refused),
        refused=refused,
        slot_options={"value": FROM_NOTHING},
        # A word's place in a caption is none among the cells of a picture.
        has_places=task is SequenceToSequence,
        counts_weights=refused is STEP_BY_STEP,
        texts=(),
        reads_texts_alone=False,
        training=training,
    )


WHOLE = 2**20
"""Nodes of a batch where a batch is the whole graph, whatever it is asked for: all of a split in one."""

DRAWN_POINTS: Mapping[str, Mapping[str, int]] = {"ot": {"points": 1024}, "ct": {"points": 256}}
"""Nodes that an alignment of all pairs matches at most, drawn anew at each step. An epoch with ct of 256 of Cora's
2,708 takes 1.5 times as long as one without, of 512 twice, of all 20 times."""


def _graph_traits(score: str) -> ModelCapabilities:
    # Adam with L2, neither a schedule nor clipping, and at most 1,000 epochs (Veličković et al. 2018, §3.3; the epochs
    # and the patience are a config's). Their code stops at 100,000, which patience never reaches.
    training = {"learning_rate": 0.005, "l2_penalty": 5e-4, "lr_scheduler_type": "constant", "max_grad_norm": 0.0}
    sizes = {"per_device_train_batch_size": WHOLE, "per_device_eval_batch_size": WHOLE, "num_train_epochs": 200}
    return ModelCapabilities(
        tasks=(NodeClassification,),
        slots=ALL_SLOTS,
        score=score,
        slot_options={"alignment": DRAWN_POINTS},
        attends_edges=True,
        training={"optim": "adamw_torch", **training, **sizes},
    )


MODELS = Registry(
    "model",
    {
        # Optimizer, learning rate, batch size and clipping are those of AllenNLP's configurations (allenai/
        # allennlp-models, training_config/pair_classification), whose Adagrad runs at PyTorch's learning rate and whose
        # Adam is AdamW without decay. Ours are the numbers of epochs (theirs 140 and 75, stopped early), da's clipping
        # by norm (theirs clips each number at 5) and esim's schedule (theirs halves the rate when a score stalls).
        "da": ModelEntry(
            ".sentence_pairs:DecomposableAttentionForSequenceClassification",
            "Decomposable Attention (Parikh et al. 2016)",
            "parikh2016decomposable",
            traits=_sentence_pair_traits(
                {"optim": "adagrad", "learning_rate": 0.01, "lr_scheduler_type": "constant"}
                | {"max_grad_norm": 5.0, "num_train_epochs": 30}
            ),
        ),
        "esim": ModelEntry(
            ".sentence_pairs:EsimForSequenceClassification",
            "ESIM, the enhanced sequential inference model (Chen et al. 2017)",
            "chen2017enhanced",
            traits=_sentence_pair_traits(
                {"optim": "adamw_torch", "learning_rate": 4e-4, "lr_scheduler_type": "linear"}
                | {"max_grad_norm": 10.0, "num_train_epochs": 10}
            ),
        ),
        # Ours, as of the classifiers of single texts.
        "co-attention": ModelEntry(
            ".sentence_pairs:CoAttentionForSequenceClassification",
            "two texts, each weighed by the other (parallel co-attention of Lu et al. 2016)",
            "lu2016hierarchical",
            traits=_sentence_pair_traits(
                {"optim": "adamw_torch", "learning_rate": 1e-3, "lr_scheduler_type": "constant"}
                | {"max_grad_norm": 5.0, "num_train_epochs": 5},
                OF_POOLING,
            ),
        ),
        "gat": ModelEntry(
            ".graphs:GatForNodeClassification",
            "a graph attention network (Veličković et al. 2018)",
            "velickovic2018graph",
            traits=_graph_traits("gat"),
        ),
        "gatv2": ModelEntry(
            ".graphs:Gatv2ForNodeClassification",
            "GATv2, a graph attention network (Brody et al. 2022)",
            "brody2022attentive",
            traits=_graph_traits("gatv2"),
        ),
        # Adam and the rate of Yu et al. 2019 (their code's base; 13 epochs on VQA-v2), with a linear decay where theirs
        # steps down twice.
        "mcan": ModelEntry(
            ".vqa:McanForVisualQuestionAnswering",
            "MCAN, a deep modular co-attention network (Yu et al. 2019)",
            "yu2019deep",
            traits=ModelCapabilities(
                tasks=(VisualQuestionAnswering,),
                slots=ALL_SLOTS,
                reads_texts_alone=False,
                calls_a_layer=3,
                reads_embeddings=True,
                training={"optim": "adamw_torch", "learning_rate": 1e-4, "weight_decay": 0.0, "num_train_epochs": 13}
                | {"per_device_train_batch_size": 64, "per_device_eval_batch_size": 256},
            ),
        ),
        "cnn": ModelEntry(
            ".text_classifiers:CnnForSequenceClassification",
            "filters over words, and the maximum of each (Kim 2014)",
            "kim2014convolutional",
            traits=_text_traits(),
        ),
        "cnn-att": ModelEntry(
            ".text_classifiers:CnnAttForSequenceClassification",
            "filters over words, pooled by a learned query (CNN-Att of Wu et al. 2020)",
            "wu2020improving",
            traits=_text_traits(OF_POOLING),
        ),
        "lstm": ModelEntry(
            ".text_classifiers:LstmForSequenceClassification",
            "both directions of an LSTM (Hochreiter & Schmidhuber 1997)",
            "hochreiter1997long",
            traits=_text_traits(),
        ),
        "lstm-att": ModelEntry(
            ".text_classifiers:LstmAttForSequenceClassification",
            "both directions of an LSTM, pooled by a learned query (LSTM-Att of Wu et al. 2020)",
            "wu2020improving",
            traits=_text_traits(OF_POOLING),
        ),
        "lstm-multidim": ModelEntry(
            ".text_classifiers:LstmMultidimForSequenceClassification",
            "both directions of an LSTM, each feature pooled by weights of its own (Shen et al. 2018)",
            "shen2018disan",
            traits=_text_traits(OF_POOLING),
        ),
        "lstm-dme": ModelEntry(
            ".text_classifiers:LstmDmeForSequenceClassification",
            "an LSTM over dynamic meta-embeddings: a word's vector and spelling, weighed (Kiela et al. 2018)",
            "kiela2018dynamic",
            traits=_text_traits(OF_POOLING),
        ),
        "han": ModelEntry(
            ".text_classifiers:HanForSequenceClassification",
            "a hierarchical attention network, of words and of sentences (Yang et al. 2016)",
            "yang2016hierarchical",
            traits=_text_traits(OF_POOLING),
        ),
        "transformer": ModelEntry(
            ".text_classifiers:TransformerForSequenceClassification",
            "a Transformer's encoder from nothing (Vaswani et al. 2017)",
            "vaswani2017attention",
            traits=_text_traits(ALL_SLOTS),
        ),
        "seq2seq-lstm": ModelEntry(
            ".sequence.seq2seq_lstm:Seq2SeqLstm",
            "an LSTM that writes, and attends to what another read (Luong et al. 2015)",
            "luong2015effective",
            traits=_writing_traits(STEP_BY_STEP),
        ),
        "seq2seq-transformer": ModelEntry(
            ".sequence.seq2seq_transformer:Seq2SeqTransformer",
            "a Transformer's encoder and decoder from nothing (Vaswani et al. 2017)",
            "vaswani2017attention",
            traits=_writing_traits(CAUSAL),
        ),
        # Theirs is SGD with an annealed rate over 100 epochs of batches of 32 (§4.2): Adam takes fewer.
        "memn2n": ModelEntry(
            ".memory:MemN2NForSequenceClassification",
            "an end-to-end memory network, which answers questions about a story (Sukhbaatar et al. 2015)",
            "sukhbaatar2015end",
            traits=ModelCapabilities(
                tasks=(TextClassification,),
                slots=OF_POOLING,
                refused=STEP_BY_STEP,
                slot_options={"value": FROM_NOTHING},
                has_places=False,
                texts=(2,),
                training={
                    "optim": "adamw_torch",
                    "weight_decay": 0.0,
                    "learning_rate": 0.01,
                    "lr_scheduler_type": "linear",
                }
                | {"num_train_epochs": 30, "per_device_train_batch_size": 32, "max_grad_norm": 40.0},
            ),
        ),
        "transformer-crf": ModelEntry(
            ".taggers.transformer_crf:TransformerCrfForTokenClassification",
            "a Transformer's encoder from nothing, and a CRF over tags (Transformer-CRF of Wu et al. 2020)",
            "lafferty2001conditional",
            traits=_text_traits(ALL_SLOTS, (TokenClassification,), epochs=10),
        ),
        "cnn-transformer-crf": ModelEntry(
            ".taggers.transformer_crf:CnnTransformerCrfForTokenClassification",
            "the same over filters of neighbouring words (CNN-Transformer-CRF of Wu et al. 2020)",
            "lafferty2001conditional",
            traits=_text_traits(ALL_SLOTS, (TokenClassification,), epochs=10),
        ),
        "captioner": ModelEntry(
            ".sequence.captioner:Captioner",
            "an LSTM that writes, and attends to the cells of a picture (Xu et al. 2015)",
            "xu2015show",
            traits=_writing_traits(STEP_BY_STEP, ImageToText),
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
    tasks=TEXT_TASKS, is_pretrained=True, slots=ALL_SLOTS, training={SAMPLING_OPTION: BY_LENGTH}
)
"""What is true of any pretrained encoder of Hugging Face."""


def traits_of_config(config: Any) -> ModelCapabilities:
    """Return `capabilities_of` the model that a config of transformers is of."""
    model_type = str(getattr(config, "model_type", ""))
    is_own = model_type.startswith(MODEL_TYPE_PREFIX)
    return capabilities_of(model_type.removeprefix(MODEL_TYPE_PREFIX)) if is_own else ENCODER


def capabilities_of(model: str) -> ModelCapabilities:
    """Return what the model that `--model` names says of itself: one of `MODELS`, or else a pretrained encoder."""
    entry = MODELS.get(model)
    return entry.traits if isinstance(entry, ModelEntry) else ENCODER
