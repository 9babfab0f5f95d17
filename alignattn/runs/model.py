"""The model of a run with a head for its task: pretrained or built for the run's words, and its attention's slots."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, PreTrainedConfig

from alignattn.attention.config import AttentionConfig
from alignattn.models import MODELS, traits_of
from alignattn.models.build import BuiltModel, Material, saved_class
from alignattn.models.lengths import most_tokens
from alignattn.models.packaged import model_source
from alignattn.patching import CHILD_NAME, LOADING_HINT, patch
from alignattn.patching.checkpoints import load_checkpoint, load_tokenizer, loading
from alignattn.runs.options import ModelOptions, check_fits
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.options import did_you_mean
from alignattn.tasks import Task
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import Rows


def load_run_model(arguments: ModelOptions, rows: Rows[Any], seed: int, *, skip_bad_rows: bool = False) -> BuiltModel:
    """Return the model that the options name, with a head for the task of `rows`.

    Args:
        arguments: the options.
        rows: of the run; the vocabulary of a model that is not pretrained is the words of its training rows.
        seed: of the random weights of such a model.
        skip_bad_rows: leave out bad lines of the embeddings' file.
    """
    traits, task, attention = traits_of(arguments.model), rows.task, arguments.attention_config
    check_fits(arguments, task)
    if traits.is_pretrained:
        built = _load_pretrained(arguments, task)
    else:
        assert rows.train is not None
        embeddings = None if arguments.embeddings is None else Path(arguments.embeddings)
        fields = arguments.model_config_fields
        built = MODELS.load(arguments.model).build(
            Material(task, rows.train, seed, embeddings, skip_bad_rows, config_fields=fields)
        )
        kind_of(task).configure(task, built.model.config)
    if traits.has_attention:
        patch(built.model, attention)
    return built


def _load_pretrained(arguments: ModelOptions, task: Task) -> BuiltModel:
    kind, name = kind_of(task), arguments.model
    hub: dict[str, Any] = {"revision": arguments.model_revision, "cache_dir": arguments.cache_dir}
    with loading(name):
        source = model_source(name)
        fields, _ = PreTrainedConfig.get_config_dict(source, **hub)
        if saved_class(fields) is not None:
            raise AlignAttnError(
                f"{name!r} is a trained model of {fields['model_type']}, which another run cannot start "
                f"from: give one of {', '.join(MODELS)}, or a pretrained encoder"
            )
        config = AutoConfig.from_pretrained(source, **hub)
        if config._attn_implementation == LOADING_HINT:
            attention = AttentionConfig.from_dict(getattr(config, CHILD_NAME))
            raise AlignAttnError(
                f"{name!r} was saved with an attention of its own ({attention.describe_slots()}), which "
                "another run cannot start from: give the pretrained model it was made of"
            )
        kind.configure(task, config)
        _set_config_fields(config, arguments.model_config_fields)
    model = load_checkpoint(name, kind.auto_class, config=config, with_slots=False, ignore_mismatched_sizes=True, **hub)
    tokenizer = load_tokenizer(name, model, **hub, **kind.tokenizer_options)
    # Not every tokenizer says what the model takes, and longer rows would end the training.
    tokenizer.model_max_length = most_tokens(model, tokenizer)
    return BuiltModel(model, tokenizer)


def _set_config_fields(config: Any, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(config, name):
            hint = did_you_mean(name, vars(config))
            raise AlignAttnError(f"--model_config: {type(config).__name__} has no field {name!r}{hint}")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, ValueError, TypeError) as error:
            raise AlignAttnError(f"--model_config: {name}={value!r} does not fit: {one_line(error)}") from error
