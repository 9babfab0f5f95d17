"""The change of a model's function from a reference, such as plain training with the same seed."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from alignattn.attention.config import PLAIN, AttentionConfig
from alignattn.attention.function_change import attention_change, product_change, total_variation
from alignattn.finetuning.data_options import ANSWER_GROUP, GENERATION_GROUP
from alignattn.finetuning.heads import RecordedModel, load_recorded_model
from alignattn.finetuning.model_options import ATTENTION_GROUP
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import TwinResult, read_result
from alignattn.finetuning.rows import input_batches
from alignattn.finetuning.run_files import CONFIG_FILE, DATA_FILE, SEED_FOLDER_PREFIX
from alignattn.finetuning.run_folder import (
    EMBEDDINGS_OPTION,
    MODEL_OPTION,
    OPTIONS_THAT_MAY_DIFFER,
    WITHOUT_ROWS,
    data_digests,
    first_changed,
    has_same_name,
)
from alignattn.finetuning.training_options import ALIGNMENT_GROUP, RUN
from alignattn.patching.heads import BalancedHeads, balanced_heads
from alignattn.patching.recording import LayerRecord
from alignattn.tasks import Task
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.tags.tagging import WORD_STARTS
from alignattn.tasks.task import TRAIN
from alignattn.training.methods import METHODS
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_yaml
from alignattn.utils.options import options_of
from alignattn.utils.publishing import publishable

MULTI_LABEL = "multi_label_classification"
"""A `problem_type` of a model's config."""

TWIN_ROWS, TWIN_BATCH = 64, 8
"""Rows of the first evaluation split on which a run is compared with its plain twin, and rows per batch."""


FREE_GROUPS = frozenset({ATTENTION_GROUP, ALIGNMENT_GROUP, RUN, ANSWER_GROUP, GENERATION_GROUP})
"""Groups of options in which a run may differ from its plain twin: its attention, its folder, and its predictions."""

SEED = "seed"
"""An option of the run's group that its plain twin shares."""

FREE_OPTIONS = frozenset(
    {
        *("train_file", "validation_file", "data_dir", EMBEDDINGS_OPTION, "cache_dir", "skip_bad_rows"),
        *("slice_by", "max_eval_samples", "evaluation_splits", "preprocessing_num_workers", "use_cpu"),
        *("per_device_eval_batch_size", "eval_strategy", "eval_steps", "logging_steps", "logging_nan_inf_filter"),
    }
)
"""Other options in which they may differ: places of rows, whose content is compared, evaluation, logs, the device."""

TRAINING_OF_TRANSFORMERS = frozenset(
    {
        *("adam_beta1", "adam_beta2", "adam_epsilon", "optim_args", "optim_target_modules", "lr_scheduler_kwargs"),
        *("neftune_noise_alpha", "data_seed", "dataloader_drop_last"),
    }
)
"""transformers' other options that change what is learned; most of them concern hardware and logs."""

NAMED_BY_PATH = (MODEL_OPTION, "task", "features")
"""Options that may be paths, which another folder or machine spells differently."""

TRAINED_ON = ("train_file", f"task {TRAIN}", f"data_dir {TRAIN}", *WITHOUT_ROWS)
"""Names of the digests of what a run is trained on and starts from."""


@dataclass(frozen=True)
class FunctionChange:
    """The change of a model's function from a reference model.

    Attributes:
        attention: `[L, H]`, total variation of the attention weights, mean over a text's real queries and over texts.
        products: `[L, H]`, relative change of W_Qᵀ W_K; NaN if scores are not products of plain projections.
        predictions: total variation of the predictions, mean over texts (over words for tags); None unless the heads of
            both models predict the same number of classes.
        differing: share of the predictions whose class differs; None likewise.
        num_texts: the number of compared texts.
    """

    attention: Tensor
    products: Tensor
    predictions: float | None
    differing: float | None
    num_texts: int


