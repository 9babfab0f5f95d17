"""The independent stages that `gpu.py` measures, and the content of their results."""

import functools
import json
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import attack_throughput
import torch
from throughput_report import summarise_throughput
from torch._dynamo.utils import counters

from alignattn.attention.config import PLAIN_ATTENTION, PRESETS
from alignattn.cli import main as run_command
from alignattn.commands.benchmark import Shape
from alignattn.commands.benchmark.command import load_model
from alignattn.commands.benchmark.report import costs_of
from alignattn.commands.benchmark.step_timing import CUDA_GRAPHS_MODE, PHASES, Setting, Subject, make_batch, measure
from alignattn.commands.reproduce.folder import folders_of
from alignattn.commands.reproduce.table import load_table
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import RESULTS_FILE
from alignattn.finetuning.tables import TABLES
from alignattn.robustness.library import check_textattack
from alignattn.utils.errors import AlignAttnError

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared"
BASE_SIZE = ("albert-base-v2", "bert-base-uncased", "mpnet", "roberta-base")
"""Models of the tables with BERT-base's size; their training time is computed from its steps."""
SEED = 42
NUM_LABELS = 2
PROFILED_STEPS = 5
BUSIEST_KERNELS = 5
"""Number of kernels kept, those that take most of the device's busy time."""
NO_KERNELS = ("Memcpy", "Memset")
"""Prefixes of the profiler's names of memory operations."""
COUNTS_OF_TESTS = re.compile(r"^\d+ (?:passed|failed|skipped|errors?).*", re.MULTILINE)
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
"""Prefixes of the names of calls that launch work on a device; a CUDA graph is one call."""

EVALUATED_ROWS = 500
ATTACKED_TRAINING = "--learning_rate 1e-4 --per_device_train_batch_size 32 --evaluation_splits validation"
TABLES_SEEDS = (1,)

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
class Attacks:
    """What is attacked, and how.

    Attributes:
        steps: training steps before the attacks.
        examples: attacked texts per recipe.
        recipes: the recipes; BAE is missing because its masked-language model would have to be trained first.
    """

    steps: int = 300
    examples: int = 50
    recipes: tuple[str, ...] = ("textfooler", "textbugger")


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        device: `cuda` or `cpu`.
        model: a value of `alignattn benchmark --model`.
        attentions: attentions in addition to `soft`.
        shapes: shapes of batches.
        dtypes: `bfloat16` (autocast), `float32`.
        modes: how a step runs.
        profiled: the `shapes` whose steps are profiled, in the first of `dtypes`.
        repeats: number of timed steps.
        warmup: number of steps before them.
        tests: folders or files with the tests marked `cuda`.
        trained: models and tasks of the tables whose training by `finetune` is measured.
        trained_steps: training steps of each.
        attacks: what is attacked.
    """

    device: str
    model: str = "bert-base"
    attentions: tuple[str, ...] = (*(name for name in PRESETS if name != PLAIN_ATTENTION), "entmax15")
    shapes: tuple[str, ...] = ("32x128", "8x512", "2x4096")
    dtypes: tuple[str, ...] = ("bfloat16", "float32")
    modes: tuple[Mode, ...] = (
        Mode("eager"),
        Mode("compile", {}),
        Mode("CUDA graphs", {"mode": CUDA_GRAPHS_MODE}),
    )
    profiled: tuple[str, ...] = ("32x128", "8x512")
    repeats: int = 20
    warmup: int = 5
    tests: tuple[str, ...] = ("tests/attention", "tests/patching")
    trained: tuple[tuple[str, str], ...] = field(default_factory=lambda: tuple(small_models_of_tables()))
    trained_steps: int = 100
    attacks: Attacks = Attacks()

    @classmethod
    def tiny(cls, device: str) -> "Plan":
        """Return a plan that runs every kind of stage with one small cell; its figures mean nothing.

        Graphs are traced and run eagerly, without generated code or CUDA graphs. Without a GPU each test is skipped.
        """
        as_it_is = {"backend": "eager"}
        modes = (
            Mode("eager"),
            Mode("compile", as_it_is),
            Mode("CUDA graphs", {"mode": CUDA_GRAPHS_MODE, **as_it_is}),
        )
        return cls(
            device,
            model="tiny",
            attentions=("aa-ct",),
            shapes=("2x8",),
            dtypes=("float32",),
            modes=modes,
            profiled=("2x8",),
            repeats=2,
            warmup=1,
            tests=("tests/patching/test_cuda.py",),
            trained=(("cnn", "agnews"),),
            trained_steps=2,
            attacks=Attacks(steps=2, examples=1, recipes=("textfooler",)),
        )


@dataclass(frozen=True)
class Stage:
    """A stage; it ends within minutes and is measured once.

    Attributes:
        kind: `tests`, `steps`, `profile`, `attacks` or `training`.
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
    """Yield the stages of a plan, those with goals first."""
    yield Stage("tests", {})
    for dtype in plan.dtypes:
        for shape in plan.shapes:
            for mode in plan.modes:
                for attention in plan.attentions:
                    yield Stage("steps", {"dtype": dtype, "shape": shape, "mode": mode.name, "attention": attention})
        if dtype != plan.dtypes[0]:
            continue
        for shape in plan.profiled:
            for mode in plan.modes:
                for attention in (PLAIN_ATTENTION, *plan.attentions):
                    yield Stage("profile", {"shape": shape, "mode": mode.name, "attention": attention})
        yield Stage("attacks", {})
    for model, task in plan.trained:
        yield Stage("training", {"model": model, "task": task})


