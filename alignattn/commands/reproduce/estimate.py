"""The runs of a table with their state and an estimate of time."""

import math
import statistics
from collections.abc import Mapping, Sequence

from alignattn.commands.reproduce.experiment import SEED_OPTION, Experiment
from alignattn.commands.reproduce.folder import SETTLED, RunFolder
from alignattn.utils.text_tables import render_table

SECONDS_A_MINUTE = 60


def list_runs(folders: Sequence[RunFolder]) -> str:
    """Return a line per run with its state and time, measured or estimated from finished ones, and a summary."""
    states = [folder.status().state for folder in folders]
    known: dict[tuple[str, ...], list[float]] = {}
    for folder, state in zip(folders, states, strict=True):
        if state == "done" and not math.isnan(folder.seconds):
            for kind in _kinds(folder.experiment):
                known.setdefault(kind, []).append(folder.seconds)
    lines, missing = [], []
    for folder, state in zip(folders, states, strict=True):
        seconds = folder.seconds if state == "done" else _estimate(folder.experiment, known)
        if state not in SETTLED:
            missing.append(seconds)
        about = "" if state == "done" else "about "
        time = "unknown" if math.isnan(seconds) else f"{about}{seconds / SECONDS_A_MINUTE:.1f} min"
        lines.append([folder.experiment.title, folder.experiment.digest, state, "" if state == "unfit" else time])
    return f"{render_table(['run', 'folder', 'state', 'time'], lines)}\n{_summary(folders, states, missing)}"


def _summary(folders: Sequence[RunFolder], states: Sequence[str], missing: Sequence[float]) -> str:
    unfit = {folder.reason_unsupported for folder in folders if folder.reason_unsupported}
    summary = f"{states.count('done')} of {len(folders)} runs are done"
    if unfit:
        summary += f" ({states.count('unfit')} not supported: {'; '.join(sorted(unfit))})"
    estimated = [seconds for seconds in missing if not math.isnan(seconds)]
    if estimated:
        total = sum(estimated) / SECONDS_A_MINUTE
        summary += f"; the others take about {total:.0f} min one after another"
    if unknown := len(missing) - len(estimated):
        summary += f"; {unknown} cannot be estimated: nothing like them has finished yet"
    return summary


def _kinds(experiment: Experiment) -> list[tuple[str, ...]]:
    """Return keys of runs that take similar time, the most specific first."""
    whole = experiment.all_options
    parts = [str(whole.get(name)) for name in ("model", "pair", "task", "recipes", "attention")]
    # Other options may add forward passes, as R-Drop does.
    parts.append(str(sorted((name, value) for name, value in whole.items() if name != SEED_OPTION)))
    return [(experiment.command, *parts[:count]) for count in range(len(parts), 0, -1)]


def _estimate(experiment: Experiment, known: Mapping[tuple[str, ...], Sequence[float]]) -> float:
    return next((statistics.median(known[kind]) for kind in _kinds(experiment) if kind in known), math.nan)
