"""Hyperparameter search: optuna chooses the options of each run by the results of earlier ones.

Each trial is a run in a separate folder. Optuna's storage, an SQLite file, records the trials, so a killed search
resumes with the run that was interrupted. A trial's values depend only on the seed, its number and the results before
it, so a resumed search tries the same values as one that was not killed.
"""

import json
import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState
from sqlalchemy.engine import URL

from alignattn.commands.finetune import FinetuneOptions
from alignattn.commands.finetune.space import Range
from alignattn.finetuning.results import EVALUATION, RunResult, read_result, score_text
from alignattn.finetuning.run import finetune_one
from alignattn.finetuning.run_files import CONFIG_FILE, TRIAL_FOLDER_PREFIX
from alignattn.finetuning.run_folder import OPTIONS_THAT_MAY_DIFFER
from alignattn.tasks.task import LESS_IS_BETTER
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_csv
from alignattn.utils.folder_lock import folder_lock, running
from alignattn.utils.text_tables import render_table

STORAGE_FILE, TRIALS_FILE = "search.db", "trials.csv"
STUDY = "search"
MADE_OF = "options"
"""Key of a search's options in its storage."""
SPACE = "search_space"


def search(options: FinetuneOptions) -> list[RunResult]:
    """Run the missing trials, report the best, and return the results of all finished trials."""
    folder = options.output_dir
    folder.mkdir(parents=True, exist_ok=True)
    with folder_lock(folder, _fixed_options(options), partial(_check_running, options)):
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = _open_study(options)
        count = options.hyperparameter_search or 0
        print(f"searched: {', '.join(map(str, options.space.values()))}")
        results = {}
        for number in range(max(count, len(study.trials))):
            result = _run_trial(study, options, number)
            if result is not None:
                results[number] = result
        print(_write_trials(study, options, results))
    return list(results.values())


def _open_study(options: FinetuneOptions) -> optuna.Study:
    """The search in the folder, new or resumed; raises `AlignAttnError` if it has other options."""
    address = URL.create("sqlite", database=str((options.output_dir / STORAGE_FILE).absolute()))
    study = optuna.create_study(
        storage=address.render_as_string(hide_password=False), study_name=STUDY, load_if_exists=True
    )
    theirs = study.user_attrs.get(MADE_OF)
    if theirs is None:
        study.set_user_attr(MADE_OF, _fixed_options(options))
    else:
        _check_same(options, theirs)
    return study


def _check_running(options: FinetuneOptions) -> None:
    """Refuse a folder in which a process now makes another search."""
    theirs = running(options.output_dir)
    if theirs is not None and SPACE in theirs:
        _check_same(options, theirs)


def _check_same(options: FinetuneOptions, theirs: dict[str, Any]) -> None:
    mine = _fixed_options(options)
    changed = sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))
    if changed:
        raise AlignAttnError(
            f"{options.output_dir} holds a search with other options ({', '.join(changed)}): give another --output_dir"
        )


def _fixed_options(options: FinetuneOptions) -> dict[str, Any]:
    kept = {name: value for name, value in options.run().to_dict().items() if name not in OPTIONS_THAT_MAY_DIFFER}
    plain: dict[str, Any] = json.loads(json.dumps(kept, default=str))
    return plain | {SPACE: sorted(map(str, options.space.values()))}


def _run_trial(study: optuna.Study, options: FinetuneOptions, number: int) -> RunResult | None:
    """The result of a trial, which is run unless it has finished; None if it has no result."""
    distributions = {name: _distribution(values) for name, values in options.space.items()}
    if number == len(study.trials):
        # Seeded by its number, so that a resumed search draws the same values.
        study.sampler = optuna.samplers.TPESampler(seed=(options.training.seed + number) % 2**32)
        study.ask(fixed_distributions=distributions)
    trial = study.trials[number]
    if trial.params.keys() != distributions.keys():
        # The search was killed while the trial's values were sampled.
        study.tell(number, state=TrialState.FAIL)
        return None
    where = folder_of(options.output_dir, number)
    if trial.state.is_finished():
        return read_result(where)
    result = finetune_one(options.run(**trial.params, output_dir=str(where)))
    loss = _loss(options, result)
    if math.isfinite(loss):
        study.tell(number, loss)
    else:
        study.tell(number, state=TrialState.FAIL)
    return result


def folder_of(folder: Path, number: int) -> Path:
    """Return the folder of a trial."""
    return folder / f"{TRIAL_FOLDER_PREFIX}{number}"


def _distribution(values: Range) -> BaseDistribution:
    kind = IntDistribution if isinstance(values.low, int) and isinstance(values.high, int) else FloatDistribution
    return kind(values.low, values.high, log=values.is_log)


def _selection_metric(options: FinetuneOptions, result: RunResult) -> tuple[str, str, float]:
    """Split, name and value (or NaN) of the selection metric, by default the first of the first evaluation split."""
    wanted = options.training.metric_for_best_model
    split, scores = next(iter(result.metrics.items()))
    metric = next(iter(scores))
    for name, measured in result.metrics.items():
        for other in measured:
            # Several splits may have a metric of this name; without a split in the name, the first split's counts.
            if wanted in (f"{name}_{other}", f"{EVALUATION}{name}_{other}"):
                split, metric = name, other
    if wanted is not None and wanted.removeprefix(EVALUATION) in scores:
        metric = wanted.removeprefix(EVALUATION)
    value = result.metrics[split][metric]
    return split, metric, math.nan if value is None else value


def _loss(options: FinetuneOptions, result: RunResult) -> float:
    """The objective, which the search minimises."""
    _, metric, value = _selection_metric(options, result)
    greater = options.training.greater_is_better
    return -value if (metric not in LESS_IS_BETTER if greater is None else greater) else value


def _write_trials(study: optuna.Study, options: FinetuneOptions, results: Mapping[int, RunResult]) -> str:
    """Write the trials to a file; return a table of them, with the best trial and the command that repeats it."""
    folder, done = options.output_dir, [trial for trial in study.trials if trial.number in results]
    scored = [trial for trial in done if trial.state == TrialState.COMPLETE]
    if not scored:
        return f"{folder}: no trial has a defined score"
    # The study's own best trial may have lost its folder.
    best_trial = min(scored, key=lambda trial: _loss(options, results[trial.number]))
    lines = []
    for trial in done:
        split, metric, value = _selection_metric(options, results[trial.number])
        lines.append({"trial": trial.number, f"{split} {metric}": score_text(metric, value), **trial.params})
    write_csv(folder / TRIALS_FILE, lines)
    best = folder_of(folder, best_trial.number)
    values = ", ".join(f"{name} {value:.4g}" for name, value in best_trial.params.items())
    split, metric, value = _selection_metric(options, results[best_trial.number])
    rows = [[f"{value:.4g}" if isinstance(value, float) else str(value) for value in line.values()] for line in lines]
    return "\n".join(
        [
            render_table(list(lines[0]), rows),
            f"the best of {len(done)} trials is {best}: {split} {metric} {score_text(metric, value)} with {values}",
            "it was selected on these rows, so expect a lower score on others",
            f"repeat it: alignattn finetune --config {best / CONFIG_FILE} --output_dir DIR",
        ]
    )
