"""The model card of a run, `README.md` in its folder: what the model is, what it scores, how to load it."""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented as public all the same
from markupsafe import Markup

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.finetuning.options import BALANCED, RunOptions
from alignattn.finetuning.results import AND, EVALUATION, RunResult, score_text
from alignattn.models import MODELS, capabilities_of
from alignattn.models.packaged import PACKAGED
from alignattn.reports.pages import TEMPLATES
from alignattn.tasks import (
    MultiLabelClassification,
    QuestionAnswering,
    Task,
    TextClassification,
)
from alignattn.tasks.long_texts import MAX_TRAIN_WINDOWS
from alignattn.tasks.metrics import metric_of
from alignattn.training.methods import chosen_methods, settings_of
from alignattn.utils.errors import listing
from alignattn.utils.files import plain_stem
from alignattn.utils.options import options_of
from alignattn.utils.paths import publishable

CARD_FILE = "README.md"

HUB_TASKS: Mapping[str, str] = {MultiLabelClassification.kind: TextClassification.kind}
"""The Hub's names of task types, where they differ from ours."""

SETTINGS = (
    "learning_rate",
    "alignment_learning_rate",
    "alignment_warmup_ratio",
    "slot_learning_rate",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "lr_scheduler_type",
    "warmup_steps",
    "weight_decay",
    "l2_penalty",
    "max_grad_norm",
    "max_length",
    "long_texts",
    "doc_stride",
    "model_config",
    "load_best_model_at_end",
    "metric_for_best_model",
    "early_stopping_patience",
)
"""The options that influence training most; `config.yaml` has all."""

SCOPES = {
    "projections": "the alignment loss updates only the query and key projections",
    "all": "the alignment loss also updates the layers below",
}


def model_card(result: RunResult, options: RunOptions) -> str:
    """Return the model card of a run in Markdown, with its metadata as YAML on top.

    Args:
        result: the result of the finished run.
        options: the options of the run.
    """
    data, task = options.data, options.task
    kind, model = type(options.task_of_rows), publishable(result.model)
    # A folder keeps its name in `model`, which may be that of one of our models.
    attention, capabilities = AttentionConfig.from_dict(result.attention_config), capabilities_of(options.model.model)
    attention_name = result.attention if capabilities.has_attention else ""
    data_name = result.task if data.train_file is None else plain_stem(data.train_file)
    name = "-".join([Path(model).name, data_name, *filter(None, [attention_name])])
    # The Hub id of a pretrained model; None for a folder.
    base_on_hub = None
    if options.model.model in PACKAGED:
        base_on_hub = PACKAGED[options.model.model].hub_id
    elif capabilities.is_pretrained and not Path(options.model.model).exists():
        with suppress(HFValidationError):
            validate_repo_id(options.model.model)
            base_on_hub = options.model.model
    # The task, if its rows come from a data set on the Hub.
    on_hub = task if task and task.sources.hub and data.train_file is None else None
    hub_kind = HUB_TASKS.get(kind.kind, kind.kind)

    eval_results = [
        EvalResult(
            task_type=hub_kind,
            dataset_type=on_hub.sources.hub if on_hub else data_name,
            dataset_name=data_name,
            dataset_config=(on_hub.sources.config or None) if on_hub else None,
            dataset_split=split,
            metric_type=metric_of(metric).hub_name or metric,
            metric_name=metric,
            metric_value=value,
        )
        for split, scores in result.metrics.items()
        for metric, value in scores.items()
        if value is not None
    ]
    aligned = [] if attention.alignment is None else ["alignment-attention"]
    metadata = ModelCardData(
        library_name="transformers",
        base_model=base_on_hub,
        pipeline_tag=hub_kind,
        tags=["alignattn", *aligned, *filter(None, attention_name.split("+")), kind.kind],
        datasets=None if on_hub is None else [on_hub.sources.hub],
        metrics=list(dict.fromkeys(one.metric_type for one in eval_results)) or None,
        model_name=name,
        eval_results=eval_results or None,
    )

    metrics = list(dict.fromkeys(metric for scores in result.metrics.values() for metric in scores))
    scores = [
        [split, result.evaluation_rows[split], *(score_text(m, of[m]) if m in of else "" for m in metrics)]
        for split, of in result.metrics.items()
    ]
    # The splits whose rows select the best checkpoint or stop training, if anything does: by default the first.
    watched = kind.splits_in_training(list(result.metrics))
    selected_by = options.training.metric_for_best_model if result.best is None else result.best.metric
    choosing = [
        split
        for split in watched
        if any(
            name.removeprefix(EVALUATION).removeprefix(f"{split}_") in ("loss", *result.metrics[split])
            and f"{split}_" in name
            for name in str(selected_by).split(AND)
        )
    ] or watched[:1]
    preprocessor = ("tokenizer", "AutoTokenizer") if kind.reads_texts else None
    return TEMPLATES.get_template("finetuning/card.md.jinja").render(
        metadata=metadata.to_yaml(),
        name=name,
        data_name=data_name,
        model=model,
        capabilities=capabilities,
        own=MODELS.get(options.model.model),
        attention=attention,
        has_crf=options.model.crf,
        description=_description(result, options, data_name, attention, base_on_hub).items(),
        result=result,
        metrics=metrics,
        scores=scores,
        settings=_settings(result, options, attention, kind).items(),
        auto_class=kind.auto_class,
        preprocessor=("image_processor", "AutoImageProcessor") if kind.reads_images else preprocessor,
        path=quoted(publishable(str(options.output_dir))),
        data=data,
        max_train_windows=MAX_TRAIN_WINDOWS,
        is_best_checkpoint=options.values.get("load_best_model_at_end"),
        choosing=choosing,
        unused=[split for split in result.metrics if split not in choosing],
        code=_code,
    )


