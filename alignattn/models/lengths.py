"""How many tokens a model accepts, and batches of rows by their tokens; imports nothing heavy."""

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

POSITIONS_AFTER_PADDING = frozenset(
    (
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    )
)
"""Types of models whose positions count from the one after the padding token."""

CPU_TOKENS = 512
"""Tokens per batch. On one core MiniLM needed, with 128, 256, 512 and 1,024 tokens per batch, 3.1, 2.8, 2.8 and 2.9 ms
for a row of 8 tokens, and 13.4, 13.3, 10.8 and 12.0 ms for one of 32 (100 sentences of SST-2: 0.97 s with 512, 1.03 s
with 1,024, 1.26 s with 2,048)."""

GPU_ROWS = 256


def most_positions(config: "PreTrainedConfig") -> int | None:
    """Return the maximum number of tokens of a model with this config; None if it has no absolute positions."""
    positions: int = getattr(config, "max_position_embeddings", None) or -1
    # Some configs write -1 for no limit. DeBERTa-v2 and v3 have the field, but no absolute positions.
    if positions == -1 or not getattr(config, "position_biased_input", True):
        return None
    has_table = getattr(config, "position_embedding_type", None) != "rotary"  # of ESM
    if config.model_type in POSITIONS_AFTER_PADDING and has_table:
        assert config.pad_token_id is not None
        positions -= config.pad_token_id + 1
    elif config.model_type == "mpnet":
        # Whatever its padding token, the first position of MPNet is 2.
        positions -= 2
    return positions


def most_tokens(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the maximum number of tokens of a model; transformers' very large number if there is no maximum."""
    positions, most = most_positions(model.config), int(tokenizer.model_max_length)
    return most if positions is None else min(positions, most)


def picture_tokens(config: "PreTrainedConfig") -> int:
    """Return the number of patches of a picture that a model reads; ViT's at 224 pixels if its config has none."""
    size, patch = (getattr(config, name, None) for name in ("image_size", "patch_size"))
    if not isinstance(size, int) or not isinstance(patch, int) or patch < 1:
        return 14 * 14
    return max(1, (size // patch) ** 2)


def row_length(asked: int | None, usual: int, most: int) -> int:
    """Return the maximum number of tokens per row.

    Args:
        asked: the user's maximum; a later check refuses it if the model does not support it.
        usual: the default.
        most: the model's maximum, which limits the default.
    """
    return min(usual, most) if asked is None else asked


def rows_at_once(device: "torch.device", longest: int) -> int:
    """Return the best batch size for rows of at most `longest` tokens."""
    # Rows of 512 tokens take 227 ms each alone, 208 ms in a pair, 220 ms in a batch of 4.
    return GPU_ROWS if device.type == "cuda" else max(2, CPU_TOKENS // max(1, longest))


def batches_of_rows(
    rows: Iterable[int],
    lengths: Sequence[int],
    device: "torch.device",
    size: int | None = None,
    *,
    by_length: bool = True,
) -> Iterator[list[int]]:
    """Yield the rows of each batch; by length, the longest first: memory runs out at once or never.

    Args:
        rows: the indices of the rows.
        lengths: the number of tokens of every row.
        device: the device of the batches.
        size: the rows per batch; `rows_at_once` if None.
        by_length: whether batches have rows of similar length, not rows in their order.
    """
    order = sorted(rows, key=lambda row: -lengths[row]) if by_length else list(rows)
    start = 0
    while start < len(order):
        batch = order[start : start + (size or rows_at_once(device, lengths[order[start]]))]
        yield batch
        start += len(batch)
