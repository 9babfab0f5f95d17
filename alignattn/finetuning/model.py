"""The model of a run with a head for its task: pretrained or built from scratch, with its attention patched."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from alignattn.attention.config import AttentionConfig
from alignattn.finetuning.lora import adapt
from alignattn.finetuning.model_options import ModelOptions
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.precision import check_precision, loading_type, type_of_weights
from alignattn.finetuning.results import StartResult, read_result
from alignattn.finetuning.run_files import CONFIG_FILE
from alignattn.finetuning.run_folder import check_finished, is_run_folder
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext, BuiltModel, checked_fields, saved_class
from alignattn.models.lengths import most_positions, most_tokens
from alignattn.models.packaged import model_source
from alignattn.models.taggers.crf import CRF_FIELD, LinearChainCrf
from alignattn.patching import CHILD_NAME, patch
from alignattn.patching.checkpoint_files import adapter_fields, check_counts
from alignattn.patching.checkpoints import (
    load_checkpoint,
    load_config,
    load_function_slots,
    load_image_processor,
    load_tokenizer,
    loading,
    read_config_fields,
)
from alignattn.patching.saving import LOADER_FIELD, LOADING_HINT
from alignattn.tasks import Task, TokenClassification
from alignattn.tasks.image_classification import CHANNELS, MODES
from alignattn.tasks.labels import spelling_key
from alignattn.tasks.pictures import GREY
from alignattn.tasks.rows import Rows
from alignattn.tasks.tags.entities import scheme_of
from alignattn.utils.errors import AlignAttnError, did_you_mean, listing, one_line
from alignattn.utils.paths import model_digest, publishable

UNNAMED = "LABEL_"
"""Prefix of the class names that transformers generates."""

PROBED_SIZE = (60, 40)
"""Width and height, which differ, of the image with which an image processor is tested."""

SLOT_NAMES = ("score", "normalizer", "value")
"""The slots that define the attention function."""


def pretrained_config(options: RunOptions) -> Any:
    """Return the config of the pretrained model, with the fields that the options set; None for a model from scratch.

    It refuses what the config rules out, before rows and weights are read.

    Args:
        options: the options of the run.
    """
    arguments, task, asked = options.model, options.task_of_rows, options.data.max_length
    if not capabilities_of(arguments.model).is_pretrained:
        given = arguments.model_config_fields
        checked_fields(given, MODELS.load(arguments.model).config_class)
        check_counts(arguments.model, given)
        return None
    name, hub = arguments.model, _hub_options(arguments)
    check_start(arguments)
    with loading(name):
        if adapter_fields(model_source(name), hub) is not None:
            raise AlignAttnError(f"{name!r} is an adapter, and a run cannot start from one: give the merged model")
        fields = read_config_fields(name, **hub)
        if saved_class(fields) is not None:
            raise AlignAttnError(
                f"{name!r} is a trained model of {fields['model_type']}, and a run cannot start from it: give a "
                f"pretrained encoder, or one of {', '.join(MODELS)}"
            )
        config = load_config(name, **hub)
        if fields.get(LOADER_FIELD) == LOADING_HINT:
            check_attention(arguments, AttentionConfig.from_dict(getattr(config, CHILD_NAME)))
        _set_config_fields(config, arguments.model_config_fields)
    # Building a model of millions of layers takes hours and all memory.
    check_counts(name, config.to_dict())
    most = most_positions(config)
    if asked is not None and most is not None and asked > most:
        raise AlignAttnError(f"--max_length {asked} exceeds the model's maximum of {most} tokens")
    check_precision(options, type_of_weights(arguments, config))
    if type(config) not in getattr(transformers, task.auto_class)._model_mapping:
        raise AlignAttnError(
            f"--model {name} is of type {config.model_type!r}, for which transformers has no "
            f"{task.auto_class}, and task {task.name!r} is {task.kind}: give a model for that"
        )
    return config


def build_model(options: RunOptions, rows: Rows[Any], config: Any) -> BuiltModel:
    """Return the model that the options name, with a head for the task of `rows`.

    Args:
        options: the options of the run.
        rows: the rows of the run; the vocabulary of a model from scratch is the words of its training rows.
        config: what `pretrained_config` returned.
    """
    arguments = options.model
    if config is not None:
        return _load_pretrained(arguments, rows, config)
    assert rows.train is not None
    built: BuiltModel = MODELS.load(arguments.model).build(
        BuildContext(
            rows.task,
            rows.train,
            options.training.seed,
            None if arguments.embeddings is None else Path(arguments.embeddings),
            options.data.skip_bad_rows,
            config_fields=arguments.model_config_fields,
        )
    )
    rows.task.configure(built.model.config)
    return built


def patch_model(model: PreTrainedModel, arguments: ModelOptions) -> Any:
    """Patch the attention of a model, and return the model with the LoRA adapters that the options ask for."""
    capabilities = capabilities_of(arguments.model)
    if capabilities.has_attention:
        patch(model, arguments.attention_config)
        if capabilities.is_pretrained:
            load_function_slots(arguments.model, model, **_hub_options(arguments))
    return adapt(model, arguments)


def _hub_options(arguments: ModelOptions) -> dict[str, Any]:
    return {"revision": arguments.model_revision, "cache_dir": arguments.cache_dir}


def _load_pretrained(arguments: ModelOptions, rows: Rows[Any], config: Any) -> BuiltModel:
    task, name, hub = rows.task, arguments.model, _hub_options(arguments)
    saved = named_classes(config)
    with loading(name):
        task.configure(config)
    remark = None
    if arguments.crf:
        assert isinstance(task, TokenClassification)
        assert rows.train is not None
        crf_tags, remark = scheme_of(task.labels, rows.train[task.tags_column])
        setattr(config, CRF_FIELD, crf_tags)
    kwargs = {"config": config, "dtype": loading_type(arguments), "ignore_mismatched_sizes": True} | hub
    model = load_checkpoint(name, getattr(transformers, task.auto_class), with_slots=False, **kwargs)
    if reordered := keep_classes(model, name, saved):
        print(reordered, file=sys.stderr)
    return BuiltModel(model, load_preprocessor(name, model, type(task), **hub), remark=remark)


def load_preprocessor(name: str, model: PreTrainedModel, task_type: type[Task], **hub: Any) -> Any:
    """Return the model's tokenizer or image processor for a task's rows; None if they need none.

    Args:
        name: as for `load_checkpoint`.
        model: the model loaded by that name.
        task_type: the type of the task.
        **hub: keyword arguments of `from_pretrained` that locate the files, such as `revision`.
    """
    if task_type.reads_images:
        image_processor = load_image_processor(name, **hub)
        _set_channels(name, model, image_processor)
        _check_takes_images(name, model, image_processor)
        return image_processor
    if not task_type.reads_texts:
        return None
    tokenizer = load_tokenizer(name, model, **hub, **task_type.tokenizer_options)
    # Not every tokenizer knows the model's maximum length, and longer rows would end the training.
    tokenizer.model_max_length = most_tokens(model, tokenizer)
    return tokenizer


def _set_channels(name: str, model: PreTrainedModel, image_processor: Any) -> None:
    """Set the `num_channels` of the images that the model reads; refuse a model of other images than RGB and grey.

    Image processors are made for RGB by default. For grey images, one that converts to RGB does not, and of three equal
    means and deviations one is used.
    """
    config = getattr(model.config, "vision_config", model.config)
    channels = getattr(config, "num_channels", None) or CHANNELS
    if channels not in MODES:
        raise AlignAttnError(f"{name!r} reads images of {channels} channels, and pictures have 3, or 1 in grey")
    image_processor.num_channels = channels
    if MODES[channels] == GREY:
        image_processor.do_convert_rgb = False
        for field in ("image_mean", "image_std"):
            values = getattr(image_processor, field, None)
            if isinstance(values, list | tuple) and len(set(values)) == 1:
                setattr(image_processor, field, list(values[:1]))


def _check_takes_images(name: str, model: PreTrainedModel, image_processor: Any) -> None:
    """Refuse an image processor whose tensors the model does not accept, such as images of another size."""
    from PIL import Image

    image = Image.new(MODES[image_processor.num_channels], PROBED_SIZE)
    try:
        batch = image_processor([image], return_tensors="pt")
        # Not in inference mode: BEiT keeps tensors of a forward for the next one.
        with torch.no_grad():
            model(**{key: values.to(model.device) for key, values in batch.items()})
    except (ValueError, RuntimeError, TypeError) as error:
        raise AlignAttnError(
            f"the image processor of {name!r} makes tensors the model does not accept ({one_line(error)}): correct "
            "its preprocessor_config.json"
        ) from error


def _set_config_fields(config: Any, fields: Mapping[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(config, name):
            hint = did_you_mean(name, vars(config), aside=True)
            raise AlignAttnError(f"--model_config: {name}={value}: {type(config).__name__} has no field {name!r}{hint}")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, ValueError, TypeError) as error:
            raise AlignAttnError(f"--model_config: {name}={value!r} does not fit: {one_line(error)}") from error


def named_classes(config: PreTrainedConfig) -> tuple[str, ...]:
    """Return the names of a saved model's classes in the order of its outputs; empty if it has none."""
    names = tuple(name for _, name in sorted((config.id2label or {}).items()))
    return () if len(names) < 2 or all(name.startswith(UNNAMED) for name in names) else names


