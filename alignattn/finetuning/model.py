"""The model of a run with a head for its task, pretrained or built from scratch, patched; and its types of numbers."""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from alignattn.attention.config import AttentionConfig
from alignattn.finetuning.lora import adapt
from alignattn.finetuning.options import AS_STORED, ModelOptions, RunOptions
from alignattn.finetuning.results import StartResult, read_result
from alignattn.finetuning.run_folder import check_finished, is_run_folder, seed_folders
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext, BuiltModel, checked_fields, saved_class
from alignattn.models.lengths import most_positions, most_tokens
from alignattn.models.packaged import model_source
from alignattn.models.taggers.crf import CRF_FIELD, LinearChainCrf
from alignattn.patching import CHILD_NAME, patch
from alignattn.patching.checkpoint_files import adapter_fields, check_counts, stored_types
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
from alignattn.tasks import NodeClassification, Task, TokenClassification
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

ORIGINAL = ".original_module."
"""Part of the names of the untrained copies of peft."""

AUTOCAST = {"fp16": "float16", "bf16": "bfloat16", "fp8": "float8"}
"""accelerate's names of the types of autocast."""


def pretrained_config(options: RunOptions) -> Any:
    """Return the config of the pretrained model, with the fields that the options set; None for a model from scratch.

    It refuses what the config rules out, before rows and weights are read.

    Args:
        options: the options of the run.
    """
    chosen, task, asked = options.model, options.task_of_rows, options.data.max_length
    name, hub, config_fields = chosen.model, chosen.hub, chosen.model_config_fields
    if not capabilities_of(name).is_pretrained:
        config_class, fan_out = MODELS.load(name).config_class, options.data.fan_out
        fields = checked_fields(config_fields, config_class)
        check_counts(name, config_fields)
        if fan_out is not None and isinstance(task, NodeClassification):
            layers = config_class(**fields).num_hidden_layers
            if len(fan_out) != layers:
                raise AlignAttnError(f"--fan_out needs a number for each of the {layers} layers: give {layers}")
        return None

    # The model may be the folder of a run: a finished one, of one seed, with the expected weights.
    folder, expected = Path(name), chosen.model_sha256
    if is_run_folder(folder) or seed_folders(folder):
        check_finished(folder, "--model")
    if expected is not None and (not is_run_folder(folder) or model_digest(folder) != expected):
        raise AlignAttnError(f"--model {folder} does not match --model_sha256 {expected}: give the run that does")

    with loading(name):
        if adapter_fields(model_source(name), hub) is not None:
            raise AlignAttnError(f"{name!r} is an adapter, and a run cannot start from one: give the merged model")
        saved = read_config_fields(name, **hub)
        if saved_class(saved) is not None:
            raise AlignAttnError(
                f"{name!r} is a trained model of {saved['model_type']}, and a run cannot start from it: give a "
                f"pretrained encoder, or one of {', '.join(MODELS)}"
            )
        config = load_config(name, **hub)
        if saved.get(LOADER_FIELD) == LOADING_HINT:
            check_attention(chosen, AttentionConfig.from_dict(getattr(config, CHILD_NAME)))
        for field, value in config_fields.items():
            if not hasattr(config, field):
                hint = did_you_mean(field, vars(config), aside=True)
                kind = type(config).__name__
                raise AlignAttnError(f"--model_config: {field}={value}: {kind} has no field {field!r}{hint}")
            try:
                setattr(config, field, value)
            except (StrictDataclassError, ValueError, TypeError) as error:
                raise AlignAttnError(f"--model_config: {field}={value!r} does not fit: {one_line(error)}") from error

    # Building a model of millions of layers takes hours and all memory.
    check_counts(name, config.to_dict())
    most = most_positions(config)
    if asked is not None and most is not None and asked > most:
        raise AlignAttnError(f"--max_length {asked} exceeds the model's maximum of {most} tokens")
    check_precision(options, config)
    if type(config) not in getattr(transformers, task.auto_class)._model_mapping:
        raise AlignAttnError(
            f"--model {name} is of type {config.model_type!r}, for which transformers has no "
            f"{task.auto_class}, and task {task.name!r} is {task.kind}: give a model for that"
        )
    return config


