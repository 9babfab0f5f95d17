"""Candidate inputs for models of transformers, by the name of an argument: ids, pixels, audio, series, states."""

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig

Inputs = dict[str, Any]

BATCH = 2
TOKENS = 8
REAL_TOKENS = 5
"""Real tokens of the second sequence, if it is padded."""
SHORTER = 48
"""Steps of features for a model with few positions."""

LONGER = 64
"""Number of vectors that are steps of audio."""
GRID = 4
"""Patches on a side for a model whose input is flattened patches."""
MAX_STEPS = 256
"""Maximum steps of audio features, enough for three subsamplings."""


def length_of(name: str, given: Tensor, config: PreTrainedConfig) -> int:
    """Return how many steps or tokens an input of this name has."""
    if name == "input_values":
        return given.shape[-1] if given.ndim < 3 else given.shape[1]
    if name == "input_features" and given.shape[1] == first_of(config, FEATURES):
        return given.shape[-1]
    return given.shape[1]


def first_of(config: Any, names: tuple[str, ...], default: Any = None) -> Any:
    """Return the value of the first of these fields that a config or one of its nested configs has."""
    for name in names:
        value = getattr(config, name, None)
        if value is not None:
            return value
    for nested in vars(config).values():
        if isinstance(nested, PreTrainedConfig):
            found = first_of(nested, names)
            if found is not None:
                return found
    return default


def _all(config: Any, names: tuple[str, ...]) -> list[Any]:
    own = [getattr(config, name) for name in names if getattr(config, name, None) is not None]
    nested = [_all(child, names) for child in vars(config).values() if isinstance(child, PreTrainedConfig)]
    return [*own, *(value for values in nested for value in values)]


WIDTHS = ("hidden_size", "d_model", "n_embd", "embed_dim", "hidden_dim", "dim", "embedding_size", "encoder_hidden_size")
FEATURES = (
    "num_mel_bins",
    "feature_size",
    "input_feat_per_channel",
    "n_mels",
    "input_dim",
    "input_feat_size",
    "mel_dim",
    "input_channels",
    "n_mel_bins",
    "feature_projection_input_dim",
    "input_size",
)
CHANNELS = ("num_channels", "in_channels", "in_chans", "image_channels", "input_channels")
SIDES = (
    "image_size",
    "img_size",
    "input_image_size",
    "pretrain_image_size",
    "crop_size",
    "max_image_size",
    "resolution",
)


USUAL_BINS = (80, 128)
"""Mel bins of spectrograms to try if a config does not give them."""


