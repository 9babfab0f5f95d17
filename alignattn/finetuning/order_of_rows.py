"""The order in which the rows of a training come: which of them make a batch, epoch by epoch."""

from collections.abc import Iterator, Mapping, Sequence

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch.utils.data import Sampler
from transformers.trainer_pt_utils import get_length_grouped_indices

from alignattn.models import AT_RANDOM, BY_LENGTH, IN_FILE_ORDER, REBALANCED
from alignattn.tasks.truncation import INPUT, lengths_of

ORDERS_IN_WORDS: Mapping[str, str] = {
    AT_RANDOM: "drawn at random",
    BY_LENGTH: "of like length",
    REBALANCED: "drawn at random, shared out by length within a step",
    IN_FILE_ORDER: "as they come",
}


class LengthGroupedSteps(Sampler[int]):
    """Rows of like length together, a step's at a time, in an order that a seed and the number of the epoch say.

    They are grouped as `LengthGroupedSampler` does. That one leaves the order to the global generator, so that a run
    which goes on within an epoch reads some rows of it twice and others never; and its batches come from long to short,
    so that those of a kind, as of a label, follow each other: here the steps between the longest and the last, which
    may be short, are shuffled.

    Args:
        lengths: of the rows, in tokens.
        rows_a_step: of all its batches, on all devices.
        seed: of the first epoch, to which the number of another is added.
    """

    def __init__(self, lengths: Sequence[int], rows_a_step: int, seed: int) -> None:
        self.lengths = lengths
        self.rows_a_step = rows_a_step
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is next."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        rows = get_length_grouped_indices(self.lengths, self.rows_a_step, generator=generator)
        steps = [rows[start : start + self.rows_a_step] for start in range(0, len(rows), self.rows_a_step)]
        between = range(1, len(steps) - 1)
        shuffled = [between[index] for index in torch.randperm(len(between), generator=generator).tolist()]
        for step in dict.fromkeys((0, *shuffled, len(steps) - 1)):
            yield from steps[step]


def scattered(seed: int) -> int:
    """Return a seed far from those of its neighbours, whose epochs would else be its own, one later."""
    return int(np.random.SeedSequence(seed).generate_state(1)[0])


def padded_lengths(rows: datasets.Dataset) -> list[int]:
    """Return how many tokens each row has; of several sequences, as of choices, with all padded to the longest."""
    column = rows.select_columns([INPUT]).with_format("arrow")[:][INPUT]
    lengths = lengths_of(column)
    if pa.types.is_nested(column.type.value_type):
        lengths = lengths * np.array(pc.list_value_length(column), dtype=np.int64)
    return lengths.tolist()
