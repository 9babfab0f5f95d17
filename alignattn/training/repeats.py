"""Rows that accelerate repeats at the end of an epoch, so that each process has as many batches: they get no weight.

A process keeps only its own rows of the last batch. A process without any computes the first rows again, which keeps
it in step with the others, and their loss has the weight 0.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import accelerate.data_loader
from accelerate.data_loader import BatchSamplerShard, DataLoaderDispatcher, IterableDatasetShard
from accelerate.state import GradientState
from accelerate.utils import find_batch_size, slice_tensors
from torch.utils.data import DataLoader

from alignattn.utils.attributes import replaced


class OwnBatches(BatchSamplerShard):  # type: ignore[misc]  # accelerate has no types
    """The batches of one process, of which the last may be shorter.

    Attributes:
        has_only_repeats: whether the last batch that was yielded repeats rows of another process.
    """

    has_only_repeats = False

    def __len__(self) -> int:
        batches: int = len(self.batch_sampler)
        if self.split_batches:
            return batches
        return batches // self.num_processes if self.drop_last else -(-batches // self.num_processes)

    def __iter__(self) -> Iterator[list[Any]]:
        first = None
        for batches in self._of_all_processes():
            first = first or batches[0]
            own = batches[self.process_index] if self.process_index < len(batches) else []
            self.has_only_repeats = not own
            yield own or first

    def _of_all_processes(self) -> Iterator[list[list[Any]]]:
        """Yield the batches that the processes take at the same time; the last may be too few, or too short."""
        if self.split_batches:
            size = self.batch_size // self.num_processes
            for batch in self.batch_sampler:
                yield [batch[start : start + size] for start in range(0, self.batch_size, size)]
            return
        rest = iter(self.batch_sampler)
        while batches := list(islice(rest, self.num_processes)):
            if len(batches) == self.num_processes or not self.drop_last:
                yield batches


class OwnElements(IterableDatasetShard):  # type: ignore[misc]
    """The elements of one process, of which the last batch may be shorter.

    Attributes:
        has_only_repeats: whether the last batch that was yielded repeats elements of another process.
    """

    has_only_repeats = False

    def __iter__(self) -> Iterator[Any]:
        size = self.batch_size // self.num_processes if self.split_batches else self.batch_size
        own = slice(self.process_index * size, (self.process_index + 1) * size)
        elements, first = iter(self.dataset), None
        self.has_only_repeats = False
        while batch := list(islice(elements, size * self.num_processes)):
            if self.drop_last and len(batch) < size * self.num_processes:
                return
            first = first or batch[:size]
            self.has_only_repeats = not batch[own]
            yield from batch[own] or first


def without_repeats(create: Any) -> DataLoader[Any]:
    """Return the data loader that a function creates, with the own rows of each process alone."""
    with replaced(accelerate.data_loader, BatchSamplerShard=OwnBatches, IterableDatasetShard=OwnElements):
        loader: DataLoader[Any] = create()
    return loader


def own_rows(batch: Any, loader: DataLoader[Any] | None) -> tuple[Any, bool]:
    """Return a batch without repeated rows, and whether it has no others: it is then left as it is.

    Args:
        batch: the batch that the data loader of the running epoch has just yielded.
        loader: the data loader that `without_repeats` returned.
    """
    state = GradientState()
    if not state.end_of_dataloader:
        return batch, False
    running = state.active_dataloader
    if isinstance(running, DataLoaderDispatcher):
        size = find_batch_size(batch)
        own = min(max(running.remainder - running.state.process_index * size, 0), size)
        return (slice_tensors(batch, slice(own)), False) if own > 0 else (batch, True)
    shards = (getattr(loader, "batch_sampler", None), getattr(loader, "dataset", None))
    return batch, any(getattr(shard, "has_only_repeats", False) for shard in shards)
