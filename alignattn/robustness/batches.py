"""How texts become a model's batches: rows of like length together, as many as suit the device."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

CPU_TOKENS = 512
"""Of a batch. MiniLM on one core took, with 128, 256, 512 and 1,024 tokens at once, 3.1, 2.8, 2.8 and 2.9 ms a row of 8
tokens, and 13.4, 13.3, 10.8 and 12.0 ms one of 32: fewer do not repay a forward, more only pad more (100 sentences of
SST-2: 0.97 s with 512, 1.03 s with 1,024, 1.26 s with 2,048)."""

CPU_FEWEST_ROWS = 2
"""Of 512 tokens: 227 ms a row alone, 208 ms in a pair, 220 ms in a batch of 4."""

GPU_ROWS = 256


def rows_at_once(device: torch.device, longest: int) -> int:
    """Return how many rows of at most `longest` tokens suit a device."""
    return GPU_ROWS if device.type == "cuda" else max(CPU_FEWEST_ROWS, CPU_TOKENS // max(1, longest))


def padded_batches(
    tokenizer: PreTrainedTokenizerBase,
    columns: Sequence[list[str]],
    *,
    max_length: int,
    device: torch.device,
    batch_size: int | None = None,
) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    """Yield texts as batches that are padded to their own longest row, the longest rows first.

    Longest first, so that memory runs out at once or never.

    Args:
        tokenizer: the model's.
        columns: one list of N texts, or two for pairs; of a pair that is too long the longer text is cut first.
        max_length: the most tokens of a row, special tokens included.
        device: where the batches go.
        batch_size: rows of a batch; what suits the device when None.

    Yields:
        Which rows these are, `[B]` on the CPU, and what the tokenizer makes of them, `[B, n]` each.
    """
    # Padded once, in the tokenizer, and then cut: padding each batch in Python costs more than a short forward saves.
    encoded: Any = tokenizer(
        *columns, truncation=True, max_length=max_length, padding=True, return_attention_mask=True, return_tensors="pt"
    )
    count, longest = encoded["input_ids"].shape
    if count <= (batch_size or rows_at_once(device, longest)):
        yield torch.arange(count), dict(encoded.to(device))
        return
    lengths = encoded["attention_mask"].sum(dim=1)
    order = lengths.argsort(descending=True, stable=True)
    sorted_lengths = lengths[order].tolist()
    start = 0
    while start < len(order):
        longest = sorted_lengths[start]
        rows = order[start : start + (batch_size or rows_at_once(device, longest))]
        tokens = slice(longest) if tokenizer.padding_side == "right" else slice(-longest, None)
        yield rows, {name: values[rows, tokens].to(device, non_blocking=True) for name, values in encoded.items()}
        start += len(rows)
