"""The options of a run's model and its attention, and whether they fit each other and the task."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, get_args

import yaml

from alignattn.attention.choices import (
    ALIGNMENTS,
    FERTILITY,
    NORMALIZERS,
    PREDICTIVE,
    SCORES,
    SLOTS,
    VALUES,
    HeadReduction,
    choices_with,
)
from alignattn.attention.config import PLAIN, PLAIN_ATTENTION, PRESETS, AttentionConfig, GradientScope
from alignattn.finetuning.training_options import ALIGNMENT_GROUP
from alignattn.models import MODELS, capabilities_of
from alignattn.models.names import model_to_train
from alignattn.tasks import Task, TokenClassification
from alignattn.tasks.names import MAX_TEXTS
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import REQUIRED, Count, InputFile, NamedValue, Options, OutputDir, option

DEFAULT_ATTENTION = "aa-ct"

OF_ATTENTION = frozenset(field.name for field in dataclasses.fields(AttentionConfig))
NAMES_OF_ATTENTION = OF_ATTENTION | {"attention"}
"""Options that choose the attention."""

ATTENTION_GROUP, LORA_GROUP = "attention", "LoRA"
"""Groups in the help."""

AS_STORED = "auto"


@dataclass(frozen=True, kw_only=True)
class ModelOptions(Options):
    """The model and its attention."""

    heading = "model"

    model: str = option(REQUIRED, "Folder, Hub id, or of `alignattn list models`.", place=model_to_train)
    model_config: tuple[NamedValue, ...] | None = option(None, "Config fields, such as hidden_dropout_prob=0.1.")
    model_sha256: str | None = option(
        None, "Expected SHA-256 of the run given as --model.", metavar="HEX", rare=True, may_differ=True
    )
    embeddings: InputFile | None = option(
        None, "GloVe vectors (text or .npz) for models of words.", rare=True, capability="reads_embeddings"
    )
    model_revision: str = option("main", "Branch, tag or commit on the Hub.", rare=True)
    cache_dir: OutputDir | None = option(None, "Cache folder of downloads.", rare=True)
    dtype: str | None = option(
        None,
        f"Type of the weights; {AS_STORED}: as stored (default: float32; with adapters, as stored).",
        choices=("float32", "float16", "bfloat16", AS_STORED),
        rare=True,
        capability="is_pretrained",
    )
    crf: bool = option(False, "Tag words with a CRF over the encoder's scores.", rare=True, capability="is_pretrained")
    lora_r: Count | None = option(
        None,
        "Train LoRA adapters of this rank, not the model.",
        group=LORA_GROUP,
        rare=True,
        excludes={
            "crf": "adapters cannot hold a CRF",
            "balance": "adapters wrap the projections; balance the model with `alignattn balance` first",
        },
        capability="is_pretrained",
    )
    lora_alpha: float | None = option(
        None,
        "Scale α of the adapters (default: twice the rank).",
        group=LORA_GROUP,
        rare=True,
        above=0,
        requires=("lora_r",),
    )
    lora_target_modules: tuple[str, ...] | None = option(
        None,
        "Modules to adapt, such as query key (default: all linear layers).",
        group=LORA_GROUP,
        rare=True,
        metavar="NAME",
        requires=("lora_r",),
    )
    attention: str | None = option(
        None,
        f"{', '.join(PRESETS)}, or slots such as aa-ct+sparsemax (default: {DEFAULT_ATTENTION}; {PLAIN_ATTENTION} "
        "without query heads).",
        group=ATTENTION_GROUP,
    )
    score: str | None = option(None, f"{', '.join(SCORES)}.", group=ATTENTION_GROUP)
    normalizer: str | None = option(None, f"{', '.join(NORMALIZERS)}.", group=ATTENTION_GROUP)
    value: str | None = option(None, f"{', '.join(VALUES)}.", group=ATTENTION_GROUP)
    alignment: str | None = option(None, f"none, {', '.join(ALIGNMENTS)}.", group=ATTENTION_GROUP)
    normalizer_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as alpha=1.3 learned=true for entmax.", group=ATTENTION_GROUP, rare=True
    )
    value_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as init=paper for qvi.", group=ATTENTION_GROUP, rare=True
    )
    layers: tuple[int, ...] | None = option(
        None, "Layers to patch, from 0 (default: all).", group=ATTENTION_GROUP, low=0
    )
    alignment_options: tuple[NamedValue, ...] | None = option(
        None, "Options such as epsilon=0.05 for ot.", group=ALIGNMENT_GROUP, rare=True
    )
    alignment_weight: float | None = option(
        None, "Weight λ (default: 0.01; of moments 0.001).", group=ALIGNMENT_GROUP, low=0
    )
    alignment_rows: Count | None = option(None, "Drawn rows of a batch for gan, ot and ct.", group=ALIGNMENT_GROUP)
    gradient_scope: str | None = option(
        None,
        "Updates projections (default) or all.",
        group=ALIGNMENT_GROUP,
        choices=get_args(GradientScope),
    )
    head_reduction: str | None = option(
        None,
        "Reduction over heads: sum (default) or mean.",
        group=ALIGNMENT_GROUP,
        choices=get_args(HeadReduction),
        rare=True,
    )

    @cached_property
    def attention_config(self) -> AttentionConfig:
        """The attention that the options name."""
        given = {name: value for name, value in vars(self).items() if name in OF_ATTENTION and value is not None}
        for name in given:
            if name.endswith("_options"):
                given[name] = _named_values(name, given[name])
        fills_slots = bool(given.keys() & SLOTS.keys())
        is_plain = fills_slots or not capabilities_of(self.model).has_heads
        attention = self.attention or (PLAIN_ATTENTION if is_plain else DEFAULT_ATTENTION)
        if self.alignment == "none":
            given["alignment"] = None
        config = AttentionConfig.resolve(attention, **given)
        for slot, choices in capabilities_of(self.model).default_slot_options.items():
            of_model, name = choices.get(getattr(config, slot) or "", {}), f"{slot}_options"
            config = AttentionConfig.resolve(config, **{name: {**of_model, **getattr(config, name)}})
        return config

    @property
    def has_crf(self) -> bool:
        """Whether words are tagged by a CRF."""
        return self.crf or capabilities_of(self.model).has_crf

    @property
    def lora_scale(self) -> float:
        """α of the adapters, whose output is scaled by α over their rank."""
        return 2 * (self.lora_r or 0) if self.lora_alpha is None else self.lora_alpha

    @cached_property
    def model_config_fields(self) -> Mapping[str, Any]:
        """The fields of the model's config to set, with values parsed as YAML."""
        return _named_values("model_config", self.model_config or ())

    def check(self, task: Task | None = None) -> None:
        """Refuse a task, an attention and config fields that the model does not support.

        Args:
            task: the task; None if it is not known yet.

        Raises:
            AlignAttnError: if one does not fit.
        """
        name, capabilities, attention = self.model, capabilities_of(self.model), self.attention_config
        if task is not None:
            self._check_task(task)
        if not capabilities.has_attention and attention != PLAIN:
            raise AlignAttnError(f"--model {name} has no self-attention: leave out --attention, --layers and the slots")
        for slot in attention.filled_slots:
            if slot not in capabilities.slots:
                raise AlignAttnError(
                    f"--model {name} {capabilities.reasons_unsupported[slot]}: leave out the {slot} "
                    f"{getattr(attention, slot)!r}, or fill its {', '.join(capabilities.slots)}"
                )
        normalizer = attention.choices["normalizer"]
        if capabilities.attends_edges and not normalizer.has_edge_form:
            raise AlignAttnError(
                f"--normalizer {attention.normalizer} does not support the edges of a graph: --model {name} supports "
                f"{', '.join(choices_with('normalizer', 'has_edge_form'))}"
            )
        if normalizer.counts_positions and not capabilities.has_positions:
            raise AlignAttnError(
                f"--normalizer {attention.normalizer} uses a window around the query's position among the keys, which "
                f"--model {name} lacks: give --normalizer_options kind={PREDICTIVE}, or another normalizer"
            )
        if normalizer.has_budget and not capabilities.attends_step_by_step:
            takers = ", ".join(model for model in MODELS if capabilities_of(model).attends_step_by_step)
            raise AlignAttnError(
                f"--normalizer_options {FERTILITY}={attention.normalizer_options[FERTILITY]} needs a decoder that "
                f"attends one step at a time ({takers}), unlike --model {name}: give --normalizer_options bound=0.5"
            )
        own_score, named = capabilities.own_score, (self.score, *(self.attention or "").split("+"))
        if PLAIN.score in named and own_score != PLAIN.score:
            raise AlignAttnError(
                f"--score {PLAIN.score} is the default, with which --model {name} keeps its own score, {own_score!r}: "
                "leave it out, or choose another score"
            )
        for field, value in self.model_config_fields.items():
            if field in ("dtype", "torch_dtype"):
                raise AlignAttnError(f"--model_config {field}={value}: give --dtype {value} instead")
            if field in ("num_labels", "id2label", "label2id", "problem_type"):
                raise AlignAttnError(f"--model_config {field}={value}: the task sets this field: leave it out")
        if not self.model_config_fields.get("hard_attention"):
            return
        if attention.value != PLAIN.value:
            raise AlignAttnError(f"--model_config hard_attention=true allows no value: leave out {attention.value!r}")
        if normalizer.counts_positions:
            raise AlignAttnError(
                "--model_config hard_attention=true needs a word to attend to at each step, and the window of "
                f"--normalizer {attention.normalizer} may hold none: give --normalizer_options kind={PREDICTIVE}, or "
                "another normalizer"
            )

    def _check_task(self, task: Task) -> None:
        name, capabilities = self.model, capabilities_of(self.model)
        texts = len(getattr(task, "text_columns", ()))
        if capabilities.texts_per_row == (MAX_TEXTS,) and texts != MAX_TEXTS:
            raise AlignAttnError(f"--model {name} compares two texts, and task {task.name!r} has one")
        if texts and capabilities.texts_per_row and texts not in capabilities.texts_per_row:
            others = (
                other
                for other in MODELS
                if texts in capabilities_of(other).texts_per_row and isinstance(task, capabilities_of(other).tasks)
            )
            raise AlignAttnError(
                f"--model {name} reads one text, and task {task.name!r} has {texts} per row: give "
                f"{', '.join(others)} or an encoder"
            )
        if not isinstance(task, capabilities.tasks):
            kinds = " and ".join(kind.kind for kind in capabilities.tasks)
            raise AlignAttnError(f"--model {name} is for {kinds}, and task {task.name!r} is {task.kind}")
        if self.crf and not isinstance(task, TokenClassification):
            raise AlignAttnError(f"--crf is for token-classification, and task {task.name!r} is {task.kind}")


def _named_values(name: str, entries: Sequence[str]) -> dict[str, Any]:
    values = {}
    for entry in entries:
        key, equals, value = entry.partition("=")
        if not equals or not key:
            raise AlignAttnError(f"--{name} {entry!r} is not NAME=VALUE: write an equals sign and no blanks")
        if not value:
            raise AlignAttnError(f"--{name} {entry} has no value: write null for none, or leave it out")
        try:
            # YAML reads a number such as 1e-3 as text.
            has_exponent = re.fullmatch(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+", value)
            values[key] = float(value) if has_exponent else yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise AlignAttnError(f"--{name} {entry!r}: {value!r} is not a YAML value") from error
    return values