class Makers:
    """Makes the inputs of one model, in each shape that is usual for an argument of that name."""

    def __init__(self, config: PreTrainedConfig, taken: Any) -> None:
        self.config = config
        self.taken = taken
        self.generator = torch.Generator().manual_seed(0)

    def all_of(self, names: list[str]) -> Iterator[Inputs]:
        """Yield the inputs with these names, in at most 24 combinations of their shapes."""
        made: list[Inputs] = [{}]
        for name in names:
            choices = self.shapes_of(name)
            if not choices:
                return
            made = [{**inputs, name: choice} for choice in choices for inputs in made]
        for inputs in made[:24]:
            yield self._completed(inputs)

    def shapes_of(self, name: str) -> list[Any]:
        """Return the values that an argument may have."""
        if name in MAKERS:
            return MAKERS[name](self)
        for suffix, maker in SUFFIXES.items():
            if name.endswith(suffix):
                return maker(self)
        return []

    def _completed(self, inputs: Inputs) -> Inputs:
        new = dict(inputs)
        if "attention_mask" in self.taken and "input_ids" in new and "attention_mask" not in new:
            new["attention_mask"] = torch.ones_like(new["input_ids"])
        for mask in ("input_features_mask", "padding_mask"):
            if mask in new and "input_features" in new:
                given = new["input_features"]
                new[mask] = torch.ones(BATCH, length_of("input_features", given, self.config), dtype=torch.bool)
        if "mask" in new and "hidden_states" in new:
            new["mask"] = torch.ones(*new["hidden_states"].shape[:2], dtype=torch.bool)
        if "target_sizes" in new:
            patch = first_of(self.config, ("patch_size",), 16)
            new["pixel_values"] = self.normal(1, 3, patch, patch * BATCH * GRID * GRID)
        if "grid_thw" in new and isinstance(new.get("hidden_states", new.get("pixel_values")), Tensor):
            name = "hidden_states" if "hidden_states" in new else "pixel_values"
            new[name] = self.flat_patches(new[name])
        if "spatial_shapes" in self.taken and "pixel_values" in new:
            new["spatial_shapes"] = torch.full((BATCH, 2), GRID)
            new["pixel_values"] = self.normal(BATCH, GRID * GRID, self.patch_features())
            for mask in ("pixel_attention_mask", "attention_mask"):
                if mask in self.taken and "input_ids" not in new:
                    new[mask] = torch.ones(BATCH, GRID * GRID, dtype=torch.long)
        return new

    def normal(self, *shape: int) -> Tensor:
        """Return random numbers."""
        return torch.randn(*shape, generator=self.generator)

    def ids(self) -> list[Tensor]:
        """Return token ids without special tokens."""
        sizes = [
            size for size in _all(self.config, ("vocab_size", "text_vocab_size")) if isinstance(size, int) and size > 0
        ]
        limit = min(sizes, default=32)
        special = {
            value
            for key, value in _flat(self.config)
            if isinstance(value, int) and ("token" in key or key.endswith("_id"))
        }
        words = [word for word in range(limit) if word not in special] or [0]
        drawn = torch.randint(len(words), (BATCH, TOKENS), generator=self.generator)
        ids = torch.tensor(words)[drawn]
        books = first_of(self.config, ("num_codebooks",), 1)
        return [ids] if books == 1 else [ids, ids[..., None].expand(-1, -1, books), ids.repeat_interleave(books, dim=0)]

    def images(self) -> list[Tensor]:
        """Return pixels of images and videos; videos come first if the model has frames."""
        channels = first_of(self.config, CHANNELS, 3)
        channels = channels if isinstance(channels, int) else 3
        side = first_of(self.config, SIDES, 64)
        height, width = (
            (side, side) if isinstance(side, int) else (tuple(side)[-2:] if len(side) > 1 else (*side, *side))
        )
        if isinstance(height, list | tuple):
            height, width = height
        images = [self.normal(BATCH, channels, height, width)]
        frames = first_of(self.config, ("num_frames", "frames"), 4)
        videos = [self.normal(BATCH, frames, channels, height, width)]
        patches = [self.normal(BATCH, GRID * GRID, self.patch_features())]
        larger = [self.normal(BATCH, channels, max(height, 224), max(width, 224))] if height < 224 else []
        has_frames = hasattr(self.config, "num_frames") or hasattr(self.config, "tubelet_size")
        return [*videos, *images] if has_frames else [*images, *videos, *patches, *larger]

    def videos(self) -> list[Tensor]:
        """Return pixels of videos."""
        return [image for image in self.images() if image.ndim == 5] + [
            image for image in self.images() if image.ndim == 3
        ]

    def patch_features(self) -> int:
        """Return how many numbers a flattened patch has."""
        patch = first_of(self.config, ("patch_size", "spatial_patch_size"), 16)
        area = patch * patch if isinstance(patch, int) else math.prod(patch)
        channels = first_of(self.config, CHANNELS, 3)
        return (
            area
            * (channels if isinstance(channels, int) else 3)
            * first_of(self.config, ("temporal_patch_size", "patch_temporal"), 1)
        )

    def flat_patches(self, images: Tensor) -> Tensor:
        """Return the patches of two images in one sequence, as `grid_thw` counts them: as vectors or small images."""
        patch = first_of(self.config, ("patch_size", "spatial_patch_size"), 16)
        count = BATCH * GRID * GRID
        if not isinstance(patch, int) or (images.ndim == 4 and "hidden_states" not in self.taken):
            return self.normal(count, self.patch_features())
        channels = self.patch_features() // (patch * patch)
        shapes = {5: (1, count, channels, patch, patch), 3: (count, channels, patch, patch)}
        return (
            self.normal(*shapes[images.ndim])
            if images.ndim in shapes and "pixel_values" in self.taken
            else self.normal(count, self.patch_features())
        )

    def grids(self) -> list[Tensor]:
        """Return the grids of the patches from `flat_patches`."""
        return [torch.tensor([[1, GRID, GRID]] * BATCH)]

    def states(self) -> list[Tensor]:
        """Return one vector per token, and images."""
        width = first_of(self.config, WIDTHS, 32)
        width = width if isinstance(width, int) else width[0]
        bins = [bins for bins in _all(self.config, FEATURES) if isinstance(bins, int)][:1]
        return [
            self.normal(BATCH, TOKENS, width),
            self.normal(TOKENS, width),
            self.normal(BATCH, width, TOKENS),
            *(self.normal(BATCH, LONGER, own) for own in [*bins, *USUAL_BINS]),
            *self.images()[:1],
        ]

    def features(self) -> list[Tensor]:
        """Return spectrograms, time last and time first."""
        bins = first_of(self.config, FEATURES, 80)
        bins = bins if isinstance(bins, int) else bins[0]
        source = first_of(self.config, ("max_source_positions",), None)
        named = [own for own in _all(self.config, FEATURES) if isinstance(own, int)]
        widths = list(dict.fromkeys([bins, *named[:3], *USUAL_BINS]))
        lengths = [
            steps
            for steps in (source and 2 * source, MAX_STEPS, SHORTER, first_of(self.config, ("max_length",), None))
            if steps
        ]
        made: list[Tensor] = []
        for steps in lengths:
            for width in widths:
                made += [
                    self.normal(BATCH, width, steps),
                    self.normal(BATCH, steps, width),
                    self.normal(BATCH, 1, steps, width),
                ]
        return made

    def waveforms(self) -> list[Tensor]:
        """Return waveforms, with and without a channel, and spectrograms, which some models expect instead."""
        strides = first_of(
            self.config, ("conv_stride", "upsampling_ratios", "downsampling_ratios", "encoder_rates"), (320,)
        )
        hop = math.prod(strides) if isinstance(strides, list | tuple) else 320
        samples = max(hop, 64) * 12
        channels = first_of(self.config, ("audio_channels",), 1)
        return [
            self.normal(BATCH, samples),
            self.normal(BATCH, channels, samples),
            *self.features(),
        ]

    def series(self) -> list[Tensor]:
        """Return time series, with and without a channel dimension."""
        length = first_of(self.config, ("context_length", "prompt_length"), 32)
        lags = max(getattr(self.config, "lags_sequence", None) or [0])
        channels = first_of(self.config, ("num_input_channels", "input_size"), 1)
        return [self.normal(BATCH, length + lags, channels), self.normal(BATCH, length + lags)]

    def observed(self) -> list[Tensor]:
        """Return the masks of observed values of `series`."""
        return [torch.ones_like(series) for series in self.series()]

    def times(self) -> list[Tensor]:
        """Return time features of `series`."""
        length = self.series()[0].shape[1]
        return [self.normal(BATCH, length, count) for count in (getattr(self.config, "num_time_features", 0) or 0, 1)]

    def futures(self) -> list[Tensor]:
        """Return future values of `series`."""
        return [self.normal(BATCH, getattr(self.config, "prediction_length", None) or 8)]

    def boxes(self) -> list[Tensor]:
        """Return the boxes of tokens on a page."""
        corners = torch.randint(0, 30, (BATCH, TOKENS, 2), generator=self.generator)
        return [torch.cat([corners, corners + 5], dim=-1)]

    def ones(self) -> list[Tensor]:
        """Return a mask of tokens."""
        return [torch.ones(BATCH, TOKENS, dtype=torch.long)]


