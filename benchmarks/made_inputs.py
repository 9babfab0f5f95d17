"""Small random inputs for any model of transformers, from the names of its forward's arguments and its config's sizes.

Nothing here uses alignattn, so that the check is independent. A model may accept its main input in one of several
shapes (features before or after time), so each function returns candidates; the first that the model accepts is used.
"""

import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from input_shapes import REAL_TOKENS, TOKENS, Inputs, Makers, length_of
from torch import Tensor
from transformers import PreTrainedModel


def arguments_of(model: PreTrainedModel) -> dict[str, inspect.Parameter]:
    """Return the named arguments of a model's forward."""
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {name: own for name, own in inspect.signature(model.forward).parameters.items() if own.kind in kinds}


def candidates(model: PreTrainedModel) -> Iterator[Inputs]:
    """Yield inputs that a model may accept, without padding, the most likely first."""
    taken = arguments_of(model)
    required = [name for name, own in taken.items() if own.default is own.empty]
    main = model.main_input_name
    names = [main] if isinstance(main, str) else list(main)
    wanted = list(dict.fromkeys([*(name for name in names if name in taken), *required]))
    makers = Makers(model.config, taken)
    for extra in _extras(taken, wanted):
        yield from makers.all_of([*wanted, *extra])
    if set(wanted) != set(required):
        # The main input is pixels, but text alone is enough.
        for extra in _extras(taken, required):
            yield from makers.all_of([*required, *extra])


def _extras(taken: Any, wanted: list[str]) -> list[list[str]]:
    """Return groups of optional arguments to try with the required ones: some models need them anyway."""
    decoder = [name for name in ("decoder_input_ids",) if name in taken and name not in wanted]
    others = [
        [name for name in group if name in taken and name not in wanted]
        for group in (
            ("input_ids",),
            ("pixel_values",),
            ("input_ids", "pixel_values"),
            ("input_features",),
            ("input_values",),
            ("inputs_embeds",),
            ("input_ids", "bbox"),
            ("input_ids", "bbox", "pixel_values"),
            ("encoder_hidden_states",),
            ("audio_values",),
            ("input_ids", "input_features"),
            ("input_ids", "input_values"),
            ("pixel_values_videos",),
            ("hidden_states",),
            ("input_ids", "pixel_values", "decoder_input_ids"),
            ("decoder_inputs_embeds",),
            ("visual_feats", "visual_pos"),
            ("target_sizes",),
            ("grid_thw",),
            ("image_grid_thw",),
            ("input_features_mask",),
            ("padding_mask",),
            ("input_ids", "qformer_input_ids"),
            ("input_values", "pixel_values_videos"),
            ("input_ids", "pixel_values_videos"),
            ("decoder_input_values",),
            ("future_values", "past_time_features", "past_observed_mask", "future_time_features"),
        )
    ]
    groups = [*([[]] if wanted else []), *(group for group in others if group)]
    return [list(group) for group in dict.fromkeys(tuple(dict.fromkeys([*group, *decoder])) for group in groups)]


def padded(model: PreTrainedModel, inputs: Inputs) -> Inputs | None:
    """Return inputs whose second sequence ends in padding, or None if the model has no mask for them."""
    taken = arguments_of(model)
    for name, mask_name in MASK_OF.items():
        given = inputs.get(name)
        if not isinstance(given, Tensor) or mask_name not in taken:
            continue
        length = length_of(name, given, model.config)
        mask = torch.ones(len(given), length, dtype=torch.long)
        mask[-1, math.ceil(length * REAL_TOKENS / TOKENS) :] = 0
        return {**inputs, mask_name: mask}
    return None


MASK_OF = {
    "input_ids": "attention_mask",
    "inputs_embeds": "attention_mask",
    "input_values": "attention_mask",
    "input_features": "attention_mask",
    "hidden_states": "attention_mask",
}
