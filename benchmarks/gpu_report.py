"""The GPU section of docs/performance.md, from the results of `gpu.py`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from gpu_stages import BASE_SIZE, ROOT

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark import Shape
from alignattn.commands.reproduce import NUM_SEEDS
from alignattn.commands.reproduce.folder import folders_of
from alignattn.commands.reproduce.table import load_table
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.tables import TABLES
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_text, write_text

DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN = "<!-- Written by benchmarks/gpu.py from here on. -->"
END = "<!-- Written by benchmarks/gpu.py up to here. -->"

COMMANDS = """```bash
make gpu                           # resumes where it stopped; a stage takes at most nine minutes
make gpu GPU_ARGS="--only 32x128"  # only some stages
make gpu GPU_ARGS="--minutes 9"    # as much as fits into nine minutes
make gpu GPU_ARGS="--again"        # repeats what failed, was left out or is of earlier code
```"""

WANTED: Mapping[str, float] = {"aa-gan": 1.05, "aa-ct": 1.10, "aa-ot": 1.25, "qvi": 1.15, "entmax15": 1.3}
WANTED_IN = ("bfloat16", "compile", ("32x128", "8x512"))
"""Type, mode and shapes of the steps to which `WANTED` applies."""
WITHOUT_MEMORY = "CUDA graphs"
"""The mode without memory figures: CUDA graphs allocate when they are made, so a step's peak says nothing."""

HOURS_OF = ("bfloat16", "eager", "32x128")
"""The steps from which the hours of a table are computed: those of `alignattn finetune --bf16`."""
TRAINING_ROWS: Mapping[str, int] = {
    "cola": 8_551,
    "mnli": 392_702,
    "mrpc": 3_668,
    "qnli": 104_743,
    "qqp": 363_846,
    "rte": 2_490,
    "sst2": 67_349,
    "stsb": 5_749,
    "snli": 549_367,
    "squad": 87_599,
    "squad_v2": 130_319,
    "squadv2": 130_319,
}
"""Training rows of the published data sets."""
SECONDS_AN_HOUR = 3600
SHOWN_CHARACTERS = 100
"""Maximum number of characters shown of a kernel's name."""
SEVERAL = 2

Found = Mapping[str, Any]


def write_section(document: Path, text: str) -> None:
    """Write the section between its two marks.

    Raises:
        AlignAttnError: if the document lacks them, or cannot be read.
    """
    whole = read_text(document)
    if BEGIN not in whole or END not in whole:
        raise AlignAttnError(f"{document} lacks the marks around the GPU section")
    before, _, rest = whole.partition(BEGIN)
    write_text(document, f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}")


def section(record: Mapping[str, Any]) -> str:
    """Return the section in Markdown: the stages with a result, and why the others have none."""
    conditions, stages = record["conditions"], record["stages"].values()
    parts = [
        "## On a GPU",
        f"{conditions['model']} with random weights and its own dropout, {conditions['repeats']} repeats, "
        f"{conditions['device']}, torch {conditions['torch']} (CUDA {conditions['cuda']}), transformers "
        f"{conditions['transformers']}. bfloat16 is autocast's. Each attention in turns with `soft`, synchronised, as "
        "ratios of the same repeat: medians (quartiles).",
        _table(_STEP_HEADINGS, (row for stage in _done(stages, "steps") for row in _step_rows(stage))),
        _table(_PROFILE_HEADINGS, map(_profile_row, _done(stages, "profile"))),
        *map(_attacks, _done(stages, "attacks")),
        *_hours(stages),
        *(f"CUDA tests: {stage['result']['summary']}." for stage in _done(stages, "tests")),
        _of_earlier_code(stages),
        *(
            f"`{name}`: {stage.get('failed') or stage.get('left_out') or 'was ended with its process'}."
            for name, stage in record["stages"].items()
            if "result" not in stage
        ),
        COMMANDS,
    ]
    return "\n\n".join(filter(None, parts))


_PROFILE_HEADINGS = ("tokens", "mode", "attention", "launches a step", "kernels a step", "idle", "most busy time")
_STEP_HEADINGS = ("type", "tokens", "mode", "attention", "training", "wanted", "evaluation", "extra peak memory")


def _step_rows(stage: Found) -> Iterable[Sequence[str]]:
    training, evaluation = stage["result"]["training"], stage["result"]["evaluation"]
    dtype, mode, shapes = WANTED_IN
    is_wanted = (stage["dtype"], stage["mode"]) == (dtype, mode) and stage["shape"] in shapes
    wanted = WANTED.get(stage["attention"]) if is_wanted else None
    memory = f"{training['peak_mib'] - training['soft_peak_mib']:.0f} MiB of {training['soft_peak_mib']:.0f}"
    yield (
        stage["dtype"],
        stage["shape"],
        stage["mode"],
        stage["attention"],
        _ratio(training["ratio"]),
        "" if wanted is None else f"{wanted:.2f}",
        _ratio(evaluation["ratio"]),
        "" if stage["mode"] == WITHOUT_MEMORY else memory,
    )


