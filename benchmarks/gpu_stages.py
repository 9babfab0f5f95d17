"""The independent stages that `gpu.py` measures, and the content of their results."""

import functools
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch._dynamo.utils import counters
from torch.nn.attention import SDPBackend, sdpa_kernel

from alignattn.attention.alignment import base
from alignattn.attention.config import PLAIN_ATTENTION, PRESETS
from alignattn.patching import step_alignments
from alignattn.utils.errors import AlignAttnError

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT / "scripts"))

from benchmark import CUDA_GRAPHS_MODE, PHASES, Shape, Subject, load_model, make_batch, measure  # noqa: E402

SEED = 42
NUM_LABELS = 2
EAGER, COMPILED = "eager", "compile"
PROFILED_STEPS = 5
BUSIEST_KERNELS = 10
"""Number of kernels kept, those that take most of the device's busy time."""
NANOSECONDS_A_MILLISECOND = 1e6
NO_KERNELS = ("Memcpy", "Memset")
"""Prefixes of the profiler's names of memory operations."""
COUNTS_OF_TESTS = re.compile(r"^\d+ (?:passed|failed|skipped|errors?).*", re.MULTILINE)
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
"""Prefixes of the names of calls that launch work on a device; a CUDA graph is one call."""

Result = dict[str, Any]


class LeftOutError(AlignAttnError):
    """Raised if a stage lacks something it needs; the message names it."""