def build_model(options: RunOptions, rows: Rows[Any], config: Any) -> BuiltModel:
    """Return the model that the options name, with a head for the task of `rows`, its patch and its LoRA adapters.

    Args:
        options: the options of the run.
        rows: the rows of the run; the vocabulary of a model from scratch is the words of its training rows.
        config: what `pretrained_config` returned.
    """
    chosen, task = options.model, rows.task
    name, hub, remark = chosen.model, chosen.hub, None
    if config is None:
        built: BuiltModel = MODELS.load(name).build(
            BuildContext(
                task,
                rows.train,
                options.training.seed,
                None if chosen.embeddings is None else Path(chosen.embeddings),
                options.data.skip_bad_rows,
                config_fields=chosen.model_config_fields,
            )
        )
        task.configure(built.model.config)
    else:
        saved_classes = named_classes(config)
        with loading(name):
            task.configure(config)
        # The model may be that of a run, whose CRF and patch are not those of this one.
        if chosen.crf:
            assert isinstance(task, TokenClassification)
            crf_tags, remark = scheme_of(task.labels, rows.train[task.tags_column])
            setattr(config, CRF_FIELD, crf_tags)
        elif hasattr(config, CRF_FIELD):
            delattr(config, CRF_FIELD)
        if hasattr(config, CHILD_NAME):
            delattr(config, CHILD_NAME)
        kwargs = {"config": config, "dtype": loading_type(chosen), "ignore_mismatched_sizes": True} | hub
        model = load_checkpoint(name, getattr(transformers, task.auto_class), with_slots=False, **kwargs)
        if reordered := keep_classes(model, name, saved_classes):
            print(reordered, file=sys.stderr)
        built = BuiltModel(model, load_preprocessor(name, model, type(task), **hub), remark=remark)

    attention, training = chosen.attention_config, options.training
    # Plain training needs no slots, so that any model trains; balancing and the distance read queries and keys by them.
    needs_slots = attention.filled_slots or training.balance is not None or training.log_query_key_distance
    if capabilities_of(name).has_attention and (needs_slots or config is None):
        patch(built.model, attention)
        if config is not None:
            load_function_slots(name, built.model, **hub)
    return built if chosen.lora_r is None else replace(built, model=adapt(built.model, chosen))


def ignored_outputs(model: Any) -> list[str]:
    """Return the names of outputs that no task reads; configs of encoder-decoders do not list the encoder's states."""
    return ["encoder_last_hidden_state", *(getattr(model.config, "keys_to_ignore_at_inference", None) or ())]


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


def check_attention(options: ModelOptions, theirs: AttentionConfig) -> None:
    """Refuse an attention function other than the one that a model's weights were trained with.

    Args:
        options: the options of the model.
        theirs: the attention of the model that the run starts from.
    """
    mine = options.attention_config
    if mine.function_fields() == theirs.function_fields():
        return
    wanted = [f"--{slot} {getattr(theirs, slot)}" for slot in theirs.filled_slots if slot in SLOT_NAMES]
    for slot in SLOT_NAMES:
        if of_slot := getattr(theirs, f"{slot}_options"):
            wanted.append(f"--{slot}_options " + " ".join(f"{name}={value}" for name, value in of_slot.items()))
    if theirs.layers is not None:
        wanted.append(f"--layers {' '.join(map(str, theirs.layers))}")
    raise AlignAttnError(
        f"{options.model!r} was saved with the attention ({theirs.describe_slots()}), and this run has another: "
        f"give {' '.join(wanted)}, with any alignment"
    )


