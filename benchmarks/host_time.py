"""Measure the host time of a step with a patch: `python benchmarks/host_time.py [CHECKOUT ...]`.

Several checkouts are measured at once, such as those of two commits. Each runs in its own process on one thread, and
the processes take turns. A turn times a plain and a patched step by the process's own time. The sizes are so small that
the host dominates, as on a GPU. The patch's loss is discarded, so a training step shows what recording costs.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

BATCH, LENGTH, LAYERS = 2, 8, 12
STEPS = 2
"""Steps of a turn, per model."""


def work() -> None:
    """Time a plain and a patched step for each line of the input: a type of autocast and a phase."""
    import torch
    import transformers

    import alignattn

    torch.set_num_threads(1)
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=48, num_hidden_layers=LAYERS, num_attention_heads=12, intermediate_size=48
    )
    models = [transformers.BertForSequenceClassification(config) for _ in range(2)]
    alignattn.patch(models[1], "aa-moments")
    optimizers = [torch.optim.SGD(model.parameters(), lr=1e-3) for model in models]
    batch = {"input_ids": torch.randint(1, 50, (BATCH, LENGTH)), "attention_mask": torch.ones(BATCH, LENGTH).long()}
    batch["labels"] = torch.zeros(BATCH, dtype=torch.long)

    def step(index: int, dtype: str, phase: str) -> None:
        model, is_half = models[index], dtype == "bfloat16"
        if phase == "evaluation":
            with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_half):
                model(**batch)
            return
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            loss = model(**batch).loss
        if index:
            alignattn.discard(model)
        loss.backward()
        optimizers[index].step()
        optimizers[index].zero_grad()

    for turn, line in enumerate(sys.stdin):
        dtype, phase = line.split()
        times = [0.0, 0.0]
        for model in models:
            model.train(phase == "training")
        for index in (0, 1) if turn % 2 else (1, 0):
            step(index, dtype, phase)
            start = time.process_time()
            for _ in range(STEPS):
                step(index, dtype, phase)
            times[index] = (time.process_time() - start) / STEPS
        print(*times, flush=True)


def main() -> None:
    """Run the turns and print medians and quartiles of patched to plain."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkouts", nargs="*", default=[Path(__file__).parents[1]], type=Path)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work()
        return
    workers: dict[Path, Any] = {}
    for checkout in options.checkouts:
        command = [sys.executable, str(Path(__file__).resolve()), "--worker"]
        environment = {"PYTHONPATH": str(checkout.resolve()), "OMP_NUM_THREADS": "1"}
        workers[checkout] = subprocess.Popen(  # noqa: S603 - this file
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
    for phase in ("training", "evaluation"):
        for dtype in ("float32", "bfloat16"):
            found: dict[Path, list[tuple[float, float]]] = {checkout: [] for checkout in workers}
            for repeat in range(options.repeats + 1):
                for checkout, worker in workers.items():
                    print(dtype, phase, file=worker.stdin, flush=True)
                    plain, patched = map(float, worker.stdout.readline().split())
                    if repeat:
                        found[checkout].append((plain, patched))
            for checkout, times in found.items():
                ratios = [patched / plain for plain, patched in times]
                low, _, high = quantiles(ratios, n=4)
                plain, patched = (1e3 * median(side) for side in zip(*times, strict=True))
                print(
                    f"{phase} {dtype} {checkout}: plain {plain:.2f} ms, patched {patched:.2f} ms, "
                    f"ratio {median(ratios):.3f} ({low:.3f} to {high:.3f})"
                )
    for worker in workers.values():
        worker.stdin.close()
        worker.wait()


if __name__ == "__main__":
    main()
