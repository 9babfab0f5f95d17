"""Time and peak memory of single steps of one model with different attentions, interleaved in one run."""

import copy
import functools
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from transformers import PreTrainedModel

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark import Shape
from alignattn.patching import has_alignment, patch, step_alignments
from alignattn.utils.errors import AlignAttnError

Phase = Literal["training", "evaluation"]
PHASES: tuple[Phase, ...] = get_args(Phase)

MIN_ROW = 0.25
"""Length of the shortest rows of a batch, as a share of the longest."""

MEMORY_METHODS = {"cpu": "allocations seen by torch.profiler", "cuda": "torch.cuda.max_memory_allocated"}

CUDA_GRAPHS_MODE = "reduce-overhead"
"""The mode of `torch.compile` that uses CUDA graphs."""

GRAPHS_A_MODEL = 4
"""Maximum graphs that `torch.compile` makes of one model; more mean that it recompiles at each step."""


@dataclass(frozen=True)
class Setting:
    """How a step runs.

    Attributes:
        device: where.
        dtype: autocast's type; float32 = no autocast.
        compiles: whether the model goes through `torch.compile`.
        compile_options: what that is given besides.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    compiles: bool = False
    compile_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether what was compiled is replayed by CUDA graphs."""
        return self.compiles and self.compile_options.get("mode") == CUDA_GRAPHS_MODE

    def synchronize(self) -> None:
        """Wait until the device has done all that was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Subject:
    """One attention to be measured: its model, and the steps it takes.

    Args:
        attention: a preset's name; `soft` leaves the model as it is.
        model: the plain model; it is copied.
        setting: how the steps run.
    """

    def __init__(self, attention: str, model: PreTrainedModel, setting: Setting) -> None:
        self.attention = attention
        self.setting = setting
        self.model = copy.deepcopy(model)
        torch.nn.Module.to(self.model, setting.device)
        if attention != PLAIN_ATTENTION:
            patch(self.model, attention)
        self._forward: Callable[..., object] = self.model
        self._step_alignments = step_alignments

    def prepare(self, phase: Phase) -> None:
        """Set the mode of `phase`; a compiled model will be compiled anew."""
        self.model.train(phase == "training")
        if self.setting.compiles:
            self._forward = torch.compile(self.model, **self.setting.compile_options)
            self._step_alignments = torch.compile(step_alignments, **self.setting.compile_options)

    def step(self, phase: Phase, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Take one step, as `AlignmentTrainer` does but without the optimizer, and return the diagnostics.

        A training step is the forward, task loss + λ · mean over layers of A(Q, K), and the backward; an
        evaluation step the forward without gradients.
        """
        if self.setting.has_cuda_graphs:
            # Memory of the last step's graphs may be overwritten.
            torch.compiler.cudagraph_mark_step_begin()
        if phase == "evaluation":
            with torch.no_grad(), self._autocast():
                self._forward(**batch)
            return {}
        with self._autocast():
            loss = self._forward(**batch).loss  # type: ignore[attr-defined]
        diagnostics: dict[str, Tensor] = {}
        if has_alignment(self.model):
            ((state, distance, diagnostics),) = self._step_alignments(self.model)
            loss = loss + state.config.alignment_weight * distance
        loss.backward()
        return diagnostics

    def clear(self) -> None:
        """Drop the gradients, so that each step allocates its own."""
        self.model.zero_grad(set_to_none=True)

    def _autocast(self) -> torch.autocast:
        setting = self.setting
        return torch.autocast(setting.device.type, setting.dtype, enabled=setting.dtype != torch.float32)


@dataclass(frozen=True)
class Measurement:
    """The measurements of all attentions at one shape in one phase.

    Attributes:
        shape: of the batch.
        phase: which step.
        seconds: by attention, one number a repeat.
        peak_bytes: by attention, the largest sum of what one step has allocated and not yet freed; parameters
            and the batch were there before and do not count, gradients do.
        diagnostics: by attention, means over the repeats by name.
        parameters: by attention, how many the model has, those of the alignment's networks included.
    """

    shape: Shape
    phase: Phase
    seconds: dict[str, list[float]]
    peak_bytes: dict[str, int]
    diagnostics: dict[str, dict[str, float]]
    parameters: dict[str, int]


