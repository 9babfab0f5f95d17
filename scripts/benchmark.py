"""Measure time and memory of a training and an evaluation step of each attention, from a clone.

    python scripts/benchmark.py --model minilm --shapes 16x128 --attentions aa-ct qvi --threads 2 --output_dir benchmark
    python scripts/benchmark.py --model bert-base --attentions aa-gan aa-ct --device cuda --table --output_dir table

Each repeat takes one step of every attention and of `soft`, the model without a patch, in rotating order, and a step's
time is compared with that of `soft` in the same repeat: a machine that slows down affects all alike. A training step is
the forward, task loss + λ · mean over layers of A(Q, K), and the backward, without the optimizer; an evaluation step is
the forward without gradients. `benchmark.csv` has a line for each attention, shape and phase. With `--table` there is
also `efficiency.md`, a table as that of Zhang et al. 2021.
"""

import argparse
import copy
import functools
import gc
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from alignattn.attention.config import ALL_ROWS, PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.models.lengths import most_positions
from alignattn.patching import has_alignment, patch, step_alignments
from alignattn.patching.checkpoints import load_checkpoint, load_config, loading
from alignattn.utils.console import render_table
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_csv, write_text
from alignattn.utils.paths import check_free, publishable, unfinished

BARE_MODELS = {"tiny": (128, 2, 2), "bare-minilm": (384, 6, 12), "bert-base": (768, 12, 12)}
"""BERTs with random weights, which take any length: hidden size, layers and heads."""

COSTS_FILE, TABLE_FILE = "benchmark.csv", "efficiency.md"

CUDA_GRAPHS_MODE = "reduce-overhead"
"""The mode of `torch.compile` that uses CUDA graphs."""

PHASES = ("training", "evaluation")