def keep_classes(model: PreTrainedModel, name: str, saved: Sequence[str]) -> str | None:
    """Reorder the outputs of a loaded head to the order of its new classes, if the names are the same.

    Args:
        model: the model, with its new classes in its config.
        name: the name of the model, for messages.
        saved: the classes that its head was trained for.

    Returns:
        A message about the classes; None if they are the same, or if the head is new because its size differs.
    """
    classes = named_classes(model.config)
    mine, theirs = list(map(spelling_key, classes)), list(map(spelling_key, saved))
    if not theirs or len(mine) != len(theirs) or mine == theirs:
        return None
    if len(set(mine)) < len(mine) or set(mine) != set(theirs):
        return f"{name}: its head has other classes ({listing(saved)}) than the task ({listing(classes)})"
    _reorder(model, name, [theirs.index(key) for key in mine])
    return f"{name}: its head is reordered from the classes {listing(saved)} to {listing(classes)}"


def _reorder(model: PreTrainedModel, name: str, order: Sequence[int]) -> None:
    """Move output `order[i]` to position i."""
    # Image classifiers such as SigLIP's have no encoder as their base model.
    within = set() if model.base_model is model else set(model.base_model.modules())
    outside = [module for module in model.modules() if module not in within]
    heads = [module for module in outside if isinstance(module, nn.Linear) and module.out_features == len(order)]
    if not heads:
        raise AlignAttnError(
            f"{name}: its classes are in another order than the task's, and it has no linear head to reorder: give a "
            "model without a head"
        )
    index = torch.tensor(order, device=heads[-1].weight.device)
    chains = [module.chain for module in outside if isinstance(module, LinearChainCrf)]
    with torch.no_grad():
        for scores in (scores for module in (heads[-1], *chains) for scores in module.parameters()):
            scores.copy_(scores[index])
        for chain in chains:
            chain.transitions.copy_(chain.transitions[:, index])


