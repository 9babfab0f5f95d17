"""The order of training rows: by similar length, decided by the seed, the same for all choices of a row."""

import random
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import pandas as pd
import pytest
import torch
import transformers
from conftest import WORDS
from processes import run_two_processes
from safetensors.torch import load_file

from alignattn.finetuning.rows import LengthGroupedSteps, padded_lengths, scattered
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import RunArguments
from alignattn.tasks.definitions import TASKS

ROWS = 400
BY_LENGTH, REBALANCED = "group_by_length", "batch_rebalance"


@pytest.fixture
def batches(tiny_checkpoint: Path, tmp_path: Path) -> Callable[..., list[list[int]]]:
    """Returns the batches of an epoch, as the lengths of the longest sequences of their rows, which all differ."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_checkpoint)
    model = transformers.AutoModelForMultipleChoice.from_pretrained(tiny_checkpoint)
    longest = random.Random(0).sample(range(2, ROWS + 2), ROWS)

    def make(order: str, choices: int = 1, seed: int = 1) -> list[list[int]]:
        # The longest choice is last, so that the length of the first tells nothing.
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
    """Return the number of tokens of the batches, including padding."""
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
def test_the_seed_decides_the_order(order: str, batches: Callable[..., list[list[int]]]) -> None:
    assert batches(order, seed=1) == batches(order, seed=1) != batches(order, seed=2)


def orders(lengths: list[int], rows_a_step: int, seed: int, epochs: int) -> list[list[int]]:
    sampler = LengthGroupedSteps(lengths, rows_a_step, seed)
    made = []
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        made.append(list(sampler))
    return made


@pytest.mark.parametrize("count", [1, 15, 16, 17, 32, 1001])
def test_steps_of_similar_length_come_in_random_order_after_the_longest(count: int) -> None:
    lengths = [1 + (7 * row) % 97 for row in range(count)]
    (rows,) = orders(lengths, 16, 1, 1)
    assert sorted(rows) == list(range(count))
    steps = [[lengths[row] for row in rows[start : start + 16]] for start in range(0, count, 16)]
    assert max(steps[0]) == max(lengths)
    between = [max(step) for step in steps[1:-1]]
    if len(between) > 3:
        assert between != sorted(between, reverse=True)
        assert sum(max(step) - min(step) for step in steps) / len(steps) < 10


def test_no_epoch_repeats_an_earlier_one_or_one_of_the_next_seed() -> None:
    lengths = [1 + row % 9 for row in range(200)]
    first, second = (orders(lengths, 4, scattered(seed), 3) for seed in (1, 2))
    assert orders(lengths, 4, scattered(1), 3) == first
    assert all(one != other for number, one in enumerate(first) for other in (*first[:number], *second))


def test_lengths_are_counted_whatever_form_rows_are_given_in() -> None:
    rows = datasets.Dataset.from_dict({"input_ids": [[1, 2, 3], [], [1]]})
    assert padded_lengths(rows) == padded_lengths(rows.with_format("numpy")) == [3, 0, 1]
    choices = datasets.Dataset.from_dict({"input_ids": [[[1, 2], [1]], [[1], [1, 2, 3]]]})
    assert padded_lengths(choices) == padded_lengths(choices.with_format("torch")) == [4, 6]


@pytest.mark.parametrize("order", [BY_LENGTH, REBALANCED])
def test_two_processes_resume_within_their_second_epoch_with_its_order(
    order: str, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    texts = [" ".join(WORDS[:1] * (1 + n % 11)) for n in range(40)]
    file = tmp_path / "reviews.tsv"
    pd.DataFrame({"text": texts, "stars": [4 + n % 2 for n in range(40)]}).to_csv(file, index=False, sep="\t")
    words = (
        f"finetune --model {tiny_checkpoint} --attention soft --train_file {file} --text_columns text "
        f"--label_column stars --per_device_train_batch_size 4 --num_train_epochs 2 --train_sampling_strategy {order} "
        "--save_strategy steps --save_steps 7 --save_total_limit 5 --keep_checkpoints --disable_tqdm true"
    ).split()
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    done = run_two_processes("-m", "alignattn", *words, "--output_dir", str(whole))
    assert done.returncode == 0, done.stderr
    killed.mkdir()
    shutil.copy(whole / "config.yaml", killed)
    shutil.copytree(whole / "checkpoint-7", killed / "checkpoint-7")
    done = run_two_processes("-m", "alignattn", *words, "--output_dir", str(killed))
    assert done.returncode == 0, done.stderr
    assert "resuming from" in done.stdout
    expected, found = (load_file(folder / "model.safetensors") for folder in (whole, killed))
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.items())
