"""Batches of texts of similar length, and a cache of a model's outputs.

Two texts may be the same input, such as words with letters that the tokenizer does not know. Computed separately they
would differ in their last bits, and the rest of the batch would decide between two such candidates of an attack. So
outputs are cached by token ids: candidates with the same input have the same score, and the first wins.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from alignattn.models.lengths import batches_of_rows


@dataclass(frozen=True)
class ModelInputs:
    """Encoded texts.

    Attributes:
        tensors: the inputs of N texts or pairs, `[N, n]` each on the CPU, padded to the longest.
        padding_side: "right" or "left".
    """

    tensors: Mapping[str, Tensor]
    padding_side: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, columns: Sequence[Sequence[str]], max_length: int) -> Self:
        """Return the inputs of texts.

        Args:
            tokenizer: the model's.
            columns: N texts, or N first and N second ones; in a long pair the longer text is truncated first.
            max_length: the maximum of tokens per row, special tokens included.
        """
        # Padded once by the tokenizer and then sliced: padding each batch in Python costs more than it saves.
        encoded: Any = tokenizer(
            *map(list, columns),
            truncation=True,
            max_length=max_length,
            padding=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return cls(dict(encoded), tokenizer.padding_side)

    def keys(self) -> list[Hashable]:
        """Return the identity of each of N inputs: token ids and other tensors, without padding."""
        is_real = self.tensors["attention_mask"].bool().numpy()
        arrays = [values.numpy() for values in self.tensors.values()]
        return [tuple(values[row, real].tobytes() for values in arrays) for row, real in enumerate(is_real)]

    def batches(
        self, device: torch.device, rows: Iterable[int] | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield batches padded to their own longest row, the longest rows first: memory runs out at once or never.

        Args:
            device: the device of the batches.
            rows: distinct numbers of rows; all if None.
            batch_size: `rows_at_once` if None.

        Yields:
            The numbers of the rows, `[B]` on the CPU, and their tensors, `[B, n]` each.
        """
        lengths = self.tensors["attention_mask"].sum(dim=1).tolist()
        for members in batches_of_rows(range(len(lengths)) if rows is None else rows, lengths, device, batch_size):
            longest = lengths[members[0]]
            tokens = slice(longest) if self.padding_side == "right" else slice(-longest, None)
            batch = {name: values[members, tokens].to(device) for name, values in self.tensors.items()}
            yield torch.tensor(members), batch

    def outputs(
        self,
        forward: Callable[[dict[str, Tensor]], Tensor],
        device: torch.device,
        rows: Sequence[int],
        batch_size: int | None = None,
    ) -> Tensor:
        """Return the outputs of rows, `[M, d]` on the CPU.

        Args:
            forward: maps the tensors of B inputs, `[B, n]` each, to `[B, d]`.
            device: the device of the computation.
            rows: M numbers, ascending.
            batch_size: as for `batches`.
        """
        pairs = [(members, forward(batch)) for members, batch in self.batches(device, rows, batch_size)]
        order, outputs = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return outputs.cpu()[order.argsort()]


class OutputCache:
    """The outputs of the `size` inputs used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._outputs: OrderedDict[Hashable, Tensor] = OrderedDict()

    def outputs(self, keys: Sequence[Hashable], compute: Callable[[list[int]], Tensor]) -> Tensor:
        """Return the outputs of N inputs, `[N, d]`.

        Args:
            keys: the identity of each; they may repeat.
            compute: maps the numbers of M unknown inputs, ascending, to their outputs, `[M, d]`.
        """
        found = {key: self._outputs[key] for key in keys if key in self._outputs}
        first: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            if key not in found:
                first.setdefault(key, row)
        if first:
            found.update(zip(first, compute(list(first.values())), strict=True))
        for key, output in found.items():
            self._outputs[key] = output
            self._outputs.move_to_end(key)
        while len(self._outputs) > self._size:
            self._outputs.popitem(last=False)
        return torch.stack([found[key] for key in keys])

    def clear(self) -> None:
        """Remove all outputs."""
        self._outputs.clear()