def check_start(arguments: ModelOptions) -> None:
    """Refuse to start from an unfinished run, from several seeds, or from other weights than `--model_sha256`."""
    folder, asked = Path(arguments.model), arguments.model_sha256
    if is_run_folder(folder) or any(folder.glob(f"seed-*/{CONFIG_FILE}")):
        check_finished(folder, "--model")
    if asked is not None and (not is_run_folder(folder) or model_digest(folder) != asked):
        raise AlignAttnError(f"--model {folder} does not match --model_sha256 {asked}: give the run that does")


def check_attention(arguments: ModelOptions, theirs: AttentionConfig) -> None:
    """Refuse an attention function other than the one that a model's weights were trained with.

    Args:
        arguments: the options of the run.
        theirs: the attention of the model that the run starts from.
    """
    mine = arguments.attention_config
    if mine.function_fields() == theirs.function_fields():
        return
    wanted = [f"--{slot} {getattr(theirs, slot)}" for slot in theirs.filled_slots if slot in SLOT_NAMES]
    for slot in SLOT_NAMES:
        options = getattr(theirs, f"{slot}_options")
        if options:
            wanted.append(f"--{slot}_options " + " ".join(f"{option}={value}" for option, value in options.items()))
    if theirs.layers is not None:
        wanted.append(f"--layers {' '.join(map(str, theirs.layers))}")
    raise AlignAttnError(
        f"{arguments.model!r} was saved with the attention ({theirs.describe_slots()}), and this run has another: "
        f"give {' '.join(wanted)}, with any alignment"
    )


def continued_run(name: str) -> StartResult | None:
    """Return the finished run that a run starts from; None if its model is not the folder of one.

    Args:
        name: the model, as it was given.
    """
    folder = Path(name)
    result = read_result(folder) if is_run_folder(folder) else None
    if result is None:
        return None
    return StartResult(
        run=publishable(name),
        task=result.task,
        attention=result.attention,
        seed=result.seed,
        sha256=model_digest(folder),
    )
