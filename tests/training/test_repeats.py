"""Each row of an epoch belongs to one process, and all processes have as many batches."""

import itertools

import pytest
from torch.utils.data import BatchSampler, IterableDataset

from alignattn.training.distributed import OwnBatches, OwnElements

SHAPES = [*itertools.product((1, 2, 9, 10, 12, 24), (1, 3), (1, 2, 3, 8))]
"""Numbers of rows, of rows in a batch, and of processes."""


def batches_of(rows, size, processes, drop_last, **options):
    """Return the batches of each process and, for each, whether it only repeats rows of another one."""
    found = []
    for index in range(processes):
        shard = OwnBatches(BatchSampler(range(rows), size, drop_last), processes, index, **options)
        found.append([(batch, shard.has_only_repeats) for batch in shard])
        assert len(found[-1]) == len(shard)
    return found


@pytest.mark.parametrize("even", [True, False])
@pytest.mark.parametrize("splits", [True, False])
def test_each_row_is_of_one_process(splits, even):
    for rows, size, processes in SHAPES:
        size = size * processes if splits else size
        found = batches_of(rows, size, processes, False, split_batches=splits, even_batches=even)
        own = [row for batches in found for batch, is_repeated in batches if not is_repeated for row in batch]
        assert sorted(own) == list(range(rows))
        assert len({len(batches) for batches in found}) == 1
        assert all(batch for batches in found for batch, _ in batches)
        assert not any(is_repeated for batches in found for _, is_repeated in batches[:-1])
        # The processes take the rows of a step together, as one process takes them alone.
        rounds = [
            sorted(row for batch, is_repeated in batches if not is_repeated for row in batch)
            for batches in zip(*found, strict=True)
        ]
        assert [row for batches in rounds for row in batches] == list(range(rows))


def test_incomplete_batches_are_left_out_if_asked():
    for rows, size, processes in SHAPES:
        found = batches_of(rows, size, processes, True)
        used = [row for batches in found for batch, is_repeated in batches for row in batch if not is_repeated]
        assert sorted(used) == list(range(rows // (size * processes) * size * processes))


class Stream(IterableDataset):
    def __init__(self, rows):
        self.rows = rows

    def __iter__(self):
        return iter(range(self.rows))


@pytest.mark.parametrize("splits", [True, False])
def test_each_row_of_a_stream_is_of_one_process(splits):
    for rows, size, processes in SHAPES:
        batch = size * processes if splits else size
        own, counts = [], set()
        for index in range(processes):
            shard = OwnElements(Stream(rows), batch, False, processes, index, split_batches=splits)
            elements = list(shard)
            counts.add(-(-len(elements) // size))
            repeats = (len(elements) - 1) % size + 1 if shard.has_only_repeats else 0
            own += elements[: len(elements) - repeats]
        assert sorted(own) == list(range(rows))
        assert len(counts) == 1
