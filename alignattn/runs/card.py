"""The README.md of a run's folder, a model card as the Hub reads them: what it is, what it scores, how to load it."""

import hashlib
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import EvalResult, ModelCardData
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]  # documented as public all the same

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import AttentionConfig
from alignattn.models import BASELINES
from alignattn.runs.options import DataOptions, RunOptions
from alignattn.runs.results import CONFIG_FILE, PREDICTIONS_FILE, RESULTS_FILE, RunResult
from alignattn.support.files import write_text
from alignattn.tasks import MultipleChoice, QuestionAnswering, Task, TextClassification, TokenClassification, get_task
from alignattn.tasks.kinds import KINDS

CARD_FILE = "README.md"

HUB_TASKS: Mapping[type[Task], str] = {
    TextClassification: "text-classification",
    MultipleChoice: "multiple-choice",
    TokenClassification: "token-classification",
    QuestionAnswering: "question-answering",
}
"""What the Hub calls the kinds of tasks."""

HUB_METRICS: Mapping[str, str] = {
    "macro_f1": "f1",
    "pearson": "pearsonr",
    "token_accuracy": "accuracy",
    **{f"{group}exact": "exact_match" for group in ("", "has_answer_", "no_answer_", "best_")},
    **{f"{group}f1": "f1" for group in ("has_answer_", "no_answer_", "best_")},
}
"""The names of the Hub's metrics where they are not ours."""

SETTINGS = (
    "learning_rate",
    "alignment_learning_rate",
    "alignment_warmup_ratio",
    "num_train_epochs",
    "max_steps",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "lr_scheduler_type",
    "warmup_ratio",
    "warmup_steps",
    "weight_decay",
    "max_grad_norm",
    "label_smoothing_factor",
    "bf16",
    "fp16",
    "max_length",
    "doc_stride",
    "model_config",
    "load_best_model_at_end",
    "metric_for_best_model",
)
"""The options that a training's outcome hangs on most; all of them are in `config.yaml`."""

ALIGNMENT_SETTINGS = frozenset(name for name in SETTINGS if name.startswith("alignment_"))
ANSWER_SETTINGS = frozenset({"doc_stride"})

SCOPES = {
    "projections": "the alignment loss moves the query and key projections only",
    "all": "the alignment loss also moves the layers below",
}

ALIGNMENT_CITATION = """@inproceedings{zhang2021alignment,
  title     = {Alignment Attention by Matching Key and Query Distributions},
  author    = {Zhang, Shujian and Fan, Xinjie and Zheng, Huangjie and Tanwisuth, Korawat and Zhou, Mingyuan},
  booktitle = {Advances in Neural Information Processing Systems},
  year      = {2021}
}"""

VALUE_CITATION = """@article{wu2020improving,
  title   = {Improving Attention Mechanism with Query-Value Interaction},
  author  = {Wu, Chuhan and Wu, Fangzhao and Qi, Tao and Huang, Yongfeng},
  journal = {arXiv:2010.03766},
  year    = {2020}
}"""

SEAL = "\n<!-- Written by alignattn, which keeps the file once you change it: "
"""Before the digest of all that stands above it, by which a card is known that nobody has changed."""

SEAL_END = " -->\n"


def model_card(result: RunResult, options: RunOptions, repo_id: str | None = None) -> str:
    """Return the card of a run in Markdown, its metadata as YAML on top.

    Args:
        result: of the finished run.
        options: of the run.
        repo_id: where it lies on the Hub, for the lines that load it; None for its folder.
    """
    return _Card(result, options).text(repo_id or str(options.output_dir))


def write_model_card(folder: Path, card: str) -> None:
    """Write the card to `README.md` in a run's folder, unless the one that is there is not as it was written."""
    path = folder / CARD_FILE
    if path.exists() and not _is_as_written(path):
        print(f"{path} is not as alignattn writes it: it stays as it is", file=sys.stderr)
        return
    write_text(path, card + SEAL + _digest(card) + SEAL_END)


def _is_as_written(path: Path) -> bool:
    card, _, seal = path.read_text(encoding="utf-8", errors="replace").rpartition(SEAL)
    return seal == _digest(card) + SEAL_END


def _digest(card: str) -> str:
    return hashlib.sha256(card.encode()).hexdigest()


