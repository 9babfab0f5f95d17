"""The model card of a run, `README.md` in its folder: what the model is, what it scores, how to load it."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented as public all the same
from markupsafe import Markup

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.finetuning.best_checkpoint import AND
from alignattn.finetuning.data_options import DataOptions
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import EVALUATION, RunResult, score_text
from alignattn.finetuning.training_options import BALANCED
from alignattn.models import MODELS, capabilities_of
from alignattn.models.packaged import PACKAGED
from alignattn.reports.html import TEMPLATES
from alignattn.tasks import (
    MultiLabelClassification,
    QuestionAnswering,
    Task,
    TextClassification,
)
from alignattn.tasks.long_texts import MAX_TRAIN_WINDOWS
from alignattn.tasks.metrics import metric_of
from alignattn.tasks.task_types import processor_class
from alignattn.training.methods import chosen_methods, settings_of
from alignattn.utils.compression import plain_stem
from alignattn.utils.errors import listing
from alignattn.utils.files import write_text
from alignattn.utils.publishing import publishable

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

ALIGNMENT_SETTINGS = frozenset(name for name in SETTINGS if name.startswith("alignment_"))
WINDOW_SETTINGS = frozenset({"doc_stride"})
TEXT_SETTINGS = frozenset({"max_length"})

SCOPES = {
    "projections": "the alignment loss updates only the query and key projections",
    "all": "the alignment loss also updates the layers below",
}

SEAL = "\n<!-- Written by alignattn, which no longer overwrites the file once you change it: "
"""Marks the digest of the text above, which shows whether a user changed the card."""

SEAL_END = " -->\n"


def model_card(result: RunResult, options: RunOptions, repo_id: str | None = None) -> str:
    """Return the model card of a run in Markdown, with its metadata as YAML on top.

    Args:
        result: the result of the finished run.
        options: the options of the run.
        repo_id: the repository on the Hub, for the lines that load the model; None = load it from the run's folder, of
            which an absolute path is reduced to its last part.
    """
    return _Card(result, options).text(repo_id or publishable(str(options.output_dir)))


def write_model_card(folder: Path, card: str) -> None:
    """Write the card to `README.md` in a run's folder, unless a user has changed the card there."""
    path = folder / CARD_FILE
    if path.exists() and not _is_as_written(path):
        print(f"{path} was changed by a user: alignattn leaves it as it is", file=sys.stderr)
        return
    write_text(path, card + SEAL + _digest(card) + SEAL_END)


def _is_as_written(path: Path) -> bool:
    card, _, seal = path.read_text(encoding="utf-8", errors="replace").rpartition(SEAL)
    return seal == _digest(card) + SEAL_END


def _digest(card: str) -> str:
    return hashlib.sha256(card.encode()).hexdigest()


