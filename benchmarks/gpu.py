"""Measure the package on a GPU by one command: `make gpu`.

It runs stages of at most nine minutes each, what decides most first: the kernels on which a training step of each
attention spends its time; what is open (`QUESTIONS` of gpu_stages.py), the answers to a question timed in turns;
training and evaluation steps of every preset at BERT-base size, compared with plain attention in the same run (bfloat16
and float32, three shapes, eager, `torch.compile`, CUDA graphs), with peak memory; the tests that need CUDA. The result
of a stage is saved at once and not measured again: a run that was ended resumes at the next stage, and a stage in which
it was ended twice has failed. With a CUDA GPU, the GPU section of docs/performance.md is written from the results;
without one, it is not.

    make gpu GPU_ARGS="--minutes 9"        # as much as fits; repeat to continue
    make gpu GPU_ARGS="--only profile"        # only some stages
    python benchmarks/gpu.py --device cpu --tiny        # try the stages without a GPU
"""

import argparse
import hashlib
import json
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from gpu_report import DOCUMENT, section, write_section
from gpu_stages import LeftOutError, Plan, Stage, stages_of

from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json

SECONDS_A_MINUTE = 60
STAGE_MINUTES = 9.0
MIN_ALARM = 1e-3
"""In seconds; 0 would set no alarm."""
ALARM_AGAIN_SECONDS = 1.0
"""Interval after which the alarm is raised again: a library may catch the first as one of its errors."""
MAX_ATTEMPTS = 2
"""Attempts at a stage that ends the process, or during which the process is ended."""
FAILED_EXIT_CODE = 1
HERE = Path(__file__).resolve().parent
OUTPUT, DRY_OUTPUT = HERE / "gpu.json", HERE / "gpu-dry.json"
MEASURED_CODE = (HERE.parent / "alignattn" / "attention", HERE.parent / "alignattn" / "patching")


# A BaseException, because code that catches an Exception would treat it as an error of the measured code.
class OutOfTime(BaseException):
    """A stage did not end in time."""


class DeviceLostError(AlignAttnError):
    """A GPU error that all later stages in this process would also raise."""


