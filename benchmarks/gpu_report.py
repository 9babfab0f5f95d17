"""The GPU section of docs/performance.md, from the results of `gpu.py`."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpu_stages import COMPILED, EAGER, ROOT

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_text, write_text

DOCUMENT = ROOT / "docs" / "performance.md"
BEGIN = "<!-- Written by benchmarks/gpu.py from here on. -->"
END = "<!-- Written by benchmarks/gpu.py up to here. -->"

COMMANDS = """```bash
make gpu GPU_ARGS="--minutes 9" # resumes where it stopped; --only profile, --again
```"""

WANTED: Mapping[str, Mapping[str, float]] = {
    EAGER: {"aa-gan": 1.2, "aa-ct": 1.25, "aa-ot": 1.3, "aa-moments": 1.25},
    COMPILED: {"aa-gan": 1.05, "aa-ct": 1.1, "aa-ot": 1.15, "aa-moments": 1.1, "qvi": 1.15, "entmax15": 1.3},
}
"""Wanted ratios of a training step, by mode and attention."""
WANTED_IN = ("bfloat16", "32x128")
"""Type and shape of the steps to which `WANTED` applies."""
WITHOUT_MEMORY = "CUDA graphs"
"""The mode without memory figures: CUDA graphs allocate when they are made, so a step's peak says nothing."""

SHOWN_CHARACTERS = 100
"""Maximum number of characters shown of a kernel's name."""

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
        _table(_STEP_HEADINGS, map(_step_row, _done(stages, "steps"))),
        _table(_QUESTION_HEADINGS, (row for stage in _done(stages, "question") for row in _question_rows(stage))),
        _table(_PROFILE_HEADINGS, map(_profile_row, _done(stages, "profile"))),
        _table(_KERNEL_HEADINGS, (row for stage in _done(stages, "profile") for row in _kernel_rows(stage))),
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


_STEP_HEADINGS = ("type", "tokens", "mode", "attention", "training", "wanted", "evaluation", "extra peak memory")
_QUESTION_HEADINGS = ("question", "attention", "answer", "training", "extra peak memory")
_PROFILE_HEADINGS = ("attention", "rows", "launches a step", "kernels a step", "busy", "idle")
_KERNEL_HEADINGS = ("attention", "rows", "kernel", "calls a step", "time a step")


def _step_row(stage: Found) -> Sequence[str]:
    training, evaluation = stage["result"]["training"], stage["result"]["evaluation"]
    is_wanted = (stage["dtype"], stage["shape"]) == WANTED_IN
    wanted = WANTED.get(stage["mode"], {}).get(stage["attention"]) if is_wanted else None
    memory = f"{training['peak_mib'] - training['soft_peak_mib']:.0f} MiB of {training['soft_peak_mib']:.0f}"
    return (
        stage["dtype"],
        stage["shape"],
        stage["mode"],
        stage["attention"],
        _ratio(training["ratio"]),
        "" if wanted is None else f"{wanted:.2f}",
        _ratio(evaluation["ratio"]),
        "" if stage["mode"] == WITHOUT_MEMORY else memory,
    )


def _question_rows(stage: Found) -> Iterable[Sequence[str]]:
    for answer, cost in stage["result"].items():
        memory = f"{cost['extra_mib']:.0f} MiB"
        yield stage["question"], stage["attention"], answer, _ratio(cost["ratio"]), memory


def _profile_row(stage: Found) -> Sequence[str]:
    result = stage["result"]
    return (
        stage["attention"],
        stage["rows"],
        f"{result['launches']:.0f}",
        f"{result['kernels']:.0f}",
        f"{result['busy_milliseconds']:.2f} ms",
        f"{100 * result['idle_share']:.0f} %",
    )


def _kernel_rows(stage: Found) -> Iterable[Sequence[str]]:
    for kernel in stage["result"]["busiest"]:
        name, milliseconds = kernel["name"][:SHOWN_CHARACTERS], f"{kernel['milliseconds']:.2f} ms"
        yield stage["attention"], stage["rows"], f"`{name}`", f"{kernel['calls']:.0f}", milliseconds


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
