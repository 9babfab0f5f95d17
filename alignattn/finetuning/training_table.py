"""Writes `training_options.json`, transformers' options: `python -m alignattn.finetuning.training_table`.

The table lets an option be read, judged and explained without importing transformers; a test holds it to the installed
version.
"""

import json
from collections.abc import Mapping
from typing import Any, get_args, get_origin, get_type_hints

from transformers import HfArgumentParser, TrainingArguments

from alignattn.finetuning.training_options import TABLE_FILE
from alignattn.utils.files import write_text
from alignattn.utils.option import MAX_PROCESSES, MAX_SEED, PLACEHOLDERS

NOT_NEGATIVE = ("adam_epsilon", "eval_delay", "learning_rate", "local_rank", "max_grad_norm", "neftune_noise_alpha")
POSITIVE = ("eval_steps", "logging_steps", "num_train_epochs", "save_steps")
AT_LEAST_ONE = ("max_steps", "gradient_accumulation_steps", "per_device_eval_batch_size", "per_device_train_batch_size")
COUNTS = ("dataloader_prefetch_factor", "ddp_bucket_cap_mb", "ddp_timeout", "eval_accumulation_steps")

RANGES: Mapping[str, Mapping[str, float]] = {
    **{name: {"low": 0} for name in (*NOT_NEGATIVE, "warmup_steps", "weight_decay")},
    **{name: {"above": 0} for name in POSITIVE},
    **{name: {"low": 1} for name in (*AT_LEAST_ONE, *COUNTS, "save_total_limit", "torch_empty_cache_steps")},
    **{name: {"low": 0, "below": 1} for name in ("adam_beta1", "adam_beta2")},
    **{name: {"low": 0, "high": MAX_SEED} for name in ("data_seed", "seed")},
    "dataloader_num_workers": {"low": 0, "high": MAX_PROCESSES},
    "label_smoothing_factor": {"low": 0, "high": 1},
}
"""The ranges of numbers, which transformers does not declare."""


def training_table() -> dict[str, dict[str, Any]]:
    """Return name -> type, default, help, choices and range of the options that transformers' own parser takes."""
    parser: Any = HfArgumentParser(TrainingArguments)  # type: ignore[arg-type]
    defaults, hints = vars(parser.parse_args([])), get_type_hints(TrainingArguments)
    objects = TrainingArguments._VALID_DICT_FIELDS
    table = {}
    for action in parser._actions:
        # Of two words for one option, as `--no_…`, the first is the one that takes a value.
        if action.dest == "help" or action.dest in table:
            continue
        is_object = action.dest in objects or get_origin(action.type) is dict
        kind = "dict" if is_object else _type_name(action, hints[action.dest])
        if kind is None:
            continue
        entry = {"type": kind, "default": defaults[action.dest], "help": " ".join((action.help or "").split())}
        if type(None) in get_args(hints[action.dest]) or entry["default"] is None:
            entry["takes_none"] = True
        if action.nargs == "+":
            entry["is_list"] = True
        if action.choices:
            entry["choices"] = [getattr(choice, "value", choice) for choice in action.choices]
        table[action.dest] = entry | dict(RANGES.get(action.dest, {}))
    return table


def _type_name(action: Any, hint: Any) -> str | None:
    """The name of the type of an option's text; None where no text makes its value."""
    if action.choices or (isinstance(action.type, type) and issubclass(action.type, str)):
        return "str"
    if action.type in PLACEHOLDERS:
        return str(action.type.__name__)
    return "bool" if bool in (hint, *get_args(hint)) else None


if __name__ == "__main__":
    write_text(TABLE_FILE, json.dumps(training_table(), indent=1, ensure_ascii=False) + "\n")
