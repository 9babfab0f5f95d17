"""Load every checkpoint and adapter: refuse what does not fit, and log in one line what is unusual."""

import logging
import pickle
import re
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
import transformers
from safetensors import SafetensorError
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoImageProcessor,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.tokenization_utils_base import TOKENIZER_CONFIG_FILE
from transformers.utils import CONFIG_NAME
from transformers.utils.import_utils import is_peft_available
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.attention.attend import CHILD_NAME
from alignattn.attention.config import AttentionConfig
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import saved_class
from alignattn.models.names import CHOICES, HUB_ID
from alignattn.models.packaged import installed_source, model_source
from alignattn.models.taggers.crf import CRF_FIELD, tagger_with_crf
from alignattn.patching.attach import unpatch
from alignattn.patching.checkpoint_files import (
    BASE_MODEL_FIELD,
    FILE_OPTIONS,
    FUNCTION_SLOT,
    adapter_contents,
    adapter_fields,
    check_counts,
    check_fills,
    fields_in,
    find_file,
    is_of_slots,
    labels_of,
)
from alignattn.patching.families import FAMILIES
from alignattn.patching.patch import patch
from alignattn.patching.routing import GUARDED_MODELS, lift_guard
from alignattn.patching.saving import LOADER_FIELD, LOADING_HINT, load_slots, restored_fields
from alignattn.patching.slots import is_patched
from alignattn.utils.console import hub_request, without_library_bars
from alignattn.utils.errors import AlignAttnError, check_installed, install_extra, listing, one_line
from alignattn.utils.files import parse_json

CLASSIFIER = "classifier."
"""First part of the names of the head of a model that is its own base model, such as CLIP and SigLIP for images."""

logger = logging.getLogger(__name__)


def from_pretrained(path: str | Path, auto_class: Any, **kwargs: Any) -> PreTrainedModel:
    """Load a saved patched model and patch it again: equal outputs, with the trained parameters of its slots.

        model = alignattn.from_pretrained("out", AutoModelForSequenceClassification)

    Args:
        path: a folder written by `save_pretrained`, a Hub id, or the name of a packaged model. It contains a model, or
            an adapter of peft whose config names its base model.
        auto_class: an `AutoModelFor…` class or a model class of transformers.
        **kwargs: as for `auto_class.from_pretrained`; for an adapter also `is_trainable`, whether it is loaded for
            training (False by default).

    Returns:
        The patched model in evaluation mode; for an adapter, a `peft.PeftModel` around it. If the checkpoint names no
        patch, the model is plain, and for a folder a warning says this. Another warning lists the new weights of the
        head and the unused weights of the checkpoint in one line.

    Raises:
        AlignAttnError: if weights of the encoder are missing from the checkpoint at `path`, do not fit its config or
            are not finite; or if the slots' parameters in it do not fit.
    """
    if not hasattr(auto_class, "from_pretrained"):
        raise AlignAttnError(f"{auto_class!r} cannot load a model: pass an AutoModelFor… class or a model class")
    model = load_checkpoint(str(path), auto_class, **kwargs)
    # A model of the Hub or a packaged one names none, and its user patches it next.
    is_own = is_patched(model) or model.config.model_type.startswith(MODEL_TYPE_PREFIX)
    if Path(path).is_dir() and not is_own:
        logger.warning(
            "%s names no patch: this is the plain model, without an alignment or slots (alignattn.patch adds them)",
            path,
        )
    return model