def continued_run(folder: str) -> StartResult | None:
    """Return the finished run that a run starts from, given its folder; None if it has not finished."""
    result = read_result(Path(folder))
    if result is None:
        return None
    return StartResult(
        run=publishable(folder),
        task=result.task,
        attention=result.attention,
        seed=result.seed,
        sha256=model_digest(Path(folder)),
    )


def loading_type(options: ModelOptions) -> Any:
    """Return the `dtype` of `from_pretrained`: float32, as stored (the default with adapters), or as asked for."""
    if options.dtype is None:
        return torch.float32 if options.lora_r is None else AS_STORED
    return options.dtype if options.dtype == AS_STORED else getattr(torch, options.dtype)


def check_precision(options: RunOptions, config: Any) -> None:
    """Refuse float16 weights without adapters, and computing in another half precision than that of the weights.

    Args:
        options: the options of the run.
        config: the config of the pretrained model; as stored, its weights have its type, or that of their files.
    """
    weights = loading_type(options.model)
    if weights == AS_STORED:
        in_files = stored_types(model_source(options.model.model), options.model.hub)
        weights = getattr(config, "dtype", None) or next(iter(in_files), "float32")
    weights = getattr(torch, weights) if isinstance(weights, str) else weights
    if options.model.lora_r is None and weights == torch.float16:
        raise AlignAttnError(
            f"--dtype {options.model.dtype}: weights in float16 cannot be trained, because small gradients and the "
            "optimizer's moments underflow: leave it out (on a GPU, --fp16 true computes in float16), give --dtype "
            "bfloat16, or train adapters over such weights (--lora_r 8)"
        )
    halves = {"fp16": torch.float16, "bf16": torch.bfloat16}
    for switch, computed in halves.items():
        if options.values.get(switch) and weights in halves.values() and weights != computed:
            in_words, of_weights = (str(dtype).removeprefix("torch.") for dtype in (computed, weights))
            raise AlignAttnError(
                f"--{switch} true computes in {in_words}, and the weights are loaded in {of_weights}: give "
                f"--dtype float32, or --{switch} false"
            )


def describe_precision(options: ModelOptions, model: nn.Module) -> str:
    """Return a line on the types in which a pretrained model's weights are stored, frozen and trained.

    Args:
        options: the options of the model.
        model: the model to train, with its adapters.
    """
    # peft keeps the untrained head next to the trained one.
    weights = [weight for name, weight in model.named_parameters() if ORIGINAL not in name]
    frozen, trained = ([weight for weight in weights if weight.requires_grad == trains] for trains in (False, True))
    parts = {
        "stored": stored_types(model_source(options.model), options.hub),
        "frozen": _types(frozen),
        "trained": _types(trained),
    }
    summary = ", ".join(f"{what} in {listing(types)}" for what, types in parts.items() if types)
    lossy = any(weight.dtype == torch.bfloat16 for weight in trained)
    advice = " (steps too small for that type are lost: --dtype float32 keeps them)" if lossy else ""
    return f"weights: {summary}{advice}"


def computed_types(trainer: Any) -> str:
    """Return the type in which a run computes, as its results and its card name it: autocast, weights, evaluation.

    Args:
        trainer: the `Trainer` of the run, before it trains.
    """
    model, args, mixed = trainer.model, trainer.args, str(trainer.accelerator.mixed_precision)
    weights = listing(_types(weight for weight in model.parameters() if weight.is_floating_point()))
    summary = f"{AUTOCAST[mixed]}, weights in {weights}" if mixed in AUTOCAST else weights
    if args.tf32 and args.device.type == "cuda":
        summary += ", matrix products in TF32"
    evaluated = {"float16": args.fp16_full_eval, "bfloat16": args.bf16_full_eval}
    return summary + "".join(f", evaluated in {name}" for name, is_chosen in evaluated.items() if is_chosen)


def _types(weights: Iterable[Tensor]) -> list[str]:
    return list(dict.fromkeys(str(weight.dtype).removeprefix("torch.") for weight in weights))