class Shape(NamedTuple):
    """Number of rows of a batch, and of tokens of its longest row."""

    batch: int
    length: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse `16x128`: 16 rows of 128 tokens."""
        batch, _, length = text.partition("x")
        if not (batch.isdecimal() and length.isdecimal() and int(batch) > 0 and int(length) > 0):
            raise AlignAttnError(f"shape {text!r} is not ROWSxTOKENS, such as 16x128")
        return cls(int(batch), int(length))

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}"


class Subject:
    """One attention to measure: its model and its steps.

    Args:
        attention: a preset, or choices of slots; `soft` leaves the model as it is.
        model: the plain model; it is copied.
        device: device of the model and the batches, `cpu` or `cuda`.
        dtype: autocast's type; float32 = no autocast.
        compile_options: arguments of `torch.compile`; None = nothing is compiled.
        **changes: fields of `AttentionConfig` that replace those of the preset.
    """

    def __init__(
        self,
        attention: str,
        model: PreTrainedModel,
        device: str = "cpu",
        dtype: torch.dtype = torch.float32,
        compile_options: Mapping[str, Any] | None = None,
        **changes: Any,
    ) -> None:
        self.attention, self.device, self.dtype, self.compile_options = attention, device, dtype, compile_options
        self.model = copy.deepcopy(model)
        nn.Module.to(self.model, device)
        if attention != PLAIN_ATTENTION:
            patch(self.model, attention, **changes)
        self.forward: Callable[..., Any] = self.model
        self.step_alignments: Callable[..., Any] = step_alignments

    def prepare(self, phase: str) -> None:
        """Set the mode of `phase`; a compiled model is compiled again."""
        self.model.train(phase == "training")
        if self.compile_options is not None:
            self.forward = torch.compile(self.model, **self.compile_options)
            self.step_alignments = torch.compile(step_alignments, **self.compile_options)

    def step(self, phase: str, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one step as `AlignmentTrainer` does, without the optimizer, and return the diagnostics."""
        autocast = torch.autocast(self.device, self.dtype, enabled=self.dtype != torch.float32)
        if (self.compile_options or {}).get("mode") == CUDA_GRAPHS_MODE:
            # Allow the graphs to overwrite the memory of the last step.
            torch.compiler.cudagraph_mark_step_begin()
        if phase == "evaluation":
            with torch.no_grad(), autocast:
                self.forward(**batch)
            return {}
        with autocast:
            loss = self.forward(**batch).loss
        diagnostics: dict[str, Tensor] = {}
        if has_alignment(self.model):
            ((state, distance, diagnostics),) = self.step_alignments(self.model)
            loss = loss + state.config.alignment_weight * distance
        loss.backward()
        return diagnostics

    def clear(self) -> None:
        """Drop the gradients, so that each step allocates its own."""
        self.model.zero_grad(set_to_none=True)

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work."""
        if self.device == "cuda":
            torch.cuda.synchronize()


def make_batch(shape: Shape, vocab_size: int, pad_token_id: int, num_labels: int, seed: int) -> dict[str, Tensor]:
    """Return random token ids, their mask and labels.

    The first row has `shape.length` tokens, like the longest row of a padded batch; the other rows' lengths are
    uniform from a quarter of it to all of it.

    Returns:
        `input_ids` and `attention_mask` `[B, n]`, `labels` `[B]`.
    """
    generator = torch.Generator().manual_seed(seed)
    shortest = max(1, math.ceil(0.25 * shape.length))
    lengths = torch.randint(shortest, shape.length + 1, (shape.batch,), generator=generator)
    lengths[0] = shape.length
    is_real = torch.arange(shape.length) < lengths[:, None]
    ids = torch.randint(vocab_size - 1, (shape.batch, shape.length), generator=generator)
    ids = ids + (ids >= pad_token_id)
    return {
        "input_ids": ids.masked_fill(~is_real, pad_token_id),
        "attention_mask": is_real.long(),
        "labels": torch.randint(num_labels, (shape.batch,), generator=generator),
    }


def measure(
    subjects: Sequence[Subject], shape: Shape, phase: str, batch: dict[str, Tensor], *, repeats: int, warmup: int
) -> list[dict[str, Any]]:
    """Measure one step of each subject: first the time, then the peak memory in a separate pass.

    Args:
        subjects: subjects of the same device, type and options; the others are compared with the first.
        shape: shape of `batch`.
        phase: kind of step.
        batch: model inputs on the subjects' device.
        repeats: number of timed steps per subject.
        warmup: number of steps before them, at least 1.

    Returns:
        The columns of `benchmark.csv` of each subject. `ratio_median`, `ratio_q25` and `ratio_q75` are the median and
        the quartiles of a step's time over that of the first subject in the same repeat. `peak_mib` is the peak of what
        a step has allocated and not yet freed, in MiB: gradients count, parameters and the batch do not; `extra_mib`
        is what it exceeds that of the first subject by. `parameters` includes the alignment's networks, `diagnostics`
        are the alignment's, means over layers and repeats, `seconds` the time of each repeat.

    Raises:
        AlignAttnError: if the step does not fit into the memory of the GPU.
    """
    seconds: list[list[float]] = [[] for _ in subjects]
    sums: list[dict[str, float]] = [{} for _ in subjects]
    order, peaks = list(range(len(subjects))), []
    try:
        with nullcontext() if subjects[0].compile_options is None else _compiling_apart(len(subjects)):
            for subject in subjects:
                subject.prepare(phase)
                for _ in range(max(warmup, 1)):
                    subject.step(phase, batch)
                    subject.clear()
            for _ in range(repeats):
                for index in order:
                    subject = subjects[index]
                    subject.synchronize()
                    start = time.perf_counter()
                    diagnostics = subject.step(phase, batch)
                    subject.synchronize()
                    seconds[index].append(time.perf_counter() - start)
                    subject.clear()
                    for name, value in diagnostics.items():
                        sums[index][name] = sums[index].get(name, 0.0) + float(value)
                order = [*order[1:], order[0]]
            for subject in subjects:
                peaks.append(peak_bytes(functools.partial(subject.step, phase, batch), subject.device) / 2**20)
                subject.clear()
    except torch.OutOfMemoryError as error:
        raise AlignAttnError(
            f"{shape} {phase} does not fit into the memory of the GPU: leave that shape out, or use fewer rows"
        ) from error
    costs = []
    for index, subject in enumerate(subjects):
        low, median, high = np.quantile(np.divide(seconds[index], seconds[0]), (0.25, 0.5, 0.75)).tolist()
        costs.append(
            {
                "attention": subject.attention,
                "phase": phase,
                "batch": shape.batch,
                "length": shape.length,
                "median_seconds": float(np.median(seconds[index])),
                "ratio_median": median,
                "ratio_q25": low,
                "ratio_q75": high,
                "peak_mib": peaks[index],
                "extra_mib": peaks[index] - peaks[0],
                "parameters": sum(parameter.numel() for parameter in subject.model.parameters()),
                "diagnostics": " ".join(f"{name}={total / repeats:.4g}" for name, total in sums[index].items()),
                "seconds": " ".join(map(str, seconds[index])),
            }
        )
    return costs


def peak_bytes(work: Callable[[], object], device: str) -> int:
    """Return the peak of the bytes that `work` allocates; run it once before, so that caches are filled.

    On a GPU this is the peak that the caching allocator counts. On a CPU it is the peak of the running sum of the
    allocations and frees that `torch.profiler` records: exact to the byte, but without what libraries allocate
    outside PyTorch.
    """
    # Freed within the work, the garbage of earlier steps would lower the sum.
    gc.collect()
    if device == "cuda":
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        work()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    kept = os.dup(2)
    try:
        # The profiler's native code logs to stderr.
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
    finally:
        os.dup2(kept, 2)
        os.close(kept)
    recorded: Any = profiler.profiler
    changes = [event for event in recorded.kineto_results.events() if event.name() == "[memory]"]
    live = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        live += change.nbytes()
        peak = max(peak, live)
    return peak


@contextmanager
def _compiling_apart(models: int) -> Iterator[None]:
    """Compile with an empty cache, and raise where PyTorch would silently fall back to eager mode."""
    import torch._dynamo

    torch.compiler.reset()
    # Models of one class share their code, so the graphs of all count against one limit. A model has at most four:
    # more mean that it recompiles at each step.
    with torch._dynamo.config.patch(recompile_limit=4 * models, fail_on_recompile_limit_hit=True):
        yield


def load_model(name: str, length: int, dropout: float | None) -> PreTrainedModel:
    """Return a sequence classifier: one of `BARE_MODELS` with random weights, or the pretrained `name`.

    Args:
        name: a name in `BARE_MODELS`, a packaged model, a folder or a Hub id, looked up in this order.
        length: number of tokens that the model must support.
        dropout: probability for every `torch.nn.Dropout`; None keeps the model's.
    """
    bare = f"one of {', '.join(BARE_MODELS)}"
    if name in BARE_MODELS:
        hidden, layers, heads = BARE_MODELS[name]
        sizes = {"num_hidden_layers": layers, "num_attention_heads": heads, "intermediate_size": 4 * hidden}
        config = BertConfig(hidden_size=hidden, max_position_embeddings=max(length, 512), **sizes)
        model = AutoModelForSequenceClassification.from_config(config)
    else:
        choices = f"a folder, a Hub id that is cached or reachable, or {bare}"
        with loading(name, choices):
            config = load_config(name, num_labels=2)
        config.problem_type = "single_label_classification"
        positions = most_positions(config)
        if positions is not None and length > positions:
            raise AlignAttnError(
                f"{length} tokens exceed the maximum of {name!r}, {positions}: give shorter --shapes, or --model {bare}"
            )
        loaded: dict[str, Any] = {"config": config, "with_slots": False, "ignore_mismatched_sizes": True}
        model = load_checkpoint(name, AutoModelForSequenceClassification, choices=choices, **loaded)
    for module in model.modules() if dropout is not None else ():
        if isinstance(module, nn.Dropout):
            module.p = dropout
    return model


def efficiency_table(costs: Sequence[Mapping[str, Any]], conditions: str) -> str:
    """Return the table of efficiency in Markdown: parameters, time and memory of a training step."""
    text = "| tokens | attention | parameters | time | time over soft's | peak memory |\n|---|---|---|---|---|---|\n"
    for cost in costs:
        if cost["phase"] == "training":
            text += "| {batch} × {length} | {attention} | {} million ".format(f"{cost['parameters'] / 1e6:.2f}", **cost)
            text += "| {median_seconds:.4f} s | {ratio_median:.2f} | {peak_mib:,.1f} MiB |\n".format(**cost)
    return text + (
        f"\nA training step without the optimizer: {conditions}. As table 6 of Zhang et al. 2021, which is of MCAN: "
        "43.3, 43.4 and 43.4 million parameters, 0.25, 0.31 and 0.36 seconds a step for soft, aa-gan and aa-ct.\n"
    )


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"benchmark: {message}\n")


def main(argv: Sequence[str]) -> int:
    """Measure every attention at every shape, print the table and write the files; return 0, or 2 for a mistake."""
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, required=True, help="folder of the results")
    parser.add_argument("--model", default="bare-minilm", help=f"folder, Hub id or one of {', '.join(BARE_MODELS)}")
    parser.add_argument("--attentions", nargs="+", default=list(PRESETS), help="presets or slots (default: presets)")
    parser.add_argument("--alignment_rows", type=int, help="drawn rows of gan, ot and ct (default: 8); 0: all")
    parser.add_argument("--shapes", nargs="+", default=["16x128", "4x512"], metavar="ROWSxTOKENS")
    parser.add_argument("--repeats", type=int, default=20, help="timed steps of each attention (default: 20)")
    parser.add_argument("--warmup", type=int, default=3, help="steps before them, at least 1 (default: 3)")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="bfloat16: autocast")
    parser.add_argument("--compile", choices=("default", CUDA_GRAPHS_MODE), help="mode of torch.compile")
    parser.add_argument("--dropout", type=float, help="default: the model's; above 0 a CPU forms n x n weights")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="CPU threads")
    parser.add_argument("--seed", type=int, default=42, help="of random weights, token ids and dropout")
    parser.add_argument("--table", action="store_true", help=f"also write the paper's table, {TABLE_FILE}")
    try:
        run(parser.parse_args(argv))
    except AlignAttnError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0


def run(options: argparse.Namespace) -> None:
    """Measure, print and write; raises `AlignAttnError` for a mistake of the user."""
    for name in ("repeats", "threads"):
        if getattr(options, name) < 1:
            raise AlignAttnError(f"--{name} {getattr(options, name)}: give a number above 0")
    if options.dropout is not None and not 0 <= options.dropout < 1:
        raise AlignAttnError(f"--dropout {options.dropout}: give a number from 0 to below 1")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise AlignAttnError("--device cuda: PyTorch finds no CUDA GPU: use --device cpu")
    shapes = list(dict.fromkeys(map(Shape.parse, options.shapes)))
    folder = options.output_dir
    check_free(folder, (COSTS_FILE, TABLE_FILE))
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    model = load_model(options.model, max(shape.length for shape in shapes), options.dropout)
    compile_options = None if options.compile is None else {"mode": options.compile}
    dtype = getattr(torch, options.dtype)
    attentions = dict.fromkeys([PLAIN_ATTENTION, *options.attentions])
    subjects, rows = [], {} if options.alignment_rows is None else {"alignment_rows": options.alignment_rows}
    for name in attentions:
        draws = AttentionConfig.resolve(name).alignment_rows != ALL_ROWS
        subjects.append(Subject(name, model, options.device, dtype, compile_options, **(rows if draws else {})))
    machine = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    if options.device == "cpu" and (cpu_info := Path("/proc/cpuinfo")).exists():
        names = [line.partition(": ")[2] for line in cpu_info.read_text().splitlines() if line.startswith("model name")]
        machine = names[0] if names else machine
    # The load is the mean number of running and waiting processes in the minute before: a busy machine is noisy.
    set_by_options = ("repeats", "alignment_rows", "model", "dropout", "dtype", "compile", "device", "threads")
    conditions = {name: publishable(getattr(options, name)) for name in set_by_options}
    conditions |= {"machine": machine, "load": round(os.getloadavg()[0], 2), "torch": torch.__version__}
    said = ", ".join(f"{name} {value}" for name, value in conditions.items() if value is not None)
    costs = []
    # A call after an interrupted one measures all shapes again: times of two runs do not compare.
    with unfinished(folder):
        for shape in shapes:
            # Without a padding token any id will do: the mask marks the padding.
            batch = make_batch(shape, model.config.vocab_size, model.config.pad_token_id or 0, 2, options.seed)
            batch = {name: tensor.to(options.device) for name, tensor in batch.items()}
            for phase in PHASES:
                print(f"{shape} {phase}", file=sys.stderr, flush=True)
                costs += measure(subjects, shape, phase, batch, repeats=options.repeats, warmup=options.warmup)
            write_csv(folder / COSTS_FILE, [cost | conditions for cost in costs])
        if options.table:
            write_text(folder / TABLE_FILE, efficiency_table(costs, said))
    form = "{batch}x{length}|{phase}|{attention}|{diagnostics}|{median_seconds:.4f}|"
    form += "{ratio_median:.2f} [{ratio_q25:.2f}, {ratio_q75:.2f}]|{peak_mib:.1f}|{extra_mib:.1f}"
    header = ["shape", "phase", "attention", "diagnostics", "seconds", "ratio [quartiles]", "peak MiB", "extra"]
    rows = [form.format(**cost).split("|") for cost in costs]
    print(f"{said}\n{render_table(header, rows, left=4)}\nwritten to {folder}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
