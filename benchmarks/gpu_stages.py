"""What `gpu.py` measures: stages that stand each for itself, as they are run and as they are written down."""

import functools
import json
import re
import subprocess
import sys
import tempfile
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
"""Models of the tables that are of BERT-base's size: their trainings are reckoned from its steps."""
SEED = 42
NUM_LABELS = 2
PROFILED_STEPS = 5
NO_KERNELS = ("Memcpy", "Memset")
"""How what moves memory alone is named by the profiler."""
COUNTS_OF_TESTS = re.compile(r"^\d+ (?:passed|failed|skipped|errors?).*", re.MULTILINE)
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch")
"""How the calls that set a device to work are named: of a CUDA graph one for all that is in it."""

EVALUATED_ROWS = 500
ATTACKED_TRAINING = "--learning_rate 1e-4 --per_device_train_batch_size 32 --evaluation_splits validation"
TABLES_SEEDS = (1,)

Result = dict[str, Any]


class LeftOutError(AlignAttnError):
    """A stage lacks what it needs, and says what."""


@dataclass(frozen=True)
class Mode:
    """How a step runs.

    Attributes:
        name: in the tables.
        compile_options: what `torch.compile` is given; None = nothing is compiled.
    """

    name: str
    compile_options: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Attacks:
    """What is attacked, and how.

    Attributes:
        steps: of the training before.
        examples: attacked texts a recipe.
        recipes: BAE is none of them: its masked-language model would have to be trained first.
    """

    steps: int = 300
    examples: int = 50
    recipes: tuple[str, ...] = ("textfooler", "textbugger")


@dataclass(frozen=True)
class Plan:
    """What is measured.

    Attributes:
        device: where.
        model: a name of `alignattn benchmark --model`.
        attentions: besides `soft`.
        shapes: of batches.
        dtypes: `bfloat16` (autocast), `float32`.
        modes: how a step runs.
        profiled: of `shapes`, whose steps are profiled, in the first of `dtypes`.
        repeats: timed steps.
        warmup: steps before them.
        tests: where those that are marked `cuda` lie.
        trained: models and tasks of the tables whose training is measured as `finetune` does it.
        trained_steps: of each.
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
        """Return a plan that goes through everything with one small cell each; nothing of it is worth a look.

        Graphs are made and run as they are: neither code nor a CUDA graph is made of them. Without a GPU the tests are
        skipped one by one.
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
    """One that ends within minutes and is measured once.

    Attributes:
        kind: `tests`, `steps`, `profile`, `attacks` or `training`.
        cell: which of its kind, by name.
    """

    kind: str
    cell: Mapping[str, str]

    @property
    def name(self) -> str:
        """The key of its result."""
        return " ".join([self.kind, *self.cell.values()])

    def measure(self, plan: Plan) -> Result:
        """Measure, and return what the JSON says of it."""
        return _MEASURES[self.kind](plan, **self.cell)


def stages_of(plan: Plan) -> Iterator[Stage]:
    """Yield the stages of a plan: what the goals are of first."""
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
    """Yield each model and task of the tables' trainings whose model is not of BERT-base's size, once."""
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
    """Time an attention's steps beside those of `soft`, in turns: seconds, ratio with its quartiles, peak memory."""
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
    """Count what a training step launches and runs, and the share of its time in which the device does nothing."""
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
    kernels = sum(not event.name().startswith(NO_KERNELS) for event in run)
    launches = sum(event.name().startswith(LAUNCHES) for event in every) if on_cuda else kernels
    _check_what_ran()
    return {
        "launches": launches / PROFILED_STEPS,
        "kernels": kernels / PROFILED_STEPS,
        "idle_share": idle_share(spans),
    }


def idle_share(spans: Sequence[tuple[int, int]]) -> float:
    """Return the share of the time from the first start to the last end that lies in no span."""
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
    """Train as a table does, for some steps, and return the rows a second, and how many rows there are to train on."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"--model {model} --task {task} --max_steps {plan.trained_steps} --save_strategy no"
        run = _finetuned(plan, f"{words} --max_eval_samples {EVALUATED_ROWS}", Path(folder) / "run")
        results = json.loads((run / RESULTS_FILE).read_text(encoding="utf-8"))
    return {"rows_a_second": results["train_samples_per_second"], "rows": results["train_rows"]}


def _finetuned(plan: Plan, words: str, folder: Path) -> Path:
    """The folder of a run of plain attention that `finetune` has made there."""
    if not (SHARED / "data").exists():
        raise LeftOutError(f"there is no {SHARED / 'data'}")
    where = ["--data_dir", str(SHARED / "data"), "--output_dir", str(folder)]
    device = [] if plan.device == "cuda" else ["--use_cpu", "true"]
    if run_command(["finetune", *words.split(), "--attention", PLAIN_ATTENTION, *where, *device]) != 0:
        raise LeftOutError("nothing was trained: what was said above tells why")
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
    """Leave out what CUDA graphs were asked for and something else computed: it would stand as theirs."""
    if skipped := counters["inductor"]["cudagraph_skips"]:
        raise LeftOutError(f"{skipped} graphs were left without a CUDA graph")


def _batch(plan: Plan, subject: Subject, shape: str) -> dict[str, torch.Tensor]:
    config = subject.model.config
    batch = make_batch(Shape.parse(shape), config.vocab_size, config.pad_token_id, NUM_LABELS, SEED)
    return {name: tensor.to(plan.device) for name, tensor in batch.items()}