class _Card:
    """The content of a card, from the result and the options of one run."""

    def __init__(self, result: RunResult, options: RunOptions) -> None:
        self.result = result
        self.options = options
        self.data: DataOptions = options.data
        self.attention = AttentionConfig.from_dict(result.attention_config)
        self.task = options.task
        self.kind = type(options.task_of_rows)
        self.model = publishable(result.model)
        self.capabilities = capabilities_of(self.model)
        self.attention_name = result.attention if self.capabilities.has_attention else ""
        self.base_on_hub = _hub_id(options.values["model"]) if self.capabilities.is_pretrained else None

    def text(self, path: str) -> str:
        """Return the card of a model that is loaded from `path`."""
        metrics = list(dict.fromkeys(name for scores in self.result.metrics.values() for name in scores))
        choosing = self._choosing_splits()
        return TEMPLATES.get_template("finetuning/card.md.jinja").render(
            metadata=self._metadata().to_yaml(),
            name=self.name,
            data_name=self.data_name,
            model=self.model,
            capabilities=self.capabilities,
            models=MODELS,
            attention=self.attention,
            description=self._description().items(),
            result=self.result,
            metrics=metrics,
            scores=[self._scores(split, metrics) for split in self.result.metrics],
            settings=self._settings().items(),
            auto_class=processor_class(self.kind).auto_class.__name__,
            preprocessor=self._preprocessor(),
            path=quoted(path),
            data=self.data,
            max_train_windows=MAX_TRAIN_WINDOWS,
            is_best_checkpoint=self.options.values.get("load_best_model_at_end"),
            choosing=choosing,
            unused=[split for split in self.result.metrics if split not in choosing],
            code=_code,
        )

    @property
    def name(self) -> str:
        """Model, data and attention, if the model has any, in one name."""
        return "-".join([Path(self.model).name, self.data_name, *filter(None, [self.attention_name])])

    @property
    def data_name(self) -> str:
        """The task's name, or the name of the user's file of rows."""
        return self.result.task if self.data.train_file is None else plain_stem(self.data.train_file)

    @property
    def hub_data(self) -> Task | None:
        """The task, if its rows come from a data set on the Hub."""
        return self.task if self.task and self.task.sources.hub and self.data.train_file is None else None

    def _choosing_splits(self) -> list[str]:
        """Return the splits whose rows select the best checkpoint or stop training, if anything does."""
        watched = list(processor_class(self.kind).splits_in_training(list(self.result.metrics)))
        best = self.result.best
        metric = str(self.options.values.get("metric_for_best_model") if best is None else best.metric)
        named = {
            split
            for name in metric.split(AND)
            for split in watched
            if name.removeprefix(EVALUATION).removeprefix(f"{split}_") in ("loss", *self.result.metrics[split])
            and f"{split}_" in name
        }
        return [split for split in watched if split in named] or watched[:1]

    def _preprocessor(self) -> tuple[str, str] | None:
        """Return the name of the preprocessor and its class in transformers; None if the rows need none."""
        processor = processor_class(self.kind)
        if processor.reads_images:
            return "image_processor", "AutoImageProcessor"
        return ("tokenizer", "AutoTokenizer") if processor.reads_texts else None

    def _metadata(self) -> ModelCardData:
        results = list(self._eval_results())
        aligned = [] if self.attention.alignment is None else ["alignment-attention"]
        return ModelCardData(
            library_name="transformers",
            base_model=self.base_on_hub,
            pipeline_tag=HUB_TASKS.get(self.kind.kind, self.kind.kind),
            tags=["alignattn", *aligned, *filter(None, self.attention_name.split("+")), self.kind.kind],
            datasets=None if self.hub_data is None else [self.hub_data.sources.hub],
            metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
            model_name=self.name,
            eval_results=results or None,
        )

    def _eval_results(self) -> Iterator[EvalResult]:
        task = self.hub_data
        for split, scores in self.result.metrics.items():
            for name, value in scores.items():
                if value is None:
                    continue
                yield EvalResult(
                    task_type=HUB_TASKS.get(self.kind.kind, self.kind.kind),
                    dataset_type=task.sources.hub if task else self.data_name,
                    dataset_name=self.data_name,
                    dataset_config=(task.sources.config or None) if task else None,
                    dataset_split=split,
                    metric_type=metric_of(name).hub_name or name,
                    metric_name=name,
                    metric_value=value,
                )

    def _description(self) -> dict[str, Any]:
        rows: dict[str, Any] = {"task": f"{self.data_name} ({self.kind.kind})", "data": self._data_source()}
        if self.capabilities.is_pretrained:
            rows["base model"] = _code(self.model, f", {self._origin()}")
        if self.result.start is not None:
            rows["start"] = str(self.result.start)
        if self.capabilities.reads_embeddings:
            rows["word vectors"] = publishable((self.result.embeddings or {}).get("file")) or "random"
        model = self.options.model
        if model.lora_r is not None:
            where = ", ".join(model.lora_target_modules or ("every linear layer",))
            rows["LoRA"] = f"rank {model.lora_r}, α {model.lora_scale:g}, in {where}; merged into the weights"
        if not self.capabilities.has_attention:
            return rows
        rows["attention"] = _code(self.result.attention)
        loss = "" if self.attention.alignment is None else "; loss = task + λ · A(Q, K)"
        rows["formula"] = f"O = N(S(Q, K)) · g(Q, V){loss}"
        for slot, symbol in zip(SLOTS, "SNgA", strict=True):
            options = ", ".join(f"{name}={value}" for name, value in getattr(self.attention, f"{slot}_options").items())
            choice = getattr(self.attention, slot) or "none"
            choice = self.capabilities.own_score if slot == "score" and choice == PLAIN.score else choice
            rows[f"{slot} {symbol}"] = _code(choice, f" ({options})" if options else "")
        if self.attention.alignment is not None:
            scope = self.attention.gradient_scope
            rows["λ"] = f"{self.attention.alignment_weight:g}"
            rows["gradient scope"] = _code(scope, f": {SCOPES[scope]}")
            rows["reduction over heads"] = self.attention.head_reduction
        layers = self.attention.layers
        return rows | {"layers": "all" if layers is None else ", ".join(map(str, layers))}

    def _origin(self) -> str:
        if self.model in PACKAGED:
            return f"from the Python package {PACKAGED[self.model].package}"
        return "on the Hub" if self.base_on_hub else "a local folder"

    def _data_source(self) -> str:
        if self.hub_data is None:
            is_own = self.data.train_file or (self.task and self.task.sources.files)
            return "a local file" if is_own else "not on the Hub"
        parts = (self.hub_data.sources.hub, self.hub_data.sources.config)
        return Markup(", ").join(_code(part) for part in parts if part)

    def _scores(self, split: str, metrics: Sequence[str]) -> list[Any]:
        scores = self.result.metrics[split]
        values = [score_text(name, scores[name]) if name in scores else "" for name in metrics]
        return [split, self.result.evaluation_rows[split], *values]

    def _settings(self) -> dict[str, Any]:
        length = self.data.max_length or (self.task or Task).max_length
        values = self.options.values | {"max_length": length, "doc_stride": self.data.stride(length)}
        idle = ALIGNMENT_SETTINGS if self.attention.alignment is None else frozenset()
        idle |= frozenset() if self.data.has_windows or self.kind is QuestionAnswering else WINDOW_SETTINGS
        idle |= frozenset() if processor_class(self.kind).can_pool_windows else frozenset({"long_texts"})
        idle |= frozenset() if processor_class(self.kind).reads_texts else TEXT_SETTINGS
        given = {name: values.get(name) for name in SETTINGS if name not in idle}
        # max_steps = -1 means in transformers that the number of epochs decides.
        rows = {name: value for name, value in given.items() if value not in (None, False, -1)}
        if self.result.class_weights:
            weights = listing([f"{name} {weight:.3g}" for name, weight in self.result.class_weights.items()])
            balanced = f"{BALANCED}: " if self.options.training.class_weights == (BALANCED,) else ""
            rows["class weights"] = f"{balanced}{weights}"
        rows |= {method.label: settings_of(method, values) for method in chosen_methods(self.options.training)}
        rows |= {"seed": self.result.seed, "rows": self.result.train_rows}
        rows |= {"precision": self.result.precision} if self.result.precision else {}
        rows |= {"runtime": f"{self.result.train_runtime:.0f} s", "hardware": self.result.device}
        versions = ", ".join(f"{name} {version}" for name, version in self.result.versions.items())
        return rows | {"parameters": f"{self.result.parameters['total']:,}", "versions": versions}


def quoted(path: str) -> str:
    """Return a path as a string literal for the card's code."""
    return json.dumps(path, ensure_ascii=False)


def _code(text: str, after: str = "") -> Markup:
    """Return text in backquotes, where Markdown changes nothing but backquotes, followed by `after`."""
    return Markup("`" + text.replace("`", "'") + "`") + after  # noqa: S704, for Markdown, not for a web page


def _hub_id(model: str) -> str | None:
    """Return the Hub id of a pretrained model; None for a folder."""
    if model in PACKAGED:
        return PACKAGED[model].hub_id
    try:
        validate_repo_id(model)
    except HFValidationError:
        return None
    return None if Path(model).exists() else model
