"""Accuracy of windows on long texts, by pooling: generated rows, small convolutional models, minutes on a CPU.

python benchmarks/long_texts.py FOLDER [--rows N] [--seeds N ...]
"""

import argparse
import contextlib
import csv
import io
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

import torch
from torch import Tensor

from alignattn.cli import main
from alignattn.tasks import long_texts
from alignattn.utils.console import render_table

FILLER = [f"w{number}" for number in range(200)]
LENGTHS = {"60 to 400": (60, 400), "2,000 to 2,500": (2_000, 2_500)}
TRAINED, EVALUATED = "60 to 400", 200
OPTIONS = (
    "--model cnn --model_config embedding_dim=16 hidden_dim=16 --text_columns text --max_length 64 "
    "--learning_rate 5e-3 --num_train_epochs 8 --per_device_train_batch_size 16 --save_strategy no "
    "--disable_tqdm true --use_cpu true"
)


def one_word(drawn: random.Random, words: list[str]) -> str:
    """Put one of three words at a random place; the word is the label."""
    label = drawn.choice(["red", "green", "blue"])
    words[drawn.randrange(len(words))] = label
    return label


def word_or_none(drawn: random.Random, words: list[str]) -> str:
    """Put a word at a random place, or not; the label says whether it occurs."""
    label = drawn.choice(["yes", "no"])
    if label == "yes":
        words[drawn.randrange(len(words))] = "red"
    return label


def majority(drawn: random.Random, words: list[str]) -> str:
    """Replace about a third of the words by good or bad; about three fifths of these are the label."""
    label = drawn.choice(["good", "bad"])
    other = {"good": "bad", "bad": "good"}[label]
    for place in range(len(words)):
        if drawn.random() < 0.35:
            words[place] = label if drawn.random() < 0.6 else other
    return label


KINDS: dict[str, Callable[[random.Random, list[str]], str]] = {
    "one word of three decides": one_word,
    "one word or none": word_or_none,
    "the majority of many words": majority,
}


def write(path: Path, kind: str, lengths: str, count: int, seed: int) -> Path:
    """Write texts of a kind with their labels."""
    drawn = random.Random(f"{kind} {lengths} {seed}")  # noqa: S311
    with path.open("w", newline="") as file:
        rows = csv.writer(file, delimiter="\t")
        rows.writerow(["text", "label"])
        for _ in range(count):
            words = drawn.choices(FILLER, k=drawn.randint(*LENGTHS[lengths]))
            label = KINDS[kind](drawn, words)
            rows.writerow([" ".join(words), label])
    return path


def mean_windows(logits: Tensor, counts: Tensor) -> Tensor:
    """Replace `pool_windows` by the mean over windows."""
    return torch.stack([part.mean(dim=0) for part in logits.split(counts.tolist())])


def accuracies(folder: Path, kind: str, way: str, rows: int, seed: int) -> Iterator[float]:
    """Train a model, and yield its accuracy on texts of each length."""
    folder.mkdir(parents=True)
    train = write(folder / "train.tsv", kind, TRAINED, rows, seed)
    run = folder / "run"
    mean = mock.patch.object(long_texts, "pool_windows", mean_windows) if way == "mean" else contextlib.nullcontext()
    with mean, contextlib.redirect_stdout(io.StringIO()):
        split = "truncate" if way == "truncate" else "windows"
        words = f"finetune --train_file {train} --output_dir {run} --long_texts {split} --seed {seed} {OPTIONS}"
        assert main(words.split()) == 0
        for number, lengths in enumerate(LENGTHS):
            asked = write(folder / f"{number}.tsv", kind, lengths, EVALUATED, seed + 1000)
            told = folder / f"{number}.jsonl"
            assert main(f"predict --run {run} --file {asked} --output_file {told}".split()) == 0
            found = [json.loads(line) for line in told.read_text().splitlines()]
            yield sum(row["prediction"] == row["label"] for row in found) / len(found)


def run() -> None:
    """Measure all combinations, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rows", type=int, default=600)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    given = parser.parse_args()
    lines = []
    for kind in KINDS:
        for way in ("truncate", "mean", "max"):
            scores = [
                list(accuracies(given.folder / f"{kind}-{way}-{seed}".replace(" ", "-"), kind, way, given.rows, seed))
                for seed in given.seeds
            ]
            lines.append(
                [kind, way, *(", ".join(f"{100 * score:.1f}" for score in one) for one in zip(*scores, strict=True))]
            )
            print(lines[-1], flush=True)
    print(render_table(["label", "long texts", *(f"{lengths} words" for lengths in LENGTHS)], lines))


if __name__ == "__main__":
    run()
