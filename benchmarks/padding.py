"""What padding costs a training step, and how much batches of similar lengths and packed batches save.

    python benchmarks/padding.py --file ../shared/data/glue/mrpc/train.parquet --text_columns sentence1 sentence2

MiniLM with an alignment, forward and backward on one thread, in processor time. Batches are drawn as by the Trainer: at
random, or by length within 50 batches (`group_by_length`). Evenly spaced batches of each order are timed in turns;
packed batches are drawn at random. Prints the tokens of all batches, the tokens of the timed ones, and their time.
"""

import argparse
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModel, AutoTokenizer, DataCollatorWithFlattening

import alignattn
from alignattn.models.packaged import model_source
from alignattn.tasks.reading import read_file

SEED = 42
MAX_LENGTH = 128
BATCH_SIZE = 16
SORTED_BATCHES = 50
"""Number of batches within which transformers' `LengthGroupedSampler` sorts."""

Tokens = Sequence[int]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--file", required=True)
    parser.add_argument("--text_columns", nargs="+", required=True)
    parser.add_argument("--attention", default="aa-ct")
    parser.add_argument("--batches", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_source("minilm"))
    rows = read_file(Path(options.file)).select(range(SORTED_BATCHES * BATCH_SIZE))
    texts = [list(rows[column]) for column in options.text_columns]
    samples: list[Tokens] = tokenizer(*texts, truncation=True, max_length=MAX_LENGTH)["input_ids"]
    random.Random(SEED).shuffle(samples)  # noqa: S311  # no secret
    drawn, by_length = batches_of(samples), batches_of(sorted(samples, key=len, reverse=True))
    chosen = range(SORTED_BATCHES // options.batches // 2, SORTED_BATCHES, SORTED_BATCHES // options.batches)
    flatten = DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    ways: dict[str, list[dict[str, Any]]] = {
        "padded": [pad(tokenizer, drawn[index]) for index in chosen],
        "by length": [pad(tokenizer, by_length[index]) for index in chosen],
        "packed": [flatten([{"input_ids": sample} for sample in drawn[index]]) for index in chosen],
    }
    tokens = {"padded": size(drawn), "by length": size(by_length), "packed": sum(map(len, samples))}
    seconds = dict.fromkeys(ways, 0.0)
    model = alignattn.patch(AutoModel.from_pretrained(model_source("minilm")), options.attention).train()
    for batches in ways.values():
        step(model, batches[0])
    for index in range(len(chosen)):
        for way, batches in ways.items():
            begin = time.process_time()
            step(model, batches[index])
            seconds[way] += time.process_time() - begin
    for way, taken in seconds.items():
        timed = sum(batch["input_ids"].numel() for batch in ways[way])
        print(
            f"{options.attention}, {way}: {tokens[way]} tokens in {SORTED_BATCHES} batches; {timed} timed, "
            f"{taken:.2f} s, {taken / seconds['padded']:.2f} of padded"
        )


def batches_of(samples: Sequence[Tokens]) -> list[Sequence[Tokens]]:
    """Return batches of samples in their order."""
    return [samples[start : start + BATCH_SIZE] for start in range(0, len(samples), BATCH_SIZE)]


def size(batches: Sequence[Sequence[Tokens]]) -> int:
    """Return the number of tokens of padded batches, padding included."""
    return sum(len(batch) * max(map(len, batch)) for batch in batches)


def pad(tokenizer: Any, batch: Sequence[Tokens]) -> dict[str, Any]:
    """Return a padded batch."""
    return dict(tokenizer.pad({"input_ids": list(batch)}, return_tensors="pt"))


def step(model: Any, batch: dict[str, Any]) -> None:
    """Compute the gradients of a loss on each sample's first token and of the alignment."""
    inputs = {name: values for name, values in batch.items() if name != "labels"}
    states = model(**inputs).last_hidden_state
    bounds = inputs.get("cu_seq_lens_q")
    first = states[:, 0] if bounds is None else states[0, bounds[:-1].long()]
    (first.square().mean() + alignattn.alignment_loss(model)).backward()
    model.zero_grad()


if __name__ == "__main__":
    main()
