"""What the CPU passes of the alignment losses save compared with the generic path, which a GPU runs.

    python benchmarks/cpu_passes.py --shape 16x128 --repeats 15

MiniLM, float32, one thread. In every repeat plain attention and each path of each alignment take one training step in
rotating order. The processor time of a step is divided by that of the plain step of the same repeat, so that other
processes on the machine have little effect. Prints medians and quartiles.
"""

import argparse
import statistics
import time
from unittest import mock

import torch
from transformers import AutoModelForSequenceClassification

from alignattn.attention.alignment import base
from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark.step_timing import Setting, Shape, Subject, make_batch
from alignattn.models.packaged import model_source

SEED = 42
PATHS = {
    "passes": {"uses_cpu_backend": base.uses_cpu_backend},
    "generic": {"uses_cpu_backend": lambda _: False},
    "generic, a layer at a time": {"uses_cpu_backend": lambda _: False, "GROUP_ELEMENTS": 1},
}
"""The attributes replaced in the module that chooses the path."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", type=Shape.parse, default="16x128", metavar="ROWSxTOKENS")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--paths", nargs="+", choices=PATHS, default=list(PATHS))
    parser.add_argument("--alignments", nargs="+", choices=ALIGNMENTS, default=list(ALIGNMENTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = AutoModelForSequenceClassification.from_pretrained(model_source("minilm")).train()
    config = model.config
    batch = make_batch(options.shape, config.vocab_size, config.pad_token_id, config.num_labels, SEED)
    steps = [(Subject(PLAIN_ATTENTION, model, Setting(torch.device("cpu"))), PLAIN_ATTENTION, "passes")]
    for alignment in options.alignments:
        subject = Subject(f"aa-{alignment}", model, steps[0][0].setting)
        steps += [(subject, subject.attention, path) for path in options.paths]
    seconds: dict[tuple[str, str], list[float]] = {step[1:]: [] for step in steps}
    for repeat in range(-1, options.repeats):
        first = repeat % len(steps)
        for subject, attention, path in (*steps[first:], *steps[:first]):
            with mock.patch.multiple(base, **PATHS[path]):
                start = time.process_time()
                subject.step("training", batch)
                taken = time.process_time() - start
            subject.clear()
            if repeat >= 0:
                seconds[attention, path].append(taken)
    plain = seconds.pop((PLAIN_ATTENTION, "passes"))
    print(f"{options.shape}, {options.repeats} repeats, {PLAIN_ATTENTION}: {statistics.median(plain):.2f} s")
    for (attention, path), of_path in seconds.items():
        low, median, high = statistics.quantiles([a / b for a, b in zip(of_path, plain, strict=True)], n=4)
        print(f"{attention:8} {path:26} {median:.3f} ({low:.3f} to {high:.3f})", flush=True)


if __name__ == "__main__":
    main()