def main(argv: Sequence[str]) -> int:
    """Measure the missing stages; return 0, 1 if a stage failed, or 2 and one line for an error of the user."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="one small cell of each kind, to try the stages")
    parser.add_argument("--minutes", type=float, help="begin no further stage later than this (default: all)")
    parser.add_argument("--only", default="", metavar="TEXT", help="only stages whose name contains TEXT")
    parser.add_argument(
        "--again", action="store_true", help="repeat stages that failed, were left out or are of earlier code"
    )
    parser.add_argument(
        "--output", type=Path, help=f"JSON file of the results (default: {OUTPUT.name}, next to this script)"
    )
    parser.add_argument("--document", type=Path, default=DOCUMENT, help="file whose GPU section is written")
    options = parser.parse_args(argv)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("gpu: PyTorch sees no CUDA GPU here, nothing is measured (--device cpu --tiny tries the stages)")
        return 0
    if options.device == "cpu" and not options.tiny:
        print("gpu: --device cpu is only for trying the stages: give --tiny", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    plan = Plan.tiny(options.device) if options.tiny else Plan(options.device)
    output = options.output or (DRY_OUTPUT if options.tiny else OUTPUT)
    try:
        record = measure_missing(plan, output, options.minutes, only=options.only, again=options.again)
        text = section(record)
        print(text)
        if options.device == "cuda" and not options.tiny:
            write_section(options.document, text)
    except DeviceLostError as error:
        print(f"gpu: {error}: run the same command again to continue in a new process", file=sys.stderr)
        return FAILED_EXIT_CODE
    except AlignAttnError as error:
        print(f"gpu: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    failed = [name for name, stage in record["stages"].items() if "failed" in stage]
    if failed:
        print(f"gpu: {len(failed)} stages failed, the first: {failed[0]}: --again repeats them", file=sys.stderr)
    return FAILED_EXIT_CODE if failed else 0


def measure_missing(
    plan: Plan, path: Path, minutes: float | None = None, *, only: str = "", again: bool = False
) -> dict[str, Any]:
    """Measure the stages without a result, save each when it ends, and return the whole record.

    Args:
        plan: what is measured.
        path: path of the record.
        minutes: time after which no further stage starts; None = no limit.
        only: text that the names of the stages contain.
        again: whether to repeat stages that failed, were left out or are of earlier code.

    Raises:
        AlignAttnError: if the record is of another machine or other versions.
        DeviceLostError: if a stage has left the GPU in a state from which it does not recover.
    """
    conditions, code = conditions_of(plan), digest_of_code()
    record: dict[str, Any] = {"conditions": conditions, "stages": {}}
    if path.exists():
        record = json.loads(path.read_text(encoding="utf-8"))
        if record["conditions"] != conditions:
            raise AlignAttnError(
                f"{path} was measured with {record['conditions']}, this is {conditions}: give --output"
            )
    known, started = record["stages"], time.monotonic()
    for found in known.values():
        if found.get("attempts", 0) >= MAX_ATTEMPTS:
            found["failed"] = f"ended the process, or was ended with it, {found.pop('attempts')} times"
            write_json(path, record)
    asked = [stage for stage in stages_of(plan) if only in stage.name]
    missing = [stage for stage in asked if _is_missing(stage, known.get(stage.name), code, again)]
    for done, stage in enumerate(missing):
        seconds = time.monotonic() - started
        if done and minutes is not None and seconds > minutes * SECONDS_A_MINUTE:
            print(f"gpu: {len(missing) - done} of {len(asked)} stages are left: run the same command again")
            break
        attempts = known.get(stage.name, {}).get("attempts", 0) + 1
        known[stage.name] = {"kind": stage.kind, **stage.cell, "code": code, "attempts": attempts}
        write_json(path, record)
        left = STAGE_MINUTES if minutes is None else min(STAGE_MINUTES, minutes - seconds / SECONDS_A_MINUTE)
        result = _measured(stage, plan, left)
        # If the command's time ran out, not the stage's, the stage is tried again.
        if result is not None or left == STAGE_MINUTES or attempts == MAX_ATTEMPTS:
            known[stage.name] |= result or {"failed": f"did not end within {left:.1f} minutes"}
            del known[stage.name]["attempts"]
            write_json(path, record)
            print(f"gpu: {stage.name}: {known[stage.name].get('failed', 'done')}", flush=True)
        _leave(plan)
    return record


def _is_missing(stage: Stage, found: Mapping[str, Any] | None, code: str, again: bool) -> bool:
    """Return whether a stage must be measured."""
    if found is None or "attempts" in found:
        return True
    is_stale = found.get("code") != code
    # Tests of changed code say nothing; figures remain useful, and cost more.
    return (again and ("result" not in found or is_stale)) or (stage.kind == "tests" and is_stale)


def _leave(plan: Plan) -> None:
    """Free what a stage has left; a lost GPU is detected here, after the stage is saved."""
    try:
        torch.compiler.reset()
        if plan.device == "cuda":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
    except RuntimeError as error:
        raise DeviceLostError(f"the GPU is lost to this process: {str(error).splitlines()[0]}") from error


def digest_of_code() -> str:
    """Return a digest of the measured code."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in MEASURED_CODE for path in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def conditions_of(plan: Plan) -> dict[str, Any]:
    """Return the conditions that must be equal for two measurements to be comparable."""
    device = torch.cuda.get_device_name() if plan.device == "cuda" else plan.device
    versions = {name: version(name) for name in ("torch", "transformers")}
    return {"device": device, "cuda": torch.version.cuda, "model": plan.model, "repeats": plan.repeats, **versions}


def _measured(stage: Stage, plan: Plan, minutes: float) -> dict[str, Any] | None:
    """Return the result of a stage, or why it has none; None if the time was up."""
    start = time.monotonic()
    try:
        with _ended_within(minutes * SECONDS_A_MINUTE):
            result = {"result": stage.measure(plan)}
    except OutOfTime:
        return None
    except LeftOutError as error:
        return {"left_out": str(error)}
    except Exception as error:  # a failed stage is a line of the report, and the others continue
        lines = str(error).strip().splitlines()
        return {"failed": f"{type(error).__name__}: {lines[0] if lines else ''}"}
    return {**result, "seconds": time.monotonic() - start}


@contextmanager
def _ended_within(seconds: float) -> Iterator[None]:
    """Raise `OutOfTime` in a block that takes longer."""

    def on_alarm(*_: object) -> None:
        raise OutOfTime

    previous = signal.signal(signal.SIGALRM, on_alarm)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, MIN_ALARM), ALARM_AGAIN_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