@dataclass(frozen=True)
class Mode:
    """How a step runs.

    Attributes:
        name: name in the tables.
        compile_options: arguments of `torch.compile`; None = nothing is compiled.
    """

    name: str
    compile_options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Variant:
    """A way to compute an alignment loss.

    Attributes:
        changes: fields of `AttentionConfig` that replace those of the preset.
        around: makes a context in which the loss is computed.
        is_compiled: whether the loss, without the model, is compiled.
    """

    changes: Mapping[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    is_compiled: bool = False


def _groups_of(elements: int) -> Variant:
    return Variant(ALL_ROWS, lambda: mock.patch.object(base, "GROUP_ELEMENTS", elements))


def _products_in(precision: str) -> Variant:
    def around() -> AbstractContextManager[Any]:
        return mock.patch.object(base, "tf32_under_autocast", side_effect=lambda _: _matmul_precision(precision))

    return Variant(ALL_ROWS, around)


@contextmanager
def _matmul_precision(precision: str) -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


ALL_ROWS: Mapping[str, Any] = {"alignment_rows": 0}
FEW_ROWS: Mapping[str, Any] = {"alignment_rows": 8}
DRAWN_FROM = ("aa-gan", "aa-ct", "aa-ot")
"""The alignments whose rows can be drawn."""
QUESTIONS: Mapping[str, tuple[Sequence[str], Mapping[str, Variant]]] = {
    "rows": (DRAWN_FROM, {"all": Variant(ALL_ROWS), "8": Variant(FEW_ROWS)}),
    "groups": (
        DRAWN_FROM,
        {"20 Mi": _groups_of(20 * 2**20), "40 Mi": _groups_of(40 * 2**20), "one": _groups_of(2**40)},
    ),
    "products": (DRAWN_FROM, {"float32": _products_in("highest"), "TF32": _products_in("high")}),
    "loss": (DRAWN_FROM, {EAGER: Variant(FEW_ROWS), "compiled": Variant(FEW_ROWS, is_compiled=True)}),
    "plans": (
        ("aa-ct",),
        {
            "attention": Variant(ALL_ROWS),
            # This kernel forms the weights, here the plans.
            "explicit": Variant(ALL_ROWS, lambda: sdpa_kernel(SDPBackend.MATH)),
        },
    ),
}
"""What is open: the attentions that a question is about, and the answers that are timed in turns, by name."""


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        device: `cuda` or `cpu`.
        model: a value of `scripts/benchmark.py --model`.
        attentions: attentions in addition to `soft`.
        shapes: shapes of batches.
        dtypes: `bfloat16` (autocast), `float32`.
        modes: how a step runs.
        profiled: attentions whose training step is profiled, beside `soft`, eager and in the first of `shapes` and
            `dtypes`. The `QUESTIONS` are asked there, too.
        repeats: number of timed steps.
        warmup: number of steps before them.
        tests: folders or files with the tests marked `cuda`.
    """

    device: str
    model: str = "bert-base"
    attentions: tuple[str, ...] = (*(name for name in PRESETS if name != PLAIN_ATTENTION), "entmax15")
    shapes: tuple[str, ...] = ("32x128", "8x512", "2x4096")
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    modes: tuple[Mode, ...] = (
        Mode(EAGER),
        Mode(COMPILED, {}),
        Mode("CUDA graphs", {"mode": CUDA_GRAPHS_MODE}),
    )
    profiled: tuple[str, ...] = (*DRAWN_FROM, "aa-moments", "qvi")
    repeats: int = 20
    warmup: int = 5
    tests: tuple[str, ...] = ("tests/attention", "tests/patching")

    @classmethod
    def tiny(cls, device: str) -> "Plan":
        """Return a plan that runs every kind of stage with one small cell; its figures mean nothing.

        Graphs are traced and run eagerly, without generated code or CUDA graphs. Without a GPU each test is skipped.
        """
        as_it_is = {"backend": "eager"}
        modes = (
            Mode(EAGER),
            Mode(COMPILED, as_it_is),
            Mode("CUDA graphs", {"mode": CUDA_GRAPHS_MODE, **as_it_is}),
        )
        return cls(
            device,
            model="tiny",
            attentions=("aa-ct",),
            shapes=("2x8",),
            dtypes=("float32",),
            modes=modes,
            profiled=("aa-ct",),
            repeats=2,
            warmup=1,
            tests=("tests/patching/test_cuda.py",),
        )


@dataclass(frozen=True)
class Stage:
    """A stage; it ends within minutes and is measured once.

    Attributes:
        kind: `profile`, `question`, `steps` or `tests`.
        cell: the arguments that identify it among its kind, by name.
    """

    kind: str
    cell: Mapping[str, str]

    @property
    def name(self) -> str:
        """The key of its result."""
        return " ".join([self.kind, *self.cell.values()])

    def measure(self, plan: Plan) -> Result:
        """Measure, and return the content of the JSON file."""
        return _MEASURES[self.kind](plan, **self.cell)


def stages_of(plan: Plan) -> Iterator[Stage]:
    """Yield the stages of a plan: profiles, what is open, steps with goals, other steps, tests."""
    for attention in (PLAIN_ATTENTION, *plan.profiled):
        for rows in QUESTIONS["rows"][1] if attention in DRAWN_FROM else ("all",):
            yield Stage("profile", {"attention": attention, "rows": rows})
    for question, (attentions, _) in QUESTIONS.items():
        for attention in attentions:
            if attention in plan.profiled:
                yield Stage("question", {"question": question, "attention": attention})
    for dtype in plan.dtypes:
        for shape in plan.shapes:
            for mode in plan.modes:
                for attention in plan.attentions:
                    yield Stage("steps", {"dtype": dtype, "shape": shape, "mode": mode.name, "attention": attention})
    yield Stage("tests", {})


def measure_tests(plan: Plan) -> Result:
    """Run the tests that need CUDA."""
    options = ["-o", "addopts=", "-q", "-m", "cuda", "-p", "no:cacheprovider"]
    words = [sys.executable, "-m", "pytest", *options, *plan.tests]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S603 - our own words
    counts = COUNTS_OF_TESTS.findall(done.stdout)
    if done.returncode or not counts:
        lines = counts or done.stderr.strip().splitlines() or [""]
        raise RuntimeError(f"the tests ended with exit code {done.returncode}: {lines[-1]}")
    return {"summary": counts[-1]}


def measure_steps(plan: Plan, dtype: str, shape: str, mode: str, attention: str) -> Result:
    """Time an attention's steps and those of `soft` in turns: seconds, ratio with quartiles, peak memory."""
    subjects = [_subject(plan, name, dtype, shape, mode) for name in (PLAIN_ATTENTION, attention)]
    found: Result = {}
    for phase in PHASES:
        plain, cost = _costs(plan, subjects, shape, phase)
        found[phase] = {
            "soft_seconds": plain["median_seconds"],
            "soft_peak_mib": plain["peak_mib"],
            **_shown(cost),
            "diagnostics": cost["diagnostics"],
        }
    _check_what_ran()
    return found


def measure_question(plan: Plan, question: str, attention: str) -> Result:
    """Time training steps of `soft` and of each answer to a question in turns, as `measure_steps`."""
    dtype, shape = plan.dtypes[0], plan.shapes[0]
    subjects = [_subject(plan, PLAIN_ATTENTION, dtype, shape, EAGER)]
    for name, variant in QUESTIONS[question][1].items():
        subject = _subject(plan, attention, dtype, shape, EAGER, **variant.changes)
        subject.attention = name
        loss = step_alignments
        if variant.is_compiled:
            loss = torch.compile(step_alignments, **(_mode(plan, COMPILED) or {}))
        subject.step_alignments = functools.partial(_within, variant.around, loss)
        subjects.append(subject)
    return {cost["attention"]: _shown(cost) for cost in _costs(plan, subjects, shape, "training")[1:]}


def _within(around: Callable[[], AbstractContextManager[Any]], loss: Callable[..., Any], model: torch.nn.Module) -> Any:
    with around():
        return loss(model)


def _costs(plan: Plan, subjects: Sequence[Subject], shape: str, phase: str) -> list[dict[str, Any]]:
    batch = _batch(plan, subjects[0], shape)
    return measure(subjects, Shape.parse(shape), phase, batch, repeats=plan.repeats, warmup=plan.warmup)


def _shown(cost: Mapping[str, Any]) -> Result:
    return {
        "seconds": cost["median_seconds"],
        "ratio": {"low": cost["ratio_q25"], "median": cost["ratio_median"], "high": cost["ratio_q75"]},
        "peak_mib": cost["peak_mib"],
        "extra_mib": cost["extra_mib"],
    }


def measure_profile(plan: Plan, attention: str, rows: str) -> Result:
    """Return the launches and kernels of a training step, the busiest kernels, and the share of idle time."""
    shape = plan.shapes[0]
    changes = QUESTIONS["rows"][1][rows].changes
    subject = _subject(plan, attention, plan.dtypes[0], shape, EAGER, **changes)
    batch = _batch(plan, subject, shape)
    step = functools.partial(subject.step, "training", batch)
    subject.prepare("training")
    for _ in range(max(plan.warmup, 1)):
        step()
        subject.clear()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if plan.device == "cuda":
        activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(PROFILED_STEPS):
            step()
            subject.clear()
        subject.synchronize()
    recorded: Any = profiler.profiler
    every = [event for event in recorded.kineto_results.events() if not event.is_user_annotation()]
    on_cuda = plan.device == "cuda"
    run = [event for event in every if (event.device_type() == torch.profiler.DeviceType.CUDA) == on_cuda]
    spans = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in run]
    times: Counter[str] = Counter()
    for event in run:
        times[event.name()] += event.duration_ns()
    calls = Counter(event.name() for event in run)
    kernels = sum(not event.name().startswith(NO_KERNELS) for event in run)
    launches = sum(event.name().startswith(LAUNCHES) for event in every) if on_cuda else kernels
    return {
        "launches": launches / PROFILED_STEPS,
        "kernels": kernels / PROFILED_STEPS,
        "busy_milliseconds": _milliseconds(times.total()),
        "idle_share": idle_share(spans),
        "busiest": [
            {"name": name, "calls": calls[name] / PROFILED_STEPS, "milliseconds": _milliseconds(time)}
            for name, time in times.most_common(BUSIEST_KERNELS)
        ],
    }


