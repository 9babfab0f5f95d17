"""Measures time and peak memory of single steps of one model with different attentions, interleaved in one run."""

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
"""Maximum number of graphs that `torch.compile` makes of one model; more mean that it recompiles at each step."""


@dataclass(frozen=True)
class Setting:
    """How a step runs.

    Attributes:
        device: device of the models and the batch.
        dtype: autocast's type; float32 = no autocast.
        compiles: whether the model is compiled with `torch.compile`.
        compile_options: further arguments of `torch.compile`.
    """

    device: torch.device
    dtype: torch.dtype = torch.float32
    compiles: bool = False
    compile_options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_cuda_graphs(self) -> bool:
        """Whether compiled steps are replayed as CUDA graphs."""
        return self.compiles and self.compile_options.get("mode") == CUDA_GRAPHS_MODE

    def synchronize(self) -> None:
        """Wait until the device has finished its queued work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


class Subject:
    """One attention to measure: its model and its steps.

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
        """Set the mode of `phase`; a compiled model is compiled again."""
        self.model.train(phase == "training")
        if self.setting.compiles:
            self._forward = torch.compile(self.model, **self.setting.compile_options)
            self._step_alignments = torch.compile(step_alignments, **self.setting.compile_options)

    def step(self, phase: Phase, batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Run one step as `AlignmentTrainer` does, without the optimizer, and return the diagnostics.

        A training step is the forward, task loss + λ · mean over layers of A(Q, K), and the backward; an
        evaluation step is the forward without gradients.
        """
        if self.setting.has_cuda_graphs:
            # Allow the graphs to overwrite the memory of the last step.
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
        shape: shape of the batch.
        phase: kind of step.
        seconds: by attention, one time per repeat.
        peak_bytes: by attention, the peak of the memory that a step has allocated and not yet freed. Gradients
            count; parameters and the batch, allocated before, do not.
        diagnostics: by attention, means over the repeats by name.
        parameters: by attention, the number of the model's parameters, including the alignment's networks.
    """

    shape: Shape
    phase: Phase
    seconds: dict[str, list[float]]
    peak_bytes: dict[str, int]
    diagnostics: dict[str, dict[str, float]]
    parameters: dict[str, int]


def make_batch(shape: Shape, vocab_size: int, pad_token_id: int, num_labels: int, seed: int) -> dict[str, Tensor]:
    """Return random token ids, their mask and labels.

    The first row has `shape.length` tokens, like the longest row of a padded batch; the other rows' lengths are
    uniform from a quarter of it to all of it.

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
    """Measure one step of each subject: first the time, then the peak memory in a separate pass.

    In every repeat each subject runs one step. The order rotates by one from repeat to repeat, so that a machine
    that slows down affects all subjects alike.

    Args:
        subjects: subjects with the same setting.
        shape: shape of `batch`.
        phase: kind of step.
        batch: model inputs on the subjects' device.
        repeats: number of timed steps per subject.
        warmup: number of steps before them, at least 1.
        on_repeat: called after each repeat.

    Raises:
        AlignAttnError: if the step does not fit into the memory of the GPU.
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

    On a GPU this is the peak that the caching allocator counts. On a CPU it is the peak of the running sum of the
    allocations and frees that `torch.profiler` records: exact to the byte, but without what libraries allocate
    outside PyTorch.

    Args:
        work: function to measure; run it once before, so that caches are filled.
        device: device that it allocates on.
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
    """Discard what native code writes to stderr: some builds of the profiler log there."""
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
    """Compile with an empty cache, and raise where PyTorch would silently fall back to eager mode.

    Models of one class share their code, so the graphs of all models count against one limit.
    """
    import torch._dynamo

    torch.compiler.reset()
    with torch._dynamo.config.patch(recompile_limit=GRAPHS_A_MODEL * models, fail_on_recompile_limit_hit=True):
        yield