def make_batch(shape: Shape, vocab_size: int, pad_token_id: int, num_labels: int, seed: int) -> dict[str, Tensor]:
    """Return random token ids, their mask and labels.

    The first row has all `shape.length` tokens, as a batch padded to its longest row does; the others'
    lengths are uniform from a quarter of it to all of it.

    Returns:
        `input_ids` and `attention_mask` `[B, n]`, `labels` `[B]`.
    """
    generator = torch.Generator().manual_seed(seed)
    shortest = max(1, math.ceil(MIN_ROW * shape.length))
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
    subjects: Sequence[Subject],
    shape: Shape,
    phase: Phase,
    batch: dict[str, Tensor],
    *,
    repeats: int,
    warmup: int,
    on_repeat: Callable[[], None],
) -> Measurement:
    """Measure one step of each subject: first its time, then, in a pass of its own, its peak memory.

    In every repeat each subject takes one step, in an order that moves on by one from repeat to repeat, so
    that a machine that slows down does so for all.

    Args:
        subjects: all with one setting.
        shape: of `batch`.
        phase: which step.
        batch: on the subjects' device.
        repeats: timed steps a subject.
        warmup: steps before them.
        on_repeat: called after each repeat.
    """
    setting = subjects[0].setting
    parameters = {s.attention: sum(parameter.numel() for parameter in s.model.parameters()) for s in subjects}
    measurement = Measurement(shape, phase, {s.attention: [] for s in subjects}, {}, {}, parameters)
    try:
        with _compiling_apart(len(subjects)) if setting.compiles else nullcontext():
            for subject in subjects:
                subject.prepare(phase)
                for _ in range(max(warmup, 1)):
                    subject.step(phase, batch)
                    subject.clear()
            _time_interleaved(subjects, measurement, batch, repeats, on_repeat)
            for subject in subjects:
                work = functools.partial(subject.step, phase, batch)
                measurement.peak_bytes[subject.attention] = peak_bytes(work, setting.device)
                subject.clear()
    except torch.OutOfMemoryError as error:
        raise AlignAttnError(
            f"{shape} {phase} does not fit into the memory of {setting.device}: leave that shape out, or use fewer rows"
        ) from error
    return measurement


def _time_interleaved(
    subjects: Sequence[Subject],
    measurement: Measurement,
    batch: dict[str, Tensor],
    repeats: int,
    on_repeat: Callable[[], None],
) -> None:
    sums: dict[str, dict[str, float]] = {subject.attention: {} for subject in subjects}
    for repeat in range(repeats):
        first = repeat % len(subjects)
        for subject in (*subjects[first:], *subjects[:first]):
            subject.setting.synchronize()
            start = time.perf_counter()
            diagnostics = subject.step(measurement.phase, batch)
            subject.setting.synchronize()
            measurement.seconds[subject.attention].append(time.perf_counter() - start)
            subject.clear()
            total = sums[subject.attention]
            for name, value in diagnostics.items():
                total[name] = total.get(name, 0.0) + float(value)
        on_repeat()
    for attention, total in sums.items():
        measurement.diagnostics[attention] = {name: value / repeats for name, value in total.items()}


def peak_bytes(work: Callable[[], object], device: torch.device) -> int:
    """Return the peak of the bytes that `work` allocates.

    On a GPU this is the peak that the caching allocator counts; on a CPU the running sum of the allocations
    and frees that `torch.profiler` sees, exact to the byte but blind to what libraries allocate past PyTorch.

    Args:
        work: what to measure; should have run before, so that caches are filled.
        device: where it allocates.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True)
    with _native_errors_hidden():
        profiler.start()
    try:
        work()
    finally:
        with _native_errors_hidden():
            profiler.stop()
    recorded: Any = profiler.profiler
    events = recorded.kineto_results.events()
    changes = [event for event in events if event.name() == "[memory]"]
    live = peak = 0
    for change in sorted(changes, key=lambda event: event.start_ns()):
        live += change.nbytes()
        peak = max(peak, live)
    return peak


@contextmanager
def _native_errors_hidden() -> Iterator[None]:
    """Drop what native code writes to stderr: some builds of the profiler report on themselves."""
    kept = os.dup(2)
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextmanager
def _compiling_apart(models: int) -> Iterator[None]:
    """Compile with nothing kept from other shapes, and raise where PyTorch would quietly run eagerly.

    Models of one class share their code, so the graphs of all count against one limit.
    """
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=GRAPHS_A_MODEL * models, fail_on_recompile_limit_hit=True):
        yield