def _milliseconds(nanoseconds: int) -> float:
    """Return the milliseconds of a step for the nanoseconds of all profiled steps."""
    return nanoseconds / PROFILED_STEPS / NANOSECONDS_A_MILLISECOND


def idle_share(spans: Sequence[tuple[int, int]]) -> float:
    """Return the share of the time from the first start to the last end that is outside all spans."""
    if not spans:
        return 0.0
    ordered = sorted(spans)
    (first, busy_until), idle = ordered[0], 0
    for start, end in ordered[1:]:
        idle += max(0, start - busy_until)
        busy_until = max(busy_until, end)
    return idle / max(busy_until - first, 1)


_MEASURES = {
    "profile": measure_profile,
    "question": measure_question,
    "steps": measure_steps,
    "tests": measure_tests,
}


def _mode(plan: Plan, name: str) -> Mapping[str, Any] | None:
    """Return the arguments of `torch.compile` of a mode; None if it compiles nothing."""
    return next(mode.compile_options for mode in plan.modes if mode.name == name)


def _subject(plan: Plan, attention: str, dtype: str, shape: str, mode: str, **changes: Any) -> Subject:
    counters.clear()
    torch.manual_seed(SEED)
    model = load_model(plan.model, Shape.parse(shape).length, None)
    return Subject(attention, model, plan.device, getattr(torch, dtype), _mode(plan, mode), **changes)


def _check_what_ran() -> None:
    """Leave the stage out if CUDA graphs were requested but not used: its figures would pass as theirs."""
    if skipped := counters["inductor"]["cudagraph_skips"]:
        raise LeftOutError(f"{skipped} graphs have no CUDA graph")


def _batch(plan: Plan, subject: Subject, shape: str) -> dict[str, torch.Tensor]:
    config = subject.model.config
    batch = make_batch(Shape.parse(shape), config.vocab_size, config.pad_token_id, NUM_LABELS, SEED)
    return {name: tensor.to(plan.device) for name, tensor in batch.items()}
