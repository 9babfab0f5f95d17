"""Small configs of any model type of transformers, made from its default config by rules about the names of fields.

There are several levels. The first makes everything small. Later levels keep the widths, the images, and finally the
whole default, for types whose sizes depend on each other in ways that the names of fields do not show. Nested configs
are shrunk by the same rules; all widths become one number, so the parts of a model still fit together.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

HEADS = 4
LAYERS = 2
WINDOW, MIN_WINDOWS = 2, 16
"""Patches on a side of a window, and of an image that stages halve three times."""
VOCABULARY = 128
POSITIONS = 64
EXPERTS = 4


class Level(IntEnum):
    """How much of a default config is shrunk; each level shrinks more than the next."""

    TINY = 0
    NARROW = 1
    SMALL_IMAGES = 2
    SHALLOW = 3
    DEFAULT = 4


@dataclass(frozen=True)
class Widths:
    """Widths of a level: of tokens, feed-forward layers, heads, and the narrowest stage."""

    hidden: int
    feed_forward: int
    head: int
    stage: int


WIDTHS = {Level.TINY: Widths(32, 48, 8, 16), Level.NARROW: Widths(512, 768, 128, 64)}
"""Widths of the levels that shrink them; NARROW has heads wide enough to share their features among axes."""

Limit = Callable[[int, Widths], int]
Rule = tuple[str, Limit]


def _at_most(limit: int) -> Limit:
    return lambda value, _: min(value, limit)


def _always(value: int) -> Limit:
    return lambda _, __: value


def _kept(value: int, _: Widths) -> int:
    return value


LAYER_RULES: tuple[Rule, ...] = (
    (r"feat_extract_layers|postnet_layers|layers_per|lqe_layers", _kept),
    (r"num_kv_shared_layers", _always(0)),
    (r"first_k_dense_replace|num_(nextn_predict|dense)_layers", _at_most(1)),
    (r"layers?$|^depth$|_depth$|num_blocks$|block_num$|^n_layer", _at_most(LAYERS)),
    (r"vocab_size|vocabulary_size|vocab_size_per_layer_input$", _at_most(VOCABULARY)),
    (r"^(num_parallel_samples|num_denoising|num_negatives)$", _at_most(4)),
)
"""Numbers of layers and of words."""

SIZE_RULES: tuple[Rule, ...] = (
    (r"max_(\w+_)?position_embeddings|^n_positions$|max_seq_len|^n_ctx$|max_position", _at_most(POSITIONS)),
    (r"max_source_positions|max_target_positions", _at_most(32)),
    (r"^num_(image_)?frames$", _at_most(4)),
    (r"(n_routed|num|num_local|moe_num|moe|router_num)_?experts$|^num_experts$|^n_experts$", _at_most(EXPERTS)),
    (r"experts?_per_tok(en)?$|moe_?top_?k$|^moe_k$|^top_k$|^num_experts_per", _at_most(2)),
    (r"^(n_group|topk_group|num_expert_group)$", _always(1)),
    (r"shared_experts$", _at_most(1)),
    (r"index_topk|block_size_topk", _at_most(4)),
    (r"^(num_queries|num_query_tokens|num_latents|num_object_queries)$", _at_most(8)),
    (r"codebook_size$|num_embeddings$", _at_most(64)),
    (r"sliding_window$|sliding_window_size$|local_attention$|attention_window$", _at_most(16)),
    (r"num_conv_pos_embeddings$", _at_most(16)),
    (r"num_conv_pos_embedding_groups$", _at_most(2)),
    (r"num_codevectors_per_group", _at_most(8)),
)
"""Numbers of positions, experts and queries."""

KEY_HEADS = r"(key_value|kv)_heads$|n_heads_kv|num_kv"
WIDTH_RULES: tuple[Rule, ...] = (
    (r"^(mamba_)?n_groups$", _at_most(1)),
    (r"^coordinate_size$", lambda value, widths: min(value, widths.hidden // 8)),
    (r"^shape_size$", lambda value, widths: min(value, widths.hidden // 4)),
    (
        r"kernel|stride|num_channels|in_chans|audio_channels|image_channels|num_(mel_)?bins|mel_dim|_window|size_per_patch",
        _kept,
    ),
    (
        r"mlp_ratio|conv_dim$|patch|image|scale|spatial|temporal|time_step|groups|feature_size|input_size|bucket|embeddings",
        _kept,
    ),
    (r"mamba_d_head$|mamba_head_dim$", lambda value, widths: min(value, 2 * widths.head)),
    (r"qk_head_dim$", lambda _, widths: 2 * widths.head),
    (
        r"head_dim$|d_kv$|^dim_head$|qk_(nope|rope)_head_dim|kv_channels|head_size$|^d_head$|rotary_dim$",
        lambda value, widths: min(value, widths.head),
    ),
    (r"lora_rank$|low_rank", _at_most(8)),
    (
        r"intermediate|ffn|feed_?forward|mlp_dim|^d_ff$|^d_inner|linear_units|mlp_hidden|ff_dim",
        lambda value, widths: min(value, widths.feed_forward),
    ),
    (KEY_HEADS, lambda value, _: min(value, HEADS)),
    (r"attention_heads$|(^|_)n?u?m?_?heads?$|^n_heads?$|attn_heads|value_heads|key_heads|num_heads", _at_most(HEADS)),
    (
        r"hidden_size|hidden_dim|d_model|embed|_dim$|^dim$|width|n_embd|d_latents|projection|proj_size|_channels$|output_size|hidden|"
        r"_size_global|units$|^channels$|conv_dim|num_filters",
        lambda value, widths: min(value, widths.hidden),
    ),
)
"""Numbers of features and of heads."""

ABSENT: dict[str, int] = {
    "vocab_size": VOCABULARY,
    "num_experts_per_tok": 2,
    "prediction_length": 8,
    "num_key_value_heads": HEADS,
    "n_routed_experts": EXPERTS,
    "pad_token_id": 0,
    "mask_token_id": 4,
}
"""Values of fields that are None by default, for models that cannot be built with None."""

ID = re.compile(r"(token_id|token_index|_index|_ids?|_idx|_id_\w+)$")
LAYER_INDICES = re.compile(r"(index|indices|indexes|idx|idxs|_layers|_ids|return_idx|blocks|layer_id)$")
NO_CHANCE = re.compile(
    r"layerdrop|layer_drop|mask_time_prob|mask_feature_prob|drop_path_rate|^jitter|apply_spec_augment"
)
"""Fields of training that skip layers at random, or draw masks longer than a short sequence."""
DERIVED = frozenset(
    {"per_layer_config", "stage_names", "out_features", "transformers_version", "architectures", "id2label", "label2id"}
)


def shrunk(
    config_class: type[PreTrainedConfig], level: Level, overrides: Mapping[str, Any] | None = None
) -> PreTrainedConfig:
    """Return a small config of a class.

    Args:
        config_class: a config class that can be called without arguments.
        level: how much is shrunk.
        overrides: values of fields that the rules get wrong, by path ("text_config.hidden_size").
    """
    fields = shrunk_fields(config_class().to_dict(), level) if level < Level.DEFAULT else {}
    for path, value in (overrides or {}).items():
        *parents, key = path.split(".")
        holder = fields
        for parent in parents:
            holder = holder.setdefault(parent, {})
        holder[key] = value
    return config_class(**fields)


def shrunk_fields(default: Mapping[str, Any], level: Level) -> dict[str, Any]:
    """Return the fields of a config, as a dict, that differ from the default; nested configs are complete."""
    ids: dict[int, int] = {}
    vocabulary = _smallest_vocabulary(default)
    return _shrunk_dict(default, level, ids, vocabulary, is_nested=False)


def _shrunk_dict(
    default: Mapping[str, Any], level: Level, ids: dict[int, int], vocabulary: int | None, *, is_nested: bool
) -> dict[str, Any]:
    kept = _kept_layers(default)
    fields: dict[str, Any] = {}
    for key, value in default.items():
        if key in DERIVED:
            continue
        new = _shrunk_value(key, value, default, level, ids, vocabulary, kept)
        if is_nested or new != value:
            fields[key] = new
    return fields


def _shrunk_value(
    key: str,
    value: Any,
    default: Mapping[str, Any],
    level: Level,
    ids: dict[int, int],
    vocabulary: int | None,
    kept: list[int] | None,
) -> Any:
    if isinstance(value, Mapping):
        if key.endswith("rope_parameters") or key == "rope_scaling":
            return _shrunk_rope(value, WIDTHS[level].head) if level in WIDTHS else value
        is_config = "model_type" in value or key.endswith("_config")
        return _shrunk_dict(value, level, ids, vocabulary, is_nested=True) if is_config else value
    if value is None and level in WIDTHS and (key in ABSENT or key == "head_dim"):
        return ABSENT.get(key, WIDTHS[level].head)
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return False if NO_CHANCE.search(key) and value is True else value
    if NO_CHANCE.search(key) and isinstance(value, float):
        return 0.0
    if isinstance(value, Sequence):
        return _shrunk_list(key, list(value), default, level, kept)
    if not isinstance(value, int):
        return value
    if ID.search(key):
        return _shrunk_id(value, ids, vocabulary)
    if _is_depth(key) and value == _depth(default):
        return _new_depth(default, kept)
    return _shrunk_int(key, value, default, level)


def _shrunk_int(key: str, value: int, default: Mapping[str, Any], level: Level) -> int:
    if level <= Level.SMALL_IMAGES and re.search(
        r"image_size$|^input_image_size$|^img_size$|^pretrain_image_size$", key
    ):
        return image_size(value, default.get("patch_size"), MIN_WINDOWS if _is_windowed(default) else 0)
    if level <= Level.SMALL_IMAGES and key == "window_size" and _is_windowed(default):
        return WINDOW
    heads = default.get(re.sub(KEY_HEADS, "attention_heads", key))
    if level in WIDTHS and re.search(KEY_HEADS, key) and isinstance(heads, int) and 1 < value < heads:
        return HEADS // 2
    rules = [*LAYER_RULES]
    if level <= Level.SMALL_IMAGES:
        rules += SIZE_RULES
    if level in WIDTHS:
        rules += WIDTH_RULES
    return next(
        (rule(value, WIDTHS.get(level, WIDTHS[Level.NARROW])) for pattern, rule in rules if re.search(pattern, key)),
        value,
    )


def _is_windowed(default: Mapping[str, Any]) -> bool:
    """Return whether stages attend in windows, which would be larger than an image of few patches."""
    return "window_size" in default and "depths" in default


def image_size(size: int, patch: Any, least: int = 0) -> int:
    """Return the side of a small image: at least `least` patches of `patch` pixels, and at most `size` pixels."""
    side = patch if isinstance(patch, int) else patch[0] if isinstance(patch, list | tuple) and patch else 4
    return min(size, max(32, side * max(least, 4 if side <= 16 else 2)))


def _shrunk_list(
    key: str, values: list[Any], default: Mapping[str, Any], level: Level, kept: list[int] | None
) -> list[Any]:
    if kept is not None and len(values) == _depth(default) and not LAYER_INDICES.search(key):
        return [values[index] for index in kept]
    if kept is not None and len(values) == _depth(default) and all(value in (0, 1) for value in values):
        return [values[index] for index in kept]
    if not values or not all(isinstance(value, int) and not isinstance(value, bool) for value in values):
        return values
    if level <= Level.SMALL_IMAGES and re.search(r"image_size$", key):
        windows = MIN_WINDOWS if _is_windowed(default) else 0
        return [image_size(value, default.get("patch_size"), windows) for value in values]
    if re.search(r"depths$|blocks_per_stage$|num_blocks$", key):
        return [min(value, LAYERS) for value in values]
    if key == "out_indices" and _depth(default) is not None:
        depth = _new_depth(default, kept) or 0
        return list(range(depth - len(values) + 1, depth + 1))
    if LAYER_INDICES.search(key) and (depth := _new_depth(default, kept)) is not None:
        return sorted({min(value, depth - 1) for value in values})
    if level in WIDTHS and re.search(r"heads$|num_heads|num_attention_heads", key):
        return [max(1, value // values[0]) for value in values]
    is_width = re.search(r"hidden_sizes|embed_dims?$|conv_dim$|embed_dim_per_stage|decoder_hidden_sizes", key)
    if level in WIDTHS and is_width and "stage_out_channels" not in default:
        return [max(WIDTHS[level].stage, value * WIDTHS[level].stage // values[0]) for value in values]
    return values


def _shrunk_id(value: int, ids: dict[int, int], vocabulary: int | None) -> int:
    """Return an id within the small vocabulary; equal ids stay equal."""
    limit = VOCABULARY if vocabulary is None else min(vocabulary, VOCABULARY)
    if value < limit:
        return value
    return ids.setdefault(value, limit - 1 - len(ids) % (limit // 2))


def _shrunk_rope(rope: Mapping[str, Any], head: int) -> dict[str, Any]:
    new: dict[str, Any] = {}
    for key, value in rope.items():
        if isinstance(value, Mapping):
            new[key] = _shrunk_rope(value, head)
        elif key == "mrope_section":
            rotated = int(head * rope.get("partial_rotary_factor", 1.0)) // 2
            rest = len(value) - 1
            new[key] = [max(rotated - rest, 0), *[min(1, rotated)] * rest][: len(value)]
        elif key in ("short_factor", "long_factor"):
            new[key] = list(value)[: head // 2]
        else:
            new[key] = value
    return new


def _is_depth(key: str) -> bool:
    return bool(re.search(r"^(num_hidden_layers|num_layers|n_layers?|depth)$", key))


def _depth(default: Mapping[str, Any]) -> int | None:
    return next((value for key, value in default.items() if _is_depth(key) and isinstance(value, int)), None)


def _new_depth(default: Mapping[str, Any], kept: list[int] | None) -> int | None:
    """Return how many layers are kept: at least the number of layers whose states the model outputs."""
    if kept is not None:
        return len(kept)
    depth, out = _depth(default), default.get("out_indices")
    return None if depth is None else min(depth, max(LAYERS, len(out) if isinstance(out, list | tuple) else 0))


def _kept_layers(default: Mapping[str, Any]) -> list[int] | None:
    """Return the indices of layers to keep, with each kind of layer; None if the config has no kinds of layers."""
    depth = _depth(default)
    kinds = [
        value
        for key, value in default.items()
        if depth
        and isinstance(value, list | tuple)
        and len(value) == depth
        and (re.search(r"types?$|layer", key))
        and all(isinstance(item, str | int) for item in value)
    ]
    if not kinds or depth is None:
        return None
    by_kind: dict[tuple[Any, ...], int] = {}
    for index, kind in enumerate(zip(*kinds, strict=True)):
        by_kind.setdefault(kind, index)
    chosen = sorted(by_kind.values())
    others = [index for index in range(depth) if index not in chosen]
    return sorted([*chosen, *others[: max(0, LAYERS - len(chosen))]])


def _smallest_vocabulary(default: Mapping[str, Any]) -> int | None:
    own = [value for key, value in default.items() if key == "vocab_size" and isinstance(value, int)]
    nested = [_smallest_vocabulary(value) for value in default.values() if isinstance(value, Mapping)]
    return min((size for size in [*own, *nested] if size), default=None)


def config_class_of(model_type: str) -> type[PreTrainedConfig]:
    """Return the config class of a type."""
    return CONFIG_MAPPING[model_type]