def small_models_of_tables() -> Iterator[tuple[str, str]]:
    """Yield each pair of model and task in the tables once, if the model does not have BERT-base's size."""
    seen = set()
    for name in TABLES:
        for folder in folders_of(Path(name), list(load_table(name).cells(TABLES_SEEDS))).values():
            options = folder.options
            if isinstance(options, RunOptions) and options.model.model not in BASE_SIZE:
                one = options.model.model, options.task.name
                if one not in seen:
                    seen.add(one)
                    yield one


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
    batch = _batch(plan, subjects[0], shape)
    found: Result = {}
    for phase in PHASES:
        measured = measure(
            subjects,
            Shape.parse(shape),
            phase,
            batch,
            repeats=plan.repeats,
            warmup=plan.warmup,
            on_repeat=lambda: None,
        )
        plain, cost = costs_of(measured)
        found[phase] = {
            "soft_seconds": plain.median_seconds,
            "seconds": cost.median_seconds,
            "ratio": {"low": cost.ratio.low, "median": cost.ratio.median, "high": cost.ratio.high},
            "soft_peak_mib": plain.peak_mib,
            "peak_mib": cost.peak_mib,
            "diagnostics": cost.diagnostics,
        }
    _check_what_ran()
    return found


def measure_profile(plan: Plan, shape: str, mode: str, attention: str) -> Result:
    """Return the launches and kernels of a training step, the busiest kernels, and the share of idle time."""
    subject = _subject(plan, attention, plan.dtypes[0], shape, mode)
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
        subject.setting.synchronize()
    recorded: Any = profiler.profiler
    every = [event for event in recorded.kineto_results.events() if not event.is_user_annotation()]
    on_cuda = plan.device == "cuda"
    run = [event for event in every if (event.device_type() == torch.profiler.DeviceType.CUDA) == on_cuda]
    spans = [(event.start_ns(), event.start_ns() + event.duration_ns()) for event in run]
    times: Counter[str] = Counter()
    for event in run:
        times[event.name()] += event.duration_ns()
    total = max(times.total(), 1)
    kernels = sum(not event.name().startswith(NO_KERNELS) for event in run)
    launches = sum(event.name().startswith(LAUNCHES) for event in every) if on_cuda else kernels
    _check_what_ran()
    return {
        "launches": launches / PROFILED_STEPS,
        "kernels": kernels / PROFILED_STEPS,
        "idle_share": idle_share(spans),
        "busiest": [[name, time / total] for name, time in times.most_common(BUSIEST_KERNELS)],
    }


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