def measure_change(
    model: RecordedModel, reference: RecordedModel, batches: Iterable[Mapping[str, Tensor]]
) -> FunctionChange:
    """Return the change of a model's function from a reference of the same shape and vocabulary.

    Args:
        model: the model whose change is measured.
        reference: the model that it is compared with.
        batches: the inputs of both models, padded or not; for tags also `word_starts`.
    """
    moved, variations, differing = [], [], []
    for batch in batches:
        (outputs, layers), (of_reference, reference_layers) = model.forward(batch), reference.forward(batch)
        moved.append(
            torch.stack(
                [
                    attention_change(_weights_of(layer), _weights_of(other), layer.mask)
                    for layer, other in zip(layers, reference_layers, strict=True)
                ],
                dim=1,
            )
        )
        predicted = [_predictions(one, batch, model.model.config) for one in (outputs, of_reference)]
        for (own, classes), (other, other_classes) in zip(*predicted, strict=False):
            if own.shape == other.shape:
                variations.append(total_variation(own, other))
                differing.append(classes != other_classes)
    by_text = torch.cat(moved)
    return FunctionChange(
        attention=by_text.mean(dim=0),
        products=_product_changes(model, reference, by_text.shape[1:]),
        predictions=float(torch.cat(variations).mean()) if variations else None,
        differing=float(torch.cat(differing).double().mean()) if differing else None,
        num_texts=len(by_text),
    )


def _weights_of(record: LayerRecord) -> Tensor:
    assert record.weights is not None
    return record.weights


def _predictions(outputs: Mapping[str, Any], batch: Mapping[str, Tensor], config: Any) -> list[tuple[Tensor, Tensor]]:
    """Return the distributions that a head predicts, `[N, C]` each, and the predicted classes, `[N]`.

    The list is empty for a head of scores or without a head. Tags are those of the words, where the batch has their
    places, and a CRF's classes are its best sequences.
    """
    real = batch["attention_mask"].bool()
    if outputs.get("start_logits") is not None:
        ends = (outputs["start_logits"], outputs["end_logits"])
        return [_likeliest(logits.double().masked_fill(~real, -torch.inf).softmax(dim=-1)) for logits in ends]
    logits = outputs.get("logits")
    if logits is None or logits.shape[-1] == 1:
        return []
    if getattr(config, "problem_type", None) == MULTI_LABEL:
        holds = logits.double().sigmoid().flatten()
        return [_likeliest(torch.stack([1 - holds, holds], dim=-1))]
    if logits.ndim == 2:
        return [_likeliest(F.softmax(logits.double(), dim=-1))]
    words = real & batch[WORD_STARTS].bool() if WORD_STARTS in batch else real
    distributions, classes = _likeliest(F.softmax(logits[words].double(), dim=-1))
    decoded = outputs.get("tags")
    return [(distributions, classes if decoded is None else decoded[words])]


def _likeliest(distributions: Tensor) -> tuple[Tensor, Tensor]:
    return distributions, distributions.argmax(dim=-1)


def _product_changes(model: RecordedModel, reference: RecordedModel, shape: torch.Size) -> Tensor:
    unknown = torch.full(shape, torch.nan, dtype=torch.float64)
    try:
        found = [_in_order(balanced_heads(one.model)) for one in (model, reference)]
    except AlignAttnError:
        return unknown
    if not (len(found[0]) == len(found[1]) and len(found[0]) in (1, len(unknown))):
        return unknown
    changes = [
        product_change(*_projection_weights(own), *_projection_weights(other))
        for own, other in zip(*found, strict=True)
    ]
    # A module that several layers share has one product.
    return torch.stack(changes).expand(shape)


def _projection_weights(heads: BalancedHeads) -> tuple[Tensor, Tensor]:
    """Return the weights of queries and keys by query head, `[H, d, in]` each."""
    query, key = heads.query[0], heads.key[0]
    return query.flatten(0, 1), key.repeat_interleave(query.shape[1], dim=0)


