"""Patch small random models of every model type of transformers, and compare them before and after the patch.

    python benchmarks/model_types.py [--types bert clip ...] [--jobs 2] [--attentions aa-ct qvi entmax15]

For each type it builds a small model with random weights, and reports one outcome for each attention:

    equal           aa-ct: in evaluation the outputs equal those before the patch, bit by bit, also after `unpatch`;
                    the alignment loss and all gradients of a training step are finite
    runs            qvi, entmax15: the patched model runs, its outputs and all gradients are finite
    refused         `patch` refuses the model
    contradicted    `patch` refuses the model for a reason that an independent measurement contradicts
    refused late    `patch` accepts the model, but a forward or a training step is refused
    differs         an output differs, or something is not finite
    traceback       any other exception is raised

Each type runs in a separate process with limits of memory and time. The output folder has a line per type in
`model_types.jsonl`, which also says why no small model of a type can be built; a killed run resumes from it.
`models.csv` there is the table of docs/models.md, with the reasons of refusals. Only installed packages are used.
"""

import argparse
import csv
import json
import multiprocessing
import os
import re
import resource
import signal
import sys
import time
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch
from model_checks import check_type
from model_overrides import OVERRIDES
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from alignattn.utils.files import to_json

ATTENTIONS = ("aa-ct", "qvi", "entmax15")
RESULTS, TABLE = "model_types.jsonl", "models.csv"
GIB = 2**30
PATIENCE = 10
"""Seconds to wait per second of processor time, so that a busy machine does not fail a type."""
LEAST_SECONDS = 6
"""Minimum limit that `PATIENCE` multiplies."""
WRONG = ("traceback", "differs", "refused late", "contradicted")
"""Outcomes that are defects, worst first."""
OUTCOMES = (*WRONG, "refused", "runs", "equal")
"""Worst first: the entry of a model in the table is the worst of its implementations."""
TAKEN = ("equal", "runs")
"""Outcomes of attentions that a model takes."""
TOLD = {"refused": "no", **dict.fromkeys(TAKEN, "yes")}
"""What the table says of an outcome; it names a defect as it is."""
STATUSES = ("built", "not buildable", "no model")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if anything is wrong."""
    options = _parsed(argv)
    options.output_dir.mkdir(parents=True, exist_ok=True)
    path = options.output_dir / RESULTS
    types = options.types or list(CONFIG_MAPPING_NAMES)
    if unknown := [name for name in types if name not in CONFIG_MAPPING_NAMES]:
        sys.exit(f"transformers knows no model type {', '.join(unknown)}")
    done = {} if options.again else read_results(path)
    todo = [name for name in types if name not in done]
    for number, report in enumerate(run_types(todo, options), start=1):
        with path.open("a", encoding="utf-8") as lines:
            lines.write(to_json(report) + "\n")
        print(f"{number}/{len(todo)} {one_line(report)}", flush=True)
    reports = [report for name, report in read_results(path).items() if name in types]
    write_table(options.table or options.output_dir / TABLE, reports, options.attentions)
    print(summary(reports, options.attentions))
    return int(any(finding["outcome"] in WRONG for report in reports for finding in report["findings"]))


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--types", nargs="+", help="model types (default: all)")
    parser.add_argument("--attentions", nargs="+", default=list(ATTENTIONS), help="attentions of alignattn.patch")
    parser.add_argument("--jobs", type=int, default=1, help="types to check in parallel")
    parser.add_argument("--seconds", type=int, default=120, help="limit of processor time per type")
    parser.add_argument("--memory_gib", type=int, default=8, help="limit of memory per type")
    parser.add_argument("--output_dir", type=Path, default=Path("model_types"), help="folder of results")
    parser.add_argument("--table", type=Path, help="file of the table (default: in the folder of results)")
    parser.add_argument("--again", action="store_true", help="also run types that already have results")
    return parser.parse_args(argv)


@dataclass
class Job:
    """A type that is checked in a separate process."""

    model_type: str
    process: BaseProcess
    receiver: Connection
    started: float = field(default_factory=time.monotonic)

    def report(self) -> dict[str, Any] | None:
        """Return the report that the process sent; None if it died before."""
        try:
            return self.receiver.recv() if self.receiver.poll() else None
        except EOFError:
            return None


def run_types(types: Sequence[str], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Check types, some in parallel; yield the report of each, even if its process died."""
    waiting, running = list(reversed(types)), []
    while waiting or running:
        while waiting and len(running) < options.jobs:
            running.append(_started(waiting.pop(), options))
        wait([job.receiver for job in running], timeout=1)
        for job in list(running):
            seconds = time.monotonic() - job.started
            is_late = seconds > PATIENCE * max(options.seconds, LEAST_SECONDS)
            if not (is_late or job.receiver.poll()):
                continue
            running.remove(job)
            report = job.report()
            if report is not None or is_late:
                job.process.kill()
            job.process.join()
            why = f"no result in {seconds:.0f} s" if is_late else end_of_process(job.process.exitcode)
            yield {**(report or _unchecked(job.model_type, why)), "seconds": round(seconds, 1)}