def _profile_row(stage: Found) -> Sequence[str]:
    result = stage["result"]
    return (
        stage["shape"],
        stage["mode"],
        stage["attention"],
        f"{result['launches']:.0f}",
        f"{result['kernels']:.0f}",
        f"{100 * result['idle_share']:.0f} %",
        "".join(f"{100 * share:.0f} % `{name[:SHOWN_CHARACTERS]}`" for name, share in result["busiest"][:1]),
    )


def _attacks(stage: Found) -> str:
    lines = [
        f"{recipe}: {one['attacks_a_second']:.2f} attacks a second, {_ratio(one['ratio'])} times as fast as with "
        f"TextAttack's wrapper ({one['attacks']} pairs)"
        for recipe, one in stage["result"].items()
    ]
    return f"SST-2, MiniLM; {'; '.join(lines)}. Wanted: 10 times."


def _hours(stages: Iterable[Found]) -> Iterable[str]:
    measured = Measured.of(stages)
    if not (measured.step_seconds or measured.trainings):
        return
    rows = []
    for name in TABLES:
        hours, known, runs = hours_of(name, measured)
        rows.append((name, f"{hours:.1f}" if known else "–", f"{known or 'none'} of {runs}"))
    yield (
        "Hours of training for the tables with their own numbers of seeds, without evaluation and attacks. Models of "
        "BERT-base's size: from the steps above, with 128 tokens per row, without the optimizer, on the published "
        "training rows; R-Drop and FreeLB count as one step of `soft`. Others: from the rows per second of `finetune`, "
        "on the rows of this machine."
    )
    yield _table(("table", "GPU hours", "of its runs"), rows)


@dataclass(frozen=True)
class Measured:
    """The measurements from which the hours of a table are computed.

    Attributes:
        step_seconds: duration of a training step of `HOURS_OF`'s shape, by attention.
        trainings: `rows_a_second` and `rows` of other models, by model and task.
    """

    step_seconds: Mapping[str, float]
    trainings: Mapping[tuple[str, str], Found]

    @classmethod
    def of(cls, stages: Iterable[Found]) -> "Measured":
        """Collect the measurements of the stages with a result."""
        steps = [
            stage for stage in _done(stages, "steps") if (stage["dtype"], stage["mode"], stage["shape"]) == HOURS_OF
        ]
        step_seconds = {stage["attention"]: stage["result"]["training"]["seconds"] for stage in steps}
        if steps:
            step_seconds[PLAIN_ATTENTION] = median(stage["result"]["training"]["soft_seconds"] for stage in steps)
        trained = {(stage["model"], stage["task"]): stage["result"] for stage in _done(stages, "training")}
        return cls(step_seconds, trained)

    def seconds(self, options: RunOptions) -> float | None:
        """Return the seconds of a training run; None if nothing comparable was measured."""
        model, attention = options.model.model, options.model.attention or PLAIN_ATTENTION
        if model in BASE_SIZE:
            rows, a_second = TRAINING_ROWS.get(options.task.name), self.step_seconds.get(attention)
            a_second = a_second and Shape.parse(HOURS_OF[2]).batch / a_second
        else:
            found = self.trainings.get((model, options.task.name), {})
            rows, a_second = found.get("rows"), found.get("rows_a_second")
        seen = _seen_rows(options, rows)
        return None if seen is None or a_second is None else seen / a_second


def hours_of(table: str, measured: Measured) -> tuple[float, int, int]:
    """Return the hours of a table's known training runs, the number of these, and the number of all runs."""
    loaded = load_table(table)
    seeds = range(1, (loaded.seeds or NUM_SEEDS) + 1)
    folders = folders_of(Path(table), list(loaded.cells(seeds))).values()
    trainings = [folder.options for folder in folders if isinstance(folder.options, RunOptions)]
    seconds = [one for one in map(measured.seconds, trainings) if one is not None]
    return sum(seconds) / SECONDS_AN_HOUR, len(seconds), len(folders)


def _seen_rows(options: RunOptions, rows: int | None) -> float | None:
    """Return how many rows a training run processes, repetitions included; None if unknown."""
    training = options.training
    if training.max_steps > 0:
        return training.max_steps * training.per_device_train_batch_size * training.gradient_accumulation_steps
    rows = options.data.max_train_samples or rows
    return None if rows is None else rows * training.num_train_epochs


def _done(stages: Iterable[Found], kind: str) -> list[Found]:
    return [stage for stage in stages if stage["kind"] == kind and "result" in stage]


def _of_earlier_code(stages: Iterable[Found]) -> str:
    """Return a sentence if the figures are of several versions of the code, otherwise an empty string."""
    counts = Counter(stage["code"] for stage in stages if "result" in stage)
    return f"Measured over {len(counts)} versions of the code: `--again` repeats what is not of the current one." * (
        len(counts) > 1
    )


def _ratio(spread: Mapping[str, float]) -> str:
    return f"{spread['median']:.2f} ({spread['low']:.2f} to {spread['high']:.2f})"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([f"| {' | '.join(headings)} |", "|" + "---|" * len(headings), *lines]) if lines else ""