class _Card:
    """The parts of a card, from the result and the options of one run."""

    def __init__(self, result: RunResult, options: RunOptions) -> None:
        self.result = result
        self.options = options
        self.data: DataOptions = options.data
        self.attention = AttentionConfig.from_dict(result.attention_config)
        self.task = None if self.data.task is None else get_task(self.data.task)
        self.kind = type(self.task) if self.task else _kind_of_own_rows(self.data)
        self.is_baseline = result.model in BASELINES
        self.base_on_hub = None if self.is_baseline or not _is_hub_id(result.model) else result.model

    def text(self, path: str) -> str:
        """Return the card of a model that is loaded from `path`."""
        sections = {
            "What it is": [self._summary(), *_table({"property": "value"}, self._description())],
            "Results": self._results(),
            "Training": [*_table({"setting": "value"}, self._settings()), "", f"All options: `{CONFIG_FILE}`."],
            "How to load it": self._loading(path),
            "Limits": [f"- {limit}" for limit in self._limits()],
            "Citation": self._citations(),
        }
        body = [f"# {self.name}"]
        for title, lines in sections.items():
            if lines:
                body += ["", f"## {title}", "", *lines]
        return f"---\n{self._metadata().to_yaml()}\n---\n\n" + "\n".join(body) + "\n"

    @property
    def name(self) -> str:
        """Model, data and attention in one name."""
        base = self.result.model if self.is_baseline else Path(self.result.model).name
        return f"{base}-{self.data_name}-{self.result.attention}"

    @property
    def data_name(self) -> str:
        """The task's name, or that of the user's own file of rows."""
        return self.result.task if self.data.train_file is None else Path(self.data.train_file).stem

    @property
    def hub_data(self) -> Task | None:
        """The task, where the rows are those of a data set on the Hub."""
        return self.task if self.task and self.task.hub_id and self.data.train_file is None else None

    def _metadata(self) -> ModelCardData:
        results = list(self._eval_results())
        return ModelCardData(
            library_name="transformers",
            base_model=self.base_on_hub,
            pipeline_tag=HUB_TASKS[self.kind],
            tags=self._tags(),
            datasets=None if self.hub_data is None else [self.hub_data.hub_id],
            metrics=list(dict.fromkeys(result.metric_type for result in results)) or None,
            model_name=self.name,
            eval_results=results or None,
        )

    def _tags(self) -> list[str]:
        aligned = [] if self.attention.alignment is None else ["alignment-attention"]
        return ["alignattn", *aligned, *self.result.attention.split("+"), HUB_TASKS[self.kind]]

    def _eval_results(self) -> Iterator[EvalResult]:
        task = self.hub_data
        for split, scores in self.result.metrics.items():
            for name, value in scores.items():
                yield EvalResult(
                    task_type=HUB_TASKS[self.kind],
                    dataset_type=task.hub_id if task else self.data_name,
                    dataset_name=self.data_name,
                    dataset_config=(task.hub_config or None) if task else None,
                    dataset_split=split,
                    metric_type=HUB_METRICS.get(name, name),
                    metric_name=name,
                    metric_value=value,
                )

    def _summary(self) -> str:
        if self.is_baseline:
            return f"`{self.result.model}`, a model that is not pretrained, trained on {self.data_name}.\n"
        start = f"`{self.result.model}` fine-tuned on {self.data_name}"
        if self.attention.changes_function:
            slots = self.attention.describe_slots()
            return f"{start} with an attention of its own ({slots}): what it computes, plain transformers cannot.\n"
        if self.attention.alignment is None:
            return f"{start} with plain soft attention.\n"
        return (
            f"{start} with alignment attention (Zhang et al. 2021): a second loss drew the distributions of each "
            "attention head's queries and keys together. In evaluation it computes what the plain model does.\n"
        )

    def _description(self) -> dict[str, Any]:
        rows = {"task": f"{self.data_name} ({HUB_TASKS[self.kind]})", "data": self._data_source()}
        if self.is_baseline:
            return rows | {"word vectors": (self.result.embeddings or {}).get("file") or "random"}
        place = "on the Hub" if self.base_on_hub else "a local folder"
        rows |= {"base model": f"`{self.result.model}`, {place}", "attention": f"`{self.result.attention}`"}
        loss = "" if self.attention.alignment is None else "; loss = task + λ · A(Q, K)"
        rows["formula"] = f"O = N(S(Q, K)) · g(Q, V){loss}"
        for slot, symbol in zip(SLOTS, ("S", "N", "g", "A"), strict=True):
            options = _listed(getattr(self.attention, f"{slot}_options"))
            rows[f"{slot} {symbol}"] = f"`{getattr(self.attention, slot) or 'none'}`{options}"
        if self.attention.alignment is not None:
            scope = self.attention.gradient_scope
            rows["λ"] = f"{self.attention.alignment_weight:g}"
            rows["gradient scope"] = f"`{scope}`: {SCOPES[scope]}"
            rows["over the heads"] = self.attention.head_reduction
        layers = self.attention.layers
        return rows | {"layers": "all" if layers is None else ", ".join(map(str, layers))}

    def _data_source(self) -> str:
        if self.hub_data is None:
            return "the user's own file" if self.data.train_file else "not on the Hub"
        return f"`{self.hub_data.hub_id}`" + (f", `{self.hub_data.hub_config}`" if self.hub_data.hub_config else "")

    def _results(self) -> list[str]:
        if not self.result.metrics:
            return ["Nothing was evaluated: no evaluation rows were given."]
        names = list(dict.fromkeys(name for scores in self.result.metrics.values() for name in scores))
        lines = [f"| split | rows | {' | '.join(names)} |", "|---" * (len(names) + 2) + "|"]
        for split, scores in self.result.metrics.items():
            values = [f"{100 * scores[name]:.2f}" if name in scores else "" for name in names]
            lines.append(f"| {split} | {self.result.evaluation_rows[split]} | {' | '.join(values)} |")
        lines += ["", f"In percent; `{RESULTS_FILE}` has them in full, `{PREDICTIONS_FILE}` every prediction."]
        for split, thresholds in self.result.thresholds.items():
            lines.append(f"On {split} {', '.join(thresholds)} are tuned to a threshold on these very rows.")
        return lines

    def _settings(self) -> dict[str, Any]:
        values = self.options.values | {"max_length": self.data.max_length or (self.task or Task).max_length}
        given = {name: values.get(name) for name in SETTINGS}
        idle = ALIGNMENT_SETTINGS if self.attention.alignment is None else frozenset()
        idle |= frozenset() if self.kind is QuestionAnswering else ANSWER_SETTINGS
        given = {name: value for name, value in given.items() if name not in idle}
        # -1 is transformers' way to say that the epochs decide.
        rows = {name: value for name, value in given.items() if value not in (None, False, -1)}
        rows |= {"seed": self.result.seed, "rows": self.result.train_rows}
        rows |= {"runtime": f"{self.result.train_runtime:.0f} s", "hardware": self.result.device}
        return rows | {"parameters": f"{self.result.parameters['total']:,}", "versions": _pairs(self.result.versions)}

    def _loading(self, path: str) -> list[str]:
        head = KINDS[self.kind].auto_class.__name__
        given = [f"path = {json.dumps(path, ensure_ascii=False)}", "tokenizer = AutoTokenizer.from_pretrained(path)"]
        imports = f"from transformers import {head}, AutoTokenizer"
        patched = f"model = alignattn.from_pretrained(path, {head})"
        if self.attention.changes_function or self.is_baseline:
            return ["It needs the package `alignattn`:", "", *_python("import alignattn", imports, "", *given, patched)]
        plain = _python(imports, "", *given, f"model = {head}.from_pretrained(path)")
        if self.attention.alignment is None:
            return plain
        return [
            "An ordinary checkpoint, of which plain transformers leaves the alignment's own networks aside:",
            *["", *plain, ""],
            "With the package `alignattn`, patched again as it was trained, those networks included:",
            *["", *_python("import alignattn", "", patched)],
        ]

    def _limits(self) -> list[str]:
        data = self.data
        limits = [f"One seed ({self.result.seed}): another may well score otherwise."]
        limits.append(
            f"Trained on {self.result.train_rows} rows{_capped('max_train_samples', data.max_train_samples)}."
        )
        for split, rows in self.result.evaluation_rows.items():
            limits.append(f"Evaluated on {rows} rows of {split}{_capped('max_eval_samples', data.max_eval_samples)}.")
        if self.options.values.get("load_best_model_at_end"):
            limits.append("The checkpoint was chosen on the rows that it is evaluated on.")
        limits += [f"{split}: {how}." for split, how in self.result.derived_splits.items()]
        for split, bad in self.result.bad_rows.items():
            limits.append(f"{len(bad)} bad row(s) of {split} were left out; `{RESULTS_FILE}` lists them.")
        return limits

    def _citations(self) -> list[str]:
        aligned = [] if self.attention.alignment is None else [ALIGNMENT_CITATION]
        interacts = [] if "value" not in self.attention.filled_slots else [VALUE_CITATION]
        entries = aligned + interacts
        return ["```bibtex", *entries, "```"] if entries else []


def _kind_of_own_rows(data: DataOptions) -> type[Task]:
    return TextClassification if data.text_columns else TokenClassification


def _is_hub_id(model: str) -> bool:
    if Path(model).exists():
        return False
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return True


def _capped(option: str, limit: int | None) -> str:
    return "" if limit is None else f" (`--{option} {limit}`)"


def _table(header: Mapping[str, str], rows: Mapping[str, Any]) -> list[str]:
    ((left, right),) = header.items()
    cells = [(left, right), ("---", "---"), *rows.items()]
    return [f"| {name} | {str(value).replace('|', chr(92) + '|')} |" for name, value in cells]


def _python(*lines: str) -> list[str]:
    return ["```python", *lines, "```"]


def _listed(options: Mapping[str, Any]) -> str:
    return f" ({', '.join(f'{name}={value}' for name, value in options.items())})" if options else ""


def _pairs(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