def measure_attacks(plan: Plan) -> Result:
    """Train MiniLM on SST-2 for a few hundred steps, and attack it with both wrappers in turns."""
    attacks, resources = plan.attacks, SHARED / "resources"
    neighbors, nltk_data = resources / "counterfitted_neighbors.parquet", resources / "nltk_data"
    for needed in (neighbors, nltk_data):
        if not needed.exists():
            raise LeftOutError(f"there is no {needed}")
    try:
        check_textattack()
    except AlignAttnError as error:
        raise LeftOutError(str(error)) from error
    with tempfile.TemporaryDirectory() as folder:
        words = f"--model minilm --task sst2 --max_steps {attacks.steps} {ATTACKED_TRAINING}"
        model = _finetuned(plan, words, Path(folder) / "run")
        words = (
            f"--run {model} --recipes {' '.join(attacks.recipes)} --num_examples {attacks.examples} "
            f"--neighbors {neighbors} --sentence_encoder minilm --nltk_data {nltk_data} "
            f"--output_dir {folder}/throughput"
        )
        pairs = attack_throughput.throughput(attack_throughput.read_options(words.split()))
    return {
        one.recipe: {
            "attacks": one.attacks,
            "attacks_a_second": 1 / one.seconds,
            "textattacks_attacks_a_second": 1 / one.textattack_seconds,
            "ratio": {"low": one.attack_ratio.low, "median": one.attack_ratio.median, "high": one.attack_ratio.high},
        }
        for one in summarise_throughput(pairs)
    }


def measure_training(plan: Plan, model: str, task: str) -> Result:
    """Train as a table does, for some steps, and return the rows per second and the number of training rows."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"--model {model} --task {task} --max_steps {plan.trained_steps} --save_strategy no"
        run = _finetuned(plan, f"{words} --max_eval_samples {EVALUATED_ROWS}", Path(folder) / "run")
        results = json.loads((run / RESULTS_FILE).read_text(encoding="utf-8"))
    return {"rows_a_second": results["train_samples_per_second"], "rows": results["train_rows"]}


def _finetuned(plan: Plan, words: str, folder: Path) -> Path:
    """Fine-tune with plain attention, and return the folder of the run."""
    if not (SHARED / "data").exists():
        raise LeftOutError(f"there is no {SHARED / 'data'}")
    where = ["--data_dir", str(SHARED / "data"), "--output_dir", str(folder)]
    device = [] if plan.device == "cuda" else ["--use_cpu", "true"]
    if run_command(["finetune", *words.split(), "--attention", PLAIN_ATTENTION, *where, *device]) != 0:
        raise LeftOutError("nothing was trained: see the message above")
    return folder


_MEASURES = {
    "tests": measure_tests,
    "steps": measure_steps,
    "profile": measure_profile,
    "attacks": measure_attacks,
    "training": measure_training,
}


def _subject(plan: Plan, attention: str, dtype: str, shape: str, mode_name: str) -> Subject:
    mode = next(mode for mode in plan.modes if mode.name == mode_name)
    counters.clear()
    options = mode.compile_options
    setting = Setting(torch.device(plan.device), getattr(torch, dtype), options is not None, options or {})
    torch.manual_seed(SEED)
    return Subject(attention, load_model(plan.model, Shape.parse(shape).length, None), setting)


def _check_what_ran() -> None:
    """Leave the stage out if CUDA graphs were requested but not used: its figures would pass as theirs."""
    if skipped := counters["inductor"]["cudagraph_skips"]:
        raise LeftOutError(f"{skipped} graphs have no CUDA graph")


def _batch(plan: Plan, subject: Subject, shape: str) -> dict[str, torch.Tensor]:
    config = subject.model.config
    batch = make_batch(Shape.parse(shape), config.vocab_size, config.pad_token_id, NUM_LABELS, SEED)
    return {name: tensor.to(plan.device) for name, tensor in batch.items()}