def load_pretrained(
    name: str, auto_class: Any, *, tokenizer_options: Mapping[str, Any] = MappingProxyType({}), **kwargs: Any
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; arguments and errors as for `load_checkpoint` and `load_tokenizer`."""
    model = load_checkpoint(name, auto_class, **kwargs)
    return model, load_tokenizer(name, model, **tokenizer_options)


def load_checkpoint(
    name: str,
    auto_class: Any,
    *,
    with_slots: bool = True,
    lacking: str | None = None,
    choices: str = CHOICES,
    ignore_mismatched_sizes: bool = False,
    held: Collection[str] = (),
    reads_pooler: bool = True,
    **kwargs: Any,
) -> PreTrainedModel:
    """Load a model as `from_pretrained` does.

    Args:
        name: a folder, a Hub id or a packaged model.
        auto_class: an `AutoModel…` class or a model class of transformers.
        with_slots: whether a saved patch is restored.
        lacking: for messages, the part that an incomplete checkpoint lacks, and what the user can do; None if a head
            may be new.
        choices: for messages, what to give instead of a checkpoint that cannot be loaded.
        ignore_mismatched_sizes: whether a head of another size counts as missing.
        held: names of weights that the model gets from elsewhere.
        reads_pooler: whether the caller uses the encoder's pooler; if not, a new pooler is not logged.
        **kwargs: as for `auto_class.from_pretrained`.
    """
    source = model_source(name)
    hub = {option: kwargs[option] for option in FILE_OPTIONS if option in kwargs}
    with loading(name, choices):
        adapter = adapter_fields(source, hub)
        if adapter is not None:
            weights, description = adapter_contents(source, hub)
            labels: dict[str, Any] = {}
            if "config" not in kwargs and "num_labels" not in kwargs:
                # The head is built for the adapter's labels, which a patch describes. Without one, a run keeps its
                # model's config beside the adapter.
                of_model = description.get("labels", {}) if description else fields_in(source, CONFIG_NAME, hub)
                labels = labels_of(of_model or {})
            if "id2label" in labels:
                labels["id2label"] = {int(number): label for number, label in labels["id2label"].items()}
            is_trainable = kwargs.pop("is_trainable", False)
            # `revision` and `subfolder` locate the adapter, not its model.
            of_base = {option: value for option, value in kwargs.items() if option not in ("revision", "subfolder")}
            base = load_checkpoint(
                base_model_of(source, adapter), auto_class, held=weights, lacking=lacking, **labels | of_base
            )
            adapted: PreTrainedModel = load_adapter(
                base, source, adapter, weights, description, is_trainable=is_trainable, **hub
            )
            return adapted
        fields = read_config_fields(name, **hub)
        model_class = saved_class(fields) or auto_class
        is_hidden = fields.get(LOADER_FIELD) == LOADING_HINT
        if is_hidden or (CHILD_NAME in fields and fields.get("output_attentions")):
            # The base implementation of the patch, for a config that names ours or asks for weights. An Auto class has
            # no `_supports_sdpa`; the classes of a family agree in it.
            named = [model_class, *(getattr(transformers, name, None) for name in fields.get("architectures") or ())]
            supports_sdpa = all(getattr(one, "_supports_sdpa", True) for one in named)
            supports_sdpa = supports_sdpa and fields.get("model_type") not in FAMILIES
            is_eager = fields.get("output_attentions") or not supports_sdpa
            kwargs.setdefault(LOADER_FIELD, "eager" if is_eager else "sdpa")
        if is_hidden and kwargs.get("config") is None:
            kwargs = _with_config(fields, model_class, source, kwargs)
        if saved_class(fields) is None and not kwargs.get("trust_remote_code"):
            config = kwargs.get("config") or AutoConfig.from_pretrained(source, **hub)
            if hasattr(config, CRF_FIELD) and auto_class is AutoModelForTokenClassification:
                auto_class = tagger_with_crf(config)
            check_fills(name, source, auto_class, config, hub)
        # One logged line replaces the load report of transformers, and slots are loaded afterwards.
        of_transformers = logging.getLogger("transformers.modeling_utils")

        def is_no_report(record: logging.LogRecord) -> bool:
            return "LOAD REPORT" not in record.getMessage()

        of_transformers.addFilter(is_no_report)
        try:
            with without_library_bars():
                model, report = auto_class.from_pretrained(
                    source, **kwargs | {"output_loading_info": True, "ignore_mismatched_sizes": True}
                )
        finally:
            of_transformers.removeFilter(is_no_report)
        for architecture in fields.get("architectures") or ():
            # A bare encoder's weights may fit another family, but positions and norms differ.
            config_class = type(model.config)
            if getattr(getattr(transformers, architecture, None), "config_class", config_class) is not config_class:
                raise AlignAttnError(
                    f"{name} is a {architecture}, but its config.json says {model.config.model_type!r}: correct it"
                )
        differing = {weight for weight, *_ in report["mismatched_keys"]}.difference(held)
        new = differing | set(report["missing_keys"]).difference(held)
        prefix = "" if model.base_model is model else f"{model.base_model_prefix}."
        # A complete checkpoint may lack the pooler.
        poolers = {weight for weight in new if weight.removeprefix(prefix).startswith("pooler.")}
        needed = new - poolers
        if lacking is None and model.base_model is model:
            needed = {weight for weight in needed if not weight.startswith(CLASSIFIER)}
        elif lacking is None:
            needed = {weight for weight in needed if weight.startswith(prefix)}
        elif model.base_model is not model:
            needed = new
        if not ignore_mismatched_sizes:
            needed = needed | differing
        if needed:
            part = lacking or f"whole {type(model).__name__}, as its config.json describes one"
            raise AlignAttnError(
                f"{name} holds no {part} ({len(needed)} weights are not there or of another size, such as "
                f"{min(needed)})"
            )
        if not with_slots:
            lift_guard(model)
        elif CHILD_NAME in fields:
            patch(model, AttentionConfig.from_dict(fields[CHILD_NAME]))
            load_slots(model, source, hub, kwargs.get("variant"))
    check_finite(name, model)
    left = {weight for weight in report["unexpected_keys"] if CHILD_NAME not in fields or not is_of_slots(weight)}
    if model.base_model is model:
        # An encoder loaded alone does not need a head.
        left = {
            weight
            for weight in left
            if (part := weight.partition(".")[0]) == model.base_model_prefix or hasattr(model, part)
        }
    new -= set() if reads_pooler else poolers
    said = {"new weights are initialised": new, "weights of the checkpoint are not used": left}
    odd = [f"{len(names)} {what} ({listing(sorted(names))})" for what, names in said.items() if names]
    if odd:
        logger.warning("%s: %s", name, "; ".join(odd))
    return model


def base_model_of(path: str, fields: Mapping[str, Any]) -> str:
    """Return the path or Hub id of an adapter's base model.

    Raises:
        AlignAttnError: if its config names none, or peft is not installed.
    """
    if not is_peft_available():
        raise AlignAttnError(f"{path!r} is an adapter, which needs peft: {install_extra('peft')}")
    name = fields.get(BASE_MODEL_FIELD)
    if not name:
        raise AlignAttnError(
            f"the adapter {path!r} does not name its model ({BASE_MODEL_FIELD} in {ADAPTER_CONFIG_NAME}): set it "
            "there, or patch the model and pass it to peft.PeftModel.from_pretrained"
        )
    return installed_source(str(name))


def load_adapter(
    model: PreTrainedModel,
    path: str,
    fields: Mapping[str, Any],
    weights: Collection[str],
    description: Mapping[str, Any],
    *,
    is_trainable: bool = False,
    **hub: Any,
) -> Any:
    """Patch a base model and load an adapter into it, given `adapter_fields` and `adapter_contents`.

    It returns a `peft.PeftModel` around the model, in evaluation mode unless `is_trainable`.
    """
    from peft import PeftConfig, PeftModel

    if description:
        if is_patched(model):
            unpatch(model)
        patch(model, AttentionConfig.from_dict(description["attention"]))
    # Without weights for an adapter, peft only warns and continues with new ones.
    lost = [name for name in weights if "." in name and not hasattr(model, name.partition(".")[0])]
    if lost:
        raise AlignAttnError(
            f"the adapter {path!r} does not fit a {type(model).__name__} ({len(lost)} of its weights match no part of "
            f"it, such as {min(lost)}): give the class of model that was adapted, or the folder of the merged model"
        )
    if description:
        fields = {**fields, "task_type": description["task_type"]}
    config = PeftConfig.from_peft_type(**fields)
    return PeftModel.from_pretrained(model, path, config=config, is_trainable=is_trainable, **hub)


def merge_adapters(model: Any) -> Any:
    """Return a model with its adapters merged into its weights; the model itself if it has none."""
    return model.merge_and_unload() if hasattr(model, "merge_and_unload") else model


def _with_config(fields: Mapping[str, Any], model_class: Any, source: str, kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return keyword arguments of `from_pretrained` with the config of a folder that plain transformers refuses."""
    config_class = getattr(model_class, "config_class", None) or CONFIG_MAPPING[fields["model_type"]]
    # A config would keep options of the weights as its own fields.
    others = (*FILE_OPTIONS, "dtype", "torch_dtype", "quantization_config", "config")
    of_config = {name: value for name, value in kwargs.items() if name not in others}
    plain = {name: value for name, value in fields.items() if name != LOADER_FIELD}
    config, rest = config_class.from_dict(plain, return_unused_kwargs=True, name_or_path=source, **of_config)
    # Until it is patched, a model of this config lacks the slots.
    GUARDED_MODELS.hold(config)
    return {name: value for name, value in kwargs.items() if name in rest or name not in of_config} | {"config": config}


def load_config(name: str, **kwargs: Any) -> PreTrainedConfig:
    """Load the config of a model, also with a patch that changes the function; as `AutoConfig.from_pretrained`."""
    source = model_source(name)
    fields = read_config_fields(name, **{option: kwargs[option] for option in FILE_OPTIONS if option in kwargs})
    if fields.get(LOADER_FIELD) == LOADING_HINT:
        config: PreTrainedConfig = _with_config(fields, None, source, kwargs)["config"]
    else:
        config = AutoConfig.from_pretrained(source, **kwargs)
    return config


def read_config_fields(name: str, **hub: Any) -> dict[str, Any]:
    """Return the fields of a model's config, including those that a patch hides from plain transformers.

    A config whose model could not be built is refused.
    """
    fields: dict[str, Any]
    source = model_source(name)
    file = find_file(source, CONFIG_NAME, hub)
    if file is not None and not isinstance(parse_json(file.read_bytes()), dict):
        raise ValueError(f"{file} holds no fields")
    fields, _ = PreTrainedConfig.get_config_dict(source, **hub)
    fields = restored_fields(fields)
    check_counts(name, fields)
    return fields


def load_tokenizer(name: str, model: PreTrainedModel, **kwargs: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a model; refuse one without words, or with more tokens than the model.

    For an adapter without a tokenizer, that of its base model is loaded. A tokenizer without a padding token, such as
    that of most decoders, pads by its EOS token. Keyword arguments are those of `AutoTokenizer.from_pretrained`.
    """
    with loading(name):
        source, hub = model_source(name), {option: kwargs[option] for option in FILE_OPTIONS if option in kwargs}
        adapter = adapter_fields(source, hub)
        if adapter is not None and find_file(source, TOKENIZER_CONFIG_FILE, hub) is None:
            source = base_model_of(source, adapter)
        options = {"config": model.config} | kwargs
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source, **options)
        vocabulary = tokenizer.get_vocab()
    # For a folder without a tokenizer's files, transformers silently builds one of special tokens only.
    if vocabulary.keys() <= set(tokenizer.all_special_tokens):
        raise AlignAttnError(f"{name!r} has no tokenizer: save the model's tokenizer there with save_pretrained")
    rows, largest = getattr(model.config, "vocab_size", None), max(vocabulary.values())
    if rows is not None and largest >= rows:
        raise AlignAttnError(
            f"the tokenizer of {name!r} has more tokens than the model: token {largest}, and {rows} rows of embeddings"
        )
    if tokenizer.pad_token is None:
        if tokenizer.eos_token is None:
            raise AlignAttnError(
                f"the tokenizer of {name!r} has neither a padding token nor an EOS token: set its pad_token, and save "
                "it there with save_pretrained"
            )
        logger.warning("%s: its tokenizer has no padding token and pads by its EOS token %s", name, tokenizer.eos_token)
        tokenizer.pad_token = tokenizer.eos_token
        # A classifier on a decoder reads the last token that is not the config's `pad_token_id`.
        for config in (model.config, model.config.get_text_config()):
            config.pad_token_id = tokenizer.pad_token_id
    return tokenizer


def load_image_processor(name: str, **kwargs: Any) -> Any:
    """Load the image processor of a model; keyword arguments as for `AutoImageProcessor.from_pretrained`."""
    check_installed("PIL", "images", "an image processor")
    with loading(name), without_library_bars():
        return AutoImageProcessor.from_pretrained(model_source(name), **kwargs)


@contextmanager
def loading(name: str, choices: str = CHOICES) -> Iterator[None]:
    """Turn errors of transformers about a checkpoint into one line, with the choices to give instead."""
    is_on_hub = HUB_ID.fullmatch(name) and not Path(model_source(name)).exists()
    try:
        with hub_request(f"the model {name}") if is_on_hub else nullcontext():
            yield
    except AlignAttnError:
        raise
    # A truncated, empty or unrelated file makes the underlying libraries raise errors of any class.
    except Exception as error:
        # transformers treats a folder that does not exist as a Hub id.
        reason = one_line(error)
        # Arguments, installed packages or the machine cause these, and not the files.
        words = r"\b(CUDA|HIP|ROCm|XPU|MPS|NVIDIA|GPU|accelerator|device)s?\b"
        if isinstance(error, TypeError):
            words = "unexpected keyword argument|multiple values for keyword argument"
        is_of_code = isinstance(error, TypeError | AssertionError | NotImplementedError | RuntimeError)
        is_of_surroundings = is_of_code and re.search(words, str(error), re.IGNORECASE) is not None
        if is_of_surroundings or isinstance(
            error, ImportError | MemoryError | torch.OutOfMemoryError | torch.AcceleratorError
        ):
            raise AlignAttnError(f"cannot load the model {name!r}: {reason}") from error
        # Only files cause these.
        if isinstance(error, SafetensorError | EOFError | RecursionError | pickle.UnpicklingError):
            reason = f"it is damaged ({type(error).__name__}: {reason})"
        elif not isinstance(error, OSError | ValueError):
            reason = f"{type(error).__name__}: {reason}"
        if not Path(model_source(name)).exists():
            reason = (
                f"there is no such folder here, and: {reason}" if HUB_ID.fullmatch(name) else "there is no such folder"
            )
        raise AlignAttnError(f"cannot load the model {name!r}: {reason} (give {choices})") from error


def class_with_head(fields: Mapping[str, Any]) -> Any | None:
    """Return the class that loads a checkpoint with its head; None if its config names no class of transformers.

    For a tagger with a CRF, it is an auto class, to which `load_checkpoint` adds the CRF.
    """
    if fields.get(CRF_FIELD) is not None:
        return AutoModelForTokenClassification
    named = (getattr(transformers, name, None) for name in fields.get("architectures") or ())
    return next(filter(None, named), None)


def check_finite(name: str, model: PreTrainedModel) -> None:
    """Refuse a model, given by its name for messages, with a weight that is NaN or infinite."""
    odd = []
    for weight, values in model.named_parameters():
        if values.is_meta:
            continue
        # torch has no `isfinite` for most floating-point types of one byte.
        is_of_byte = values.is_floating_point() and values.element_size() == 1
        numbers = (values.float() if is_of_byte else values).detach()
        # A sum takes a fraction of the time, and may overflow, but is not finite if one value is not.
        if not numbers.sum().isfinite() and not numbers.isfinite().all():
            odd.append(weight)
    if odd:
        raise AlignAttnError(
            f"{name} holds {len(odd)} weights that are not finite, such as {odd[0]}: choose another checkpoint"
        )


def load_function_slots(name: str, model: PreTrainedModel, **hub: Any) -> None:
    """Load the scores, normalizers and values of a patched model from a checkpoint of the same attention function.

    The networks of an alignment start from scratch. Nothing is loaded if no patch changed the checkpoint's function.
    """
    with loading(name):
        if read_config_fields(name, **hub).get(LOADER_FIELD) == LOADING_HINT:
            load_slots(model, model_source(name), hub, None, FUNCTION_SLOT)
