"""Training throughput of the text classifiers in rows per second, compared with a plain PyTorch loop.

    python benchmarks/train_throughput.py --file ../shared/data/ag_news/train.parquet --models lstm cnn --repeats 7

In every repeat both train an epoch on the same rows from the same weights, in alternating order, on one thread.
Processor time is compared, so that other processes on the machine have little effect. The loop has the same tokens,
batch size, Adam and clipping, and nothing else. Prints medians and quartiles, and the peak of memory after the first
and the last epoch.
"""

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding, TrainingArguments

import alignattn
from alignattn.models import MODELS, capabilities_of
from alignattn.models.build import BuildContext
from alignattn.tasks.definitions import get_task
from alignattn.tasks.reading import read_file

MAX_LENGTH = 128
KIB_A_MIB = 1024


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--models", nargs="+", default=["lstm", "cnn"])
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--repeats", type=int, default=7)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = read_file(Path(options.file)).select(range(options.rows))
    for name in options.models:
        compare(name, rows, options.repeats)


def compare(name: str, rows: Any, repeats: int) -> None:
    """Print how fast the Trainer and the loop train an epoch."""
    built = MODELS.load(name).build(BuildContext(get_task("agnews"), rows, seed=0))
    encoded = rows.map(
        lambda row: built.tokenizer(row["text"], truncation=True, max_length=MAX_LENGTH), remove_columns=["text"]
    )
    collator = DataCollatorWithPadding(built.tokenizer)
    start = {key: tensor.clone() for key, tensor in built.model.state_dict().items()}
    ways: dict[str, Callable[[], None]] = {
        "alignattn": lambda: train_by_trainer(built.model, encoded, collator, name),
        "loop": lambda: train_by_loop(built.model, encoded, collator, name),
    }
    seconds: dict[str, list[float]] = {way: [] for way in ways}
    peaks = []
    for repeat in range(-1, repeats):
        for way in sorted(ways, reverse=bool(repeat % 2)):
            built.model.load_state_dict(start)
            begin = time.process_time()
            ways[way]()
            if repeat >= 0:
                seconds[way].append(time.process_time() - begin)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / KIB_A_MIB)
    print(f"{name}, {len(rows)} rows, batches of {batch_size_of(name)}:")
    for way, taken in seconds.items():
        print(f"  {way}: {len(rows) / statistics.median(taken):.0f} rows a second of processor time")
    ratios = [loop / own for own, loop in zip(seconds["alignattn"], seconds["loop"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"  alignattn's rows a second over the loop's: {middle:.2f} ({low:.2f} to {high:.2f}), {repeats} repeats")
    print(f"  peak of memory: {peaks[0]:.0f} MiB after the first epoch, {peaks[-1]:.0f} MiB after the last")


def batch_size_of(name: str) -> int:
    """Return the default training batch size of a model."""
    size: int = capabilities_of(name).training_defaults["per_device_train_batch_size"]
    return size


def train_by_trainer(model: Any, encoded: Any, collator: Any, name: str) -> None:
    """Train an epoch as `finetune` does."""
    training = dict(capabilities_of(name).training_defaults) | {"num_train_epochs": 1}
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, **training, save_strategy="no", report_to=[], disable_tqdm=True, use_cpu=True, logging_steps=1000
        )
        trainer = alignattn.AlignmentTrainer(model=model, args=args, train_dataset=encoded, data_collator=collator)
        trainer.train()


def train_by_loop(model: Any, encoded: Any, collator: Any, name: str) -> None:
    """Train an epoch with a minimal loop."""
    training = capabilities_of(name).training_defaults
    optimizer = torch.optim.Adam(model.parameters(), lr=training["learning_rate"])
    model.train()
    for batch in DataLoader(encoded, batch_size_of(name), shuffle=True, collate_fn=collator):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), training["max_grad_norm"])
        optimizer.step()


if __name__ == "__main__":
    main()
