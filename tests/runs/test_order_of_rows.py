"""The order in which the rows of a training come: of like length, of its seed, the same of each of a row's choices."""

import random
from collections.abc import Callable
from pathlib import Path

import datasets
import pytest
import transformers

from alignattn.runs.task_trainer import TaskTrainer
from alignattn.runs.training_arguments import RunArguments
from alignattn.tasks import TASKS

ROWS = 400
BY_LENGTH, REBALANCED = "group_by_length", "batch_rebalance"


@pytest.fixture
def batches(tiny_checkpoint: Path, tmp_path: Path) -> Callable[..., list[list[int]]]:
    """Makes an epoch's batches, each the lengths of its rows' longest sequences: all rows differ in them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(tiny_checkpoint)
    longest = random.Random(0).sample(range(2, ROWS + 2), ROWS)

    def make(order: str, choices: int = 1, seed: int = 1) -> list[list[int]]:
        # The longest choice stands last: the first tells nothing.
        sequences = [[[5]] * (choices - 1) + [[5] * length] for length in longest]
        rows = sequences if choices > 1 else [one for (one,) in sequences]
        trainer = TaskTrainer(
            task=TASKS["hellaswag"],
            splits={},
            model=model,
            args=RunArguments(
                output_dir=str(tmp_path), use_cpu=True, seed=seed, train_sampling_strategy=order, report_to="none"
            ),
            train_dataset=datasets.Dataset.from_dict({"input_ids": rows, "label": [0] * ROWS}),
            data_collator=lambda batch: {"lengths": [row["input_ids"] for row in batch]},
            processing_class=tokenizer,
        )
        last = [batch["lengths"] for batch in trainer.get_train_dataloader()]
        return [[len(ids[-1]) if choices > 1 else len(ids) for ids in batch] for batch in last]

    return make


def padded(batches: list[list[int]]) -> int:
    """How many tokens the batches have, padding among them."""
    return sum(max(batch) * len(batch) for batch in batches)


@pytest.mark.parametrize("choices", [1, 3])
@pytest.mark.parametrize("order", [BY_LENGTH, REBALANCED])
def test_a_row_of_several_choices_is_as_long_as_its_longest(
    order: str, choices: int, batches: Callable[..., list[list[int]]]
) -> None:
    made = batches(order, choices)
    assert sorted(length for batch in made for length in batch) == list(range(2, ROWS + 2))
    assert made == batches(order)
    if order == BY_LENGTH:
        assert padded(made) < 1.1 * sum(range(2, ROWS + 2)) < padded(batches("random", choices))


@pytest.mark.parametrize("order", ["random", BY_LENGTH, REBALANCED])
def test_an_order_is_its_seed_s(order: str, batches: Callable[..., list[list[int]]]) -> None:
    assert batches(order, seed=1) == batches(order, seed=1) != batches(order, seed=2)