def end_of_process(code: int | None) -> str:
    """Return why a process ended without a report."""
    reasons = {-signal.SIGXCPU: "the limit of processor time is reached", -signal.SIGKILL: "its process was killed"}
    return reasons.get(code, f"its process ended with code {code}") if code is not None else "its process still runs"


def _started(model_type: str, options: argparse.Namespace) -> Job:
    # By fork, so that each process need not import the libraries again; this process has loaded no model.
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    arguments = (sender, model_type, tuple(options.attentions), options.memory_gib * GIB, options.seconds)
    process = context.Process(target=_check, args=arguments)
    process.start()
    sender.close()
    return Job(model_type, process, receiver)


def _unchecked(model_type: str, why: str) -> dict[str, Any]:
    return {
        "model_type": model_type,
        "status": "not buildable",
        "reason": why,
        "level": "",
        "findings": [],
        "unbuilt": {},
    }


def _check(sender: Connection, model_type: str, attentions: tuple[str, ...], memory: int, seconds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
    resource.setrlimit(resource.RLIMIT_CPU, (int(used) + seconds, resource.RLIM_INFINITY))
    # The output of libraries, such as warnings about models without a checkpoint, is no result.
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.dup2(null, sys.stderr.fileno())
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    try:
        report = check_type(model_type, OVERRIDES.get(model_type, {}), attentions).to_json()
    except Exception as error:
        report = _unchecked(model_type, f"the check itself failed: {type(error).__name__}: {error}")
    sender.send(report)


def read_results(path: Path) -> dict[str, dict[str, Any]]:
    """Return the last report of each type in a results file; an incomplete line is skipped."""
    reports: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            report = json.loads(line)
        except json.JSONDecodeError:
            continue
        reports[report["model_type"]] = report
    return reports


def worst(outcomes: Sequence[str]) -> str:
    """Return the worst of outcomes."""
    return min(outcomes, key=OUTCOMES.index)


def one_line(report: Mapping[str, Any]) -> str:
    """Return the results of a type in one line."""
    if report["status"] != "built":
        return f"{report['model_type']}: {report['status']}: {report['reason']}"
    counts = Counter(finding["outcome"] for finding in report["findings"])
    told = ", ".join(f"{counts[outcome]} {outcome}" for outcome in OUTCOMES if counts[outcome])
    return f"{report['model_type']} ({report['level']}, {report['seconds']} s): {told}"


def by_target(report: Mapping[str, Any]) -> dict[str, dict[str, Mapping[str, Any]]]:
    """Return the findings of a type by model and attention, the worst of the implementations."""
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for finding in report["findings"]:
        row = found.setdefault(finding["target"], {})
        before = row.get(finding["attention"])
        if before is None or worst([before["outcome"], finding["outcome"]]) != before["outcome"]:
            row[finding["attention"]] = finding
    return found


def summary(reports: Sequence[Mapping[str, Any]], attentions: Sequence[str]) -> str:
    """Return the numbers of types by status, and of models by attention and outcome."""
    statuses = Counter(report["status"] for report in reports)
    lines = [", ".join(f"{statuses[status]} types {status}" for status in STATUSES if statuses[status])]
    rows = [row for report in reports for row in by_target(report).values()]
    for attention in attentions:
        counts = Counter(row[attention]["outcome"] for row in rows if attention in row)
        lines.append(f"{attention}: " + ", ".join(f"{counts[outcome]} {outcome}" for outcome in reversed(OUTCOMES)))
    return "\n".join(lines)


def write_table(path: Path, reports: Sequence[Mapping[str, Any]], attentions: Sequence[str]) -> None:
    """Write a row per model, for users who look for theirs: which attentions it takes, and why not others."""
    rows = []
    for report in reports:
        name = report["model_type"]
        for target, row in by_target(report).items():
            taken = {attention: TOLD.get(finding["outcome"], finding["outcome"]) for attention, finding in row.items()}
            reasons = [_reason(finding["reason"]) for finding in row.values() if finding["outcome"] not in TAKEN]
            rows.append({"model": _name(name, target), **taken, "reason": "; ".join(dict.fromkeys(reasons))})
        if report["status"] == "not buildable":
            rows.append({"model": name, "reason": "not tried"})
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, ["model", *attentions, "reason"], lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted(rows, key=lambda row: (row["reason"] == "not tried", row["model"])))


def _name(model_type: str, target: str) -> str:
    path = target.partition(" (")[0].partition(".")[2]
    return f"{model_type}.{path}" if path else model_type


def _reason(text: str) -> str:
    """Return a reason without names of classes, paths and numbers, so that models with the same reason are grouped."""
    # The subject, whatever its name, and a part of a model.
    text = re.sub(r"^[A-Z]\w+|\b\w*[A-Z]\w* of \w*[A-Z]\w*", "it", text)
    kinds = r"Model|Attention|Attn|Decoder|Encoder|Stack|Layer|For[A-Z]\w+|Model\w+"
    text = re.sub(rf"\b[A-Z]\w*({kinds})\b", "it", text)
    text = re.sub(r"(score|normalizer|value)=?\s?'\w+'", "the slot", text.replace("|", "/"))
    return re.sub(r"\b(\w+\.)+\w+\b", "…", re.sub(r"\b\d+(\.\d+)?(e-?\d+)?\b", "n", text))


if __name__ == "__main__":
    sys.exit(main())