def _description(
    result: RunResult, options: RunOptions, data_name: str, attention: AttentionConfig, base_on_hub: str | None
) -> dict[str, Any]:
    """Return what the model is: its task, its data, its start, and its attention with a row for each slot."""
    data, task, model = options.data, options.task, publishable(result.model)
    capabilities = capabilities_of(options.model.model)
    source: str = "a local file" if data.train_file or (task and task.sources.files) else "not on the Hub"
    if task and task.sources.hub and data.train_file is None:
        source = Markup(", ").join(_code(part) for part in (task.sources.hub, task.sources.config) if part)
    rows: dict[str, Any] = {"task": f"{data_name} ({options.task_of_rows.kind})", "data": source}
    if capabilities.is_pretrained:
        origin = "on the Hub" if base_on_hub else "a local folder"
        if options.model.model in PACKAGED:
            origin = f"from the Python package {PACKAGED[options.model.model].package}"
        rows["base model"] = _code(model, f", {origin}")
    if result.start is not None:
        rows["start"] = str(result.start)
    if capabilities.reads_embeddings:
        rows["word vectors"] = publishable((result.embeddings or {}).get("file")) or "random"
    if options.model.lora_r is not None:
        where = ", ".join(options.model.lora_target_modules or ("every linear layer",))
        rows["LoRA"] = (
            f"rank {options.model.lora_r}, α {options.model.lora_scale:g}, in {where}; merged into the weights"
        )
    if options.model.crf:
        rows["tagger"] = "a CRF over the encoder's scores, which plain transformers does not load"
    if not capabilities.has_attention:
        return rows

    rows["attention"] = _code(result.attention)
    loss = "" if attention.alignment is None else "; loss = task + λ · A(Q, K)"
    rows["formula"] = f"O = N(S(Q, K)) · g(Q, V){loss}"
    for slot, symbol in zip(SLOTS, "SNgA", strict=True):
        values = ", ".join(f"{name}={value}" for name, value in getattr(attention, f"{slot}_options").items())
        choice = getattr(attention, slot) or "none"
        choice = capabilities.own_score if slot == "score" and choice == PLAIN.score else choice
        rows[f"{slot} {symbol}"] = _code(choice, f" ({values})" if values else "")
    if attention.alignment is not None:
        rows["λ"] = f"{attention.alignment_weight:g}"
        rows["gradient scope"] = _code(attention.gradient_scope, f": {SCOPES[attention.gradient_scope]}")
        rows["reduction over heads"] = attention.head_reduction
        if attention.choices["alignment"].averages_samples:
            rows["rows of a loss"] = f"{attention.alignment_rows or 'all'} of each batch"
    return rows | {"layers": "all" if attention.layers is None else ", ".join(map(str, attention.layers))}


def _settings(result: RunResult, options: RunOptions, attention: AttentionConfig, kind: type[Task]) -> dict[str, Any]:
    """Return the settings of the training that had an effect."""
    data, declared = options.data, options_of(type(options))
    length = result.max_length
    values = options.values | {"max_length": length, "doc_stride": length and data.stride(length)}
    idle = set() if attention.alignment is not None else {name for name in SETTINGS if name.startswith("alignment_")}
    if not (data.has_windows or kind is QuestionAnswering):
        idle.add("doc_stride")
    if not kind.can_pool_windows:
        idle.add("long_texts")
    if not kind.reads_texts:
        idle.add("max_length")
    # max_steps = -1 means in transformers that the number of epochs decides.
    given = {name: values.get(name) for name in SETTINGS if name not in idle}
    rows = {
        name: value
        for name, value in given.items()
        if value not in (None, -1) and (value or value != declared[name].default)
    }
    if result.class_weights:
        weights = listing([f"{name} {weight:.3g}" for name, weight in result.class_weights.items()])
        balanced = f"{BALANCED}: " if options.training.class_weights == (BALANCED,) else ""
        rows["class weights"] = f"{balanced}{weights}"
    rows |= {method.label: settings_of(method, values) for method in chosen_methods(options.training)}
    rows |= {"seed": result.seed, "rows": result.train_rows}
    rows |= {"precision": result.precision} if result.precision else {}
    rows |= {"runtime": f"{result.train_runtime:.0f} s", "hardware": result.device}
    versions = ", ".join(f"{name} {version}" for name, version in result.versions.items())
    return rows | {"parameters": f"{result.parameters['total']:,}", "versions": versions}


def quoted(path: str) -> str:
    """Return a path as a string literal for the card's code."""
    return json.dumps(path, ensure_ascii=False)


def _code(text: str, after: str = "") -> Markup:
    """Return text in backquotes, where Markdown changes nothing but backquotes, followed by `after`."""
    return Markup("`" + text.replace("`", "'") + "`") + after  # noqa: S704, for Markdown, not for a web page
