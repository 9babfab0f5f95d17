"""Rows per second of a run's predictor, compared with `transformers.pipeline` with the same model and batch size.

    python benchmarks/predict_throughput.py --run FOLDER --file rows.jsonl --batch_size 32 --repeats 15

The run classifies single texts or pairs. In every repeat both predict all rows, in alternating order, on one thread.
Processor time is compared, so that other processes on the machine have little effect. Both truncate texts to the run's
maximum length. The rows are predicted as they come, and again cut to as many words as the shortest row has, so that
nothing is padded and sorting by length has no effect. Prints medians and quartiles, and the largest difference of two
probabilities.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

import alignattn
from alignattn.finetuning.predictor import Predictor
from alignattn.tasks.reading import read_file

Texts = Sequence[tuple[str, ...]]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", required=True, metavar="DIR")
    parser.add_argument("--file", required=True)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.set_num_threads(1)
    predictor = alignattn.load_run(options.run, device="cpu")
    rows = read_file(Path(options.file)).select_columns(list(predictor.task.input_columns))
    texts = [tuple(row.values()) for row in rows.select(range(min(options.rows, len(rows))))]
    words = min(len(text.split()) for row in texts for text in row)
    alike = [tuple(" ".join(text.split()[:words]) for text in row) for row in texts]
    for name, chosen in (("as they come", texts), (f"of {words} words", alike)):
        print(f"{len(chosen)} rows {name}, batches of {options.batch_size}:")
        compare(predictor, chosen, options.batch_size, options.repeats)


def compare(predictor: Predictor, texts: Texts, batch_size: int, repeats: int) -> None:
    """Print how fast both predict the same rows."""
    pipe = transformers.pipeline(
        "text-classification", model=predictor.model, tokenizer=predictor.tokenizer, top_k=None, device="cpu"
    )
    inputs = [{"text": row[0]} | ({"text_pair": row[1]} if len(row) > 1 else {}) for row in texts]
    cut = {"truncation": True, "max_length": predictor.options.max_length}
    ways: dict[str, Callable[[], Any]] = {
        "alignattn": lambda: predictor.predict(texts, batch_size=batch_size),
        "pipeline": lambda: pipe(inputs, batch_size=batch_size, **cut),
    }
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    answers: dict[str, Any] = {}
    for repeat in range(-1, repeats):
        for name in sorted(ways, reverse=bool(repeat % 2)):
            start = time.process_time()
            answers[name] = ways[name]()
            if repeat >= 0:
                seconds[name].append(time.process_time() - start)
    for name, taken in seconds.items():
        print(f"  {name}: {len(texts) / statistics.median(taken):.0f} rows a second of processor time")
    ratios = [theirs / own for own, theirs in zip(seconds["alignattn"], seconds["pipeline"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"  pipeline's time over alignattn's: {middle:.2f} ({low:.2f} to {high:.2f}), {repeats} repeats")
    print(f"  largest difference of two probabilities: {_difference(answers):.1g}")


def _difference(answers: dict[str, Any]) -> float:
    own = [{one["label"]: one["probability"] for one in row["probabilities"]} for row in answers["alignattn"]]
    theirs = [{one["label"]: one["score"] for one in row} for row in answers["pipeline"]]
    return max(abs(row[label] - other[label]) for row, other in zip(own, theirs, strict=True) for label in row)


if __name__ == "__main__":
    main()