def _in_order(heads: list[BalancedHeads]) -> list[BalancedHeads]:
    return sorted(heads, key=lambda part: part.slots.layer)


def check_twin(options: RunOptions) -> None:
    """Refuse a plain twin that the run could not be compared with; do nothing if none is given.

    Raises:
        AlignAttnError: if it is unfinished, is not plain, has no heads to record, or differs in its training or rows.
    """
    if options.training.plain_twin is None:
        return
    folder = _twin_folder(options)
    twin = read_result(folder)
    if twin is None or not (folder / CONFIG_FILE).is_file():
        raise AlignAttnError(f"--plain_twin {folder} is not a finished run: finish it, or give another")
    if difference := _difference_in_training(options, folder):
        raise AlignAttnError(f"--plain_twin {folder} {difference}: give a run that differs only in its attention")
    if AttentionConfig.from_dict(twin.attention_config) != PLAIN:
        raise AlignAttnError(
            f"--plain_twin {folder} has the attention {twin.attention}: give a run with plain attention (soft)"
        )
    load_recorded_model(str(folder))


def _difference_in_training(options: RunOptions, folder: Path) -> str:
    """Return the first difference of a finished run from this one that changes its training, but not by its attention.

    Args:
        options: the options of this run.
        folder: the folder of the other.
    """
    written, mine, known = read_yaml(folder / CONFIG_FILE), options.to_dict(), options_of(RunOptions)
    ignored = {name for name, option in known.items() if option.group in FREE_GROUPS} - {SEED}
    ignored |= {name for method in METHODS if method.predicts for name in options_of(method.options)}
    ignored |= FREE_OPTIONS | OPTIONS_THAT_MAY_DIFFER
    if options.data.max_train_samples is None:
        ignored.add("take")
    for name in options.differences(written):
        if name in ignored or (name not in known and name not in TRAINING_OF_TRANSFORMERS):
            continue
        own, other = mine.get(name), written.get(name, known[name].default if name in known else None)
        if not (name in NAMED_BY_PATH and has_same_name(own, other)):
            values = ("none" if value is None else publishable(value) for value in (other, own))
            return "has the {} {} and this run {}".format(name, *values)
    digests = {name: digest for name, digest in data_digests(options).items() if name in TRAINED_ON}
    changed = first_changed(digests, folder / DATA_FILE)
    return "" if changed is None else f"has another {changed.partition(' ')[0]}, whose content differs"


def compare_with_twin(options: RunOptions, task: Task, evaluation: Mapping[str, EncodedSplit]) -> TwinResult | None:
    """Return the change of the model in a run's folder from its plain twin; None without a twin or without rows."""
    if options.training.plain_twin is None or not evaluation:
        return None
    folder = _twin_folder(options)
    model, reference = (load_recorded_model(str(one), with_head=True) for one in (options.output_dir, folder))
    split = next(iter(evaluation.values()))
    rows = range(min(len(split.encoded), TWIN_ROWS))
    batches = input_batches(task, split, model.tokenizer, rows, TWIN_BATCH, with_word_starts=True)
    change = measure_change(model, reference, batches)
    products = float(change.products.mean())
    return TwinResult(
        run=publishable(str(folder)),
        rows=len(rows),
        attention=float(change.attention.mean()),
        most_attention=float(change.attention.max()),
        products=None if math.isnan(products) else products,
        predictions=change.predictions,
        differing=change.differing,
    )


def _twin_folder(options: RunOptions) -> Path:
    """Return the folder of the twin; in a folder of one run per seed, that of this run's seed."""
    folder = Path(str(options.training.plain_twin))
    has_seeds = any(folder.glob(f"{SEED_FOLDER_PREFIX}*"))
    return folder / f"{SEED_FOLDER_PREFIX}{options.training.seed}" if has_seeds else folder
