"""Small inputs for any model of transformers, made from its `main_input_name` and the sizes in its config."""

from collections.abc import Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor

IDS = "input_ids"
DECODER_IDS = "decoder_input_ids"
MASK = "attention_mask"

PROBED_TOKENS = 6
"""Tokens of a sequence."""

PROBED_ROWS = 2

Inputs = dict[str, Tensor]


def probe_inputs(model: Any) -> Iterator[Sequence[Inputs]]:
    """Yield inputs to try on a model: its main input and a decoder's, then all inputs that its forward names.

    Each item is a sequence of one or two inputs: without padding, and, if the model accepts ids and a mask, with the
    last token of the last row padded. The second attempt has one input, because a check runs four forwards at most.
    """
    device = next(model.parameters()).device
    dtype = next((own.dtype for own in model.parameters() if own.is_floating_point()), torch.float32)
    makers = {
        IDS: _ids,
        DECODER_IDS: _decoder_ids,
        "pixel_values": _pixels,
        "input_values": _waveform,
        "input_features": _audio_features,
    }
    named = signature(model.forward).parameters
    made: Inputs = {}
    for name, make in makers.items():
        if name in named and (values := make(model.config)) is not None:
            made[name] = values.to(device, dtype if values.is_floating_point() else None)
    main = model.main_input_name
    first = {name: values for name, values in made.items() if name in (main, DECODER_IDS)}
    if first:
        yield _with_and_without_padding(first, takes_mask=MASK in named)
    if made.keys() - first.keys():
        rows = max(len(values) for values in made.values())
        made = {
            name: values.expand(rows, *values.shape[1:]) if len(values) == 1 else values
            for name, values in made.items()
        }
        inputs = _with_and_without_padding(made, takes_mask=MASK in named)
        yield inputs[-1:] if first else inputs


def _with_and_without_padding(inputs: Inputs, *, takes_mask: bool) -> list[Inputs]:
    if IDS not in inputs or not takes_mask:
        return [inputs]
    full = torch.ones_like(inputs[IDS])
    padded = full.clone()
    padded[-1, -1] = 0
    return [inputs | {MASK: full}, inputs | {MASK: padded}]


def _ids(config: Any) -> Tensor | None:
    """Return rows of ids, `[2, 6]`."""
    text = config.get_text_config()
    vocabulary = getattr(text, "vocab_size", None)
    if not isinstance(vocabulary, int):
        return None
    special: set[Any] = set()
    for name in ("pad", "bos", "eos", "mask"):
        token = getattr(text, f"{name}_token_id", None)
        special.update(token if isinstance(token, list) else [token])
    usual = [token for token in range(max(0, vocabulary - 2 - len(special)), vocabulary) if token not in special]
    if not usual:
        return None
    return torch.tensor(usual)[torch.arange(PROBED_ROWS * PROBED_TOKENS) % len(usual)].view(PROBED_ROWS, PROBED_TOKENS)


def _decoder_ids(config: Any) -> Tensor | None:
    """Return rows of ids for a decoder: a length other than the encoder's distinguishes the two."""
    ids = _ids(config)
    return None if ids is None else ids[:, :-1]


def _pixels(config: Any) -> Tensor | None:
    """Return one image, `[1, C, H, W]`, of the size that the model was made for."""
    vision = getattr(config, "vision_config", None) or config
    size = getattr(vision, "image_size", None) or 32  # if it accepts any
    height, width = size if isinstance(size, list | tuple) else (size, size)
    channels = getattr(vision, "num_channels", None) or 3
    return _ramp(1, channels, height, width)


def _waveform(config: Any) -> Tensor | None:
    """Return a waveform of six frames, `[1, T]`, for a codec `[1, channels, T]`; for spectrograms `[1, T, bins]`."""
    bins, frames = getattr(config, "num_mel_bins", None), getattr(config, "max_length", None)
    if isinstance(bins, int) and isinstance(frames, int):
        return _ramp(1, frames, bins)
    kernels, strides = getattr(config, "conv_kernel", None), getattr(config, "conv_stride", None)
    if kernels is None or strides is None:
        hop = getattr(config, "hop_length", None) or getattr(config, "frame_size", None)
        return _ramp(1, getattr(config, "audio_channels", 1), PROBED_TOKENS * hop) if isinstance(hop, int) else None
    samples = PROBED_TOKENS
    for kernel, stride in zip(reversed(kernels), reversed(strides), strict=True):
        samples = (samples - 1) * stride + kernel
    return _ramp(1, samples)


def _audio_features(config: Any) -> Tensor | None:
    """Return the features of one recording: `[1, bins, T]` for Whisper, `[1, T, features]` for others."""
    audio = getattr(config, "audio_config", None) or config
    bins, positions = getattr(audio, "num_mel_bins", None), getattr(audio, "max_source_positions", None)
    if isinstance(bins, int) and isinstance(positions, int):
        return _ramp(1, bins, 2 * positions)
    for name in ("feature_projection_input_dim", "num_mel_bins", "input_feat_per_channel", "input_dim"):
        size = getattr(audio, name, None)
        if isinstance(size, int):
            return _ramp(1, 64, size)  # it accepts any number of frames
    return None


def _ramp(*shape: int) -> Tensor:
    """Return different values between -1 and 1."""
    return torch.linspace(-1, 1, torch.Size(shape).numel()).reshape(shape)
