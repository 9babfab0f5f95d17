"""The model of a run with a head for its task: a pretrained one, patched, or a baseline built for its words."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.attention.config import AttentionConfig
from alignattn.models import BASELINES, EmbeddingsReport, build_baseline
from alignattn.patching import CHILD_NAME, LOADING_HINT, patch
from alignattn.patching.checkpoints import unloadable
from alignattn.runs.options import ModelOptions
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.options import did_you_mean
from alignattn.tasks import Task, TextClassification
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import Rows
from alignattn.tasks.task import MOST_TEXTS


@dataclass(frozen=True)
class RunModel:
    """A model to train.

    Attributes:
        model: patched, unless it is a baseline.
        tokenizer: its own.
        embeddings: where a baseline's word vectors come from; None for a pretrained model.
    """

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    embeddings: EmbeddingsReport | None = None


def load_run_model(arguments: ModelOptions, rows: Rows[Any], seed: int, *, skip_bad_rows: bool = False) -> RunModel:
    """Return the model that the options name, with a head for the task of `rows`.

    Args:
        arguments: the options.
        rows: of the run; a baseline's vocabulary is the words of its training rows.
        seed: of the random word vectors of a baseline.
        skip_bad_rows: leave out bad lines of the embeddings' file.

    Raises:
        AlignAttnError: if there is no such model, a field of its config is unknown, or it cannot be patched.
    """
    if arguments.model in BASELINES:
        return _build_baseline(arguments, rows, seed, skip_bad_rows=skip_bad_rows)
    if arguments.embeddings is not None:
        raise AlignAttnError(f"--embeddings is for {' and '.join(BASELINES)}: {arguments.model} has its own, drop it")
    return _load_pretrained(arguments, rows.task)


def _build_baseline(arguments: ModelOptions, rows: Rows[Any], seed: int, *, skip_bad_rows: bool) -> RunModel:
    name, task, attention = arguments.model, rows.task, arguments.attention_config
    if not isinstance(task, TextClassification) or len(task.text_columns) != MOST_TEXTS:
        raise AlignAttnError(f"--model {name} compares the two texts of a pair, and task {task.name!r} has none")
    if attention != AttentionConfig():
        raise AlignAttnError(
            f"--model {name} has no self-attention for {attention.name!r} or layers of it: leave out --attention, "
            "--layers and what fills its slots"
        )
    assert rows.train is not None
    model, tokenizer, report = build_baseline(
        name,
        chain.from_iterable(rows.train[column] for column in task.text_columns),
        num_labels=task.num_labels,
        embeddings=None if arguments.embeddings is None else Path(arguments.embeddings),
        seed=seed,
        skip_bad_rows=skip_bad_rows,
        config_fields=arguments.model_config_fields,
    )
    kind_of(task).configure(task, model.config)
    return RunModel(model, tokenizer, report)


def _load_pretrained(arguments: ModelOptions, task: Task) -> RunModel:
    kind = kind_of(task)
    hub = {"revision": arguments.model_revision, "cache_dir": arguments.cache_dir}
    try:
        config = AutoConfig.from_pretrained(arguments.model, **hub)
        if config._attn_implementation == LOADING_HINT:
            attention = AttentionConfig.from_dict(getattr(config, CHILD_NAME))
            raise AlignAttnError(
                f"{arguments.model!r} was saved with an attention of its own ({attention.describe_slots()}), which "
                "another run cannot start from: give the pretrained model it was made of"
            )
        kind.configure(task, config)
        _set_config_fields(config, arguments.model_config_fields)
        tokenizer = AutoTokenizer.from_pretrained(arguments.model, **hub, **kind.tokenizer_options)
        model = kind.auto_class.from_pretrained(arguments.model, config=config, **hub)
    except AlignAttnError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise unloadable(arguments.model, error) from error
    patch(model, arguments.attention_config)
    return RunModel(model, tokenizer)


def _set_config_fields(config: Any, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(config, name):
            hint = did_you_mean(name, vars(config))
            raise AlignAttnError(f"--model_config: {type(config).__name__} has no field {name!r}{hint}")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, ValueError, TypeError) as error:
            raise AlignAttnError(f"--model_config: {name}={value!r} does not fit: {one_line(error)}") from error