def _flat(config: Any) -> Iterator[tuple[str, Any]]:
    for key, value in vars(config).items():
        if isinstance(value, PreTrainedConfig):
            yield from _flat(value)
        else:
            yield key, value


MAKERS: dict[str, Callable[[Makers], list[Any]]] = {
    "pixel_values_videos": Makers.videos,
    "pixel_values": Makers.images,
    "image": Makers.images,
    "inputs": lambda makers: [*makers.ids(), *makers.states()],
    "input_features": Makers.features,
    "input_features_mask": Makers.ones,
    "audio_mel": Makers.features,
    "spectrogram": Makers.features,
    "audio_values": Makers.waveforms,
    "input_values": Makers.waveforms,
    "grid_thw": Makers.grids,
    "padding_mask": Makers.ones,
    "mask": lambda makers: [torch.ones(BATCH, TOKENS, dtype=torch.bool)],
    "image_grid_thw": Makers.grids,
    "merge_sizes": lambda makers: [torch.ones(BATCH, dtype=torch.long)],
    "past_values": Makers.series,
    "past_observed_mask": Makers.observed,
    "past_time_features": Makers.times,
    "future_time_features": lambda makers: [
        makers.normal(BATCH, 8, getattr(makers.config, "num_time_features", 0) or 1)
    ],
    "future_values": Makers.futures,
    "past_values_padding": lambda makers: [torch.zeros(BATCH, makers.series()[0].shape[1], dtype=torch.long)],
    "freq": lambda makers: [torch.zeros(BATCH, 1, dtype=torch.long)],
    "bbox": Makers.boxes,
    # Not as long as the encoder's input, so that cross-attention is recognised by its shape.
    "decoder_input_ids": lambda makers: [ids[:, :-2] for ids in makers.ids()],
    "flattened_patches": lambda makers: [
        torch.cat(
            [torch.ones(BATCH, TOKENS, 2), makers.normal(BATCH, TOKENS, makers.config.patch_embed_hidden_size)], -1
        )
    ],
    "decoder_input_values": lambda makers: [
        makers.normal(BATCH, TOKENS, first_of(makers.config, ("num_mel_bins",), 80))
    ],
    "spatial_shapes": lambda makers: [torch.full((BATCH, 2), GRID)],
    "task_inputs": Makers.ids,
    "context": Makers.states,
    "visual_feats": lambda makers: [makers.normal(BATCH, TOKENS, makers.config.visual_feat_dim)],
    "visual_pos": lambda makers: [makers.normal(BATCH, TOKENS, makers.config.visual_pos_dim)],
    "target_sizes": lambda makers: [torch.full((BATCH, 2), GRID)],
    "pixel_position_ids": lambda makers: [
        torch.cartesian_prod(torch.arange(GRID), torch.arange(GRID)).expand(BATCH, -1, -1)
    ],
    "pixel_attention_mask": lambda makers: [torch.ones(BATCH, GRID * GRID, dtype=torch.long)],
}
SUFFIXES: dict[str, Callable[[Makers], list[Any]]] = {
    "_ids": Makers.ids,
    "hidden_states": Makers.states,
    "embeds": Makers.states,
    "query_embeds": Makers.states,
    "features": Makers.states,
    "queries": Makers.states,
    "states": Makers.states,
    "latents": Makers.states,
    "mask": Makers.ones,
}
"""By suffix, for names that are not in `MAKERS`."""
