"""The results of the runs of a table: numbers at the paths of their JSON files, and the scores of their rows."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands import results_of
from alignattn.commands.reproduce.definitions import PlannedCell
from alignattn.commands.reproduce.experiment import MODEL_OPTION, SEED_OPTION
from alignattn.commands.reproduce.folder import OF_THE_MACHINE, RunFolder, read_results
from alignattn.commands.reproduce.table import Table
from alignattn.evaluation.calibration.measures import calibration_scores
from alignattn.evaluation.calibration.scaling import apply_temperature
from alignattn.evaluation.statistics.example_scores import ExampleScores, ratio_scores
from alignattn.finetuning.examples import (
    SHARES,
    NotKeptError,
    mean_predictions,
    metric_examples,
    read_logs,
    read_probabilities,
    read_split,
)
from alignattn.finetuning.logs import training_charts
from alignattn.finetuning.results import CONFIG_FILE, RUN_FOLDER
from alignattn.models.packaged import seen_before
from alignattn.reports.charts import reliability_chart, reliability_panel
from alignattn.reports.table import UNREADABLE, Cell, ResultTable, Run, compare_cells, filled
from alignattn.robustness.records import RECORDS_SUFFIX, read_run
from alignattn.tasks.names import PROBABILITIES
from alignattn.utils.console import counted
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import read_text
from alignattn.utils.paths import publishable_text, short_path

Results = Mapping[str, Any]


def read_table(table: Table, cells: Sequence[PlannedCell], folders: Mapping[str, RunFolder]) -> ResultTable:
    """Return a table with what its runs measured.

    Args:
        table: the table.
        cells: its cells.
        folders: the folders of their runs by digest, from `folders_of`.
    """
    runs = {digest: _read_run(folder) for digest, folder in counted(folders.items(), "read", len(folders), "run")}
    results = next(iter(folders.values())).results
    compared, problems = compare_cells([_cell_of(cell, runs, folders) for cell in cells], table.named)
    # A column's task, or each task of its pair.
    tasks = [task for column in table.columns for task in (column.name, *column.name.split("-"))]
    contamination = seen_before(map(table.model_of, table.rows), tasks)
    done = {digest for digest, run in runs.items() if run.state == "done"}
    baselines = {str(cell.baseline) for cell in compared if cell.comparison is not None and cell.names_baseline}
    if not baselines or any(cell.comparison is not None and not cell.names_baseline for cell in compared):
        baselines = {PLAIN_ATTENTION}
    return ResultTable(
        name=table.name,
        title=table.title,
        published_source=table.published_source,
        measured_source=_without_paths(measured_source(table, cells, done), results),
        notes=[*table.notes, *contamination, *(_without_paths(problem, results) for problem in problems)],
        cells=compared,
        runs=runs,
        baseline=baselines.pop() if len(baselines) == 1 else "the row that each names",
        named=table.named,
    )


def _cell_of(planned: PlannedCell, runs: Mapping[str, Run], folders: Mapping[str, RunFolder]) -> Cell:
    """Return the cell of finished runs: their numbers at the path of its measure, or that of their ensemble."""
    path = planned.measure.keys(planned.row.options)
    own = {place: runs[experiment.digest] for place, experiment in enumerate(planned.experiments)}
    outputs = {place: folders[experiment.digest].output for place, experiment in enumerate(planned.experiments)}
    done = [place for place, run in own.items() if run.state == "done"]
    cell = filled(
        Cell(
            row=planned.row.label,
            column=planned.column.label,
            measure=planned.measure,
            runs=own,
            planned=planned.planned,
            published=planned.published,
            baseline=planned.baseline,
            names_baseline=bool(planned.row.against),
            is_primary=planned.is_primary,
            is_ensemble=planned.row.ensemble,
            samples_by_seed=planned.samples_by_seed,
            digests=planned.digests,
            examples=lambda place: _kept_examples(outputs[place], path),
        ),
        path,
    )
    shares = {share_rows(own[place].results, path) for place in cell.values}
    cell = replace(cell, share_rows=shares.pop() if len(shares) == 1 else None)
    if not planned.row.ensemble:
        return cell
    if reason := reason_no_ensemble(planned.experiments[0].command, path):
        return replace(cell, state="unfit", reason=reason, values={})
    if not cell.values:
        return cell
    try:
        ensemble = examples_of([outputs[place] for place in done], path)
    except UNREADABLE as error:
        return replace(cell, state="failed", reason=one_line(error), values={})
    if ensemble is None:
        failed = replace(cell, state="failed", reason=f"{'.'.join(path)} is not kept for ensembles", values={})
        return failed if cell.state == "done" else replace(cell, values={})
    constant = all(own[place].is_constant(path) for place in done)
    return replace(cell, values={0: ensemble.value}, ensemble=ensemble, is_constant=constant)


def examples_of(folders: Sequence[Path], path: Sequence[str]) -> ExampleScores | None:
    """Return the row scores behind the number at a path of a run's results.

    Those of several runs are of the mean of their predictions. None if the number is not a statistic of rows.

    Raises:
        AlignAttnError: if predictions have no mean; `NotKeptError` if they are not kept; other errors of `UNREADABLE`
            if the files are damaged.
    """

    def read(split: str) -> Any:
        splits = [read_split(folder, split) for folder in folders]
        return splits[0] if len(splits) == 1 else mean_predictions(splits)

    match path:
        case ["metrics", split, metric]:
            return metric_examples(metric, read(split))
        case ["sides", side, "figures", _, "accuracy", "value"]:
            return metric_examples("accuracy", read(f"{side}-held-out"))
        case ["sides", side, "figures", state, "expected_calibration_error", "value"]:
            rows = read(f"{side}-held-out")
            probabilities = np.stack(rows[PROBABILITIES].to_numpy())
            if state == "after":
                temperature = (read_results(folders[0], "results.json") or {})["temperature"]
                probabilities = apply_temperature(probabilities, temperature)
            return calibration_scores(probabilities, rows["label"].to_numpy())
        case ["failed_share"]:
            return _attack_examples(folders[0])
    return None


def _kept_examples(output: Path, path: Sequence[str]) -> ExampleScores | None:
    """Return `examples_of` one run; None if its predictions are not kept."""
    try:
        return examples_of([output], path)
    except NotKeptError:
        return None
    except UNREADABLE as error:
        raise AlignAttnError(f"{output} cannot be read: {one_line(error)}; move it away") from error


def _attack_examples(folder: Path) -> ExampleScores:
    """Return the row scores of the share of failed attacks, over all rows; rows without an attack have weight 0."""
    recipe = (read_results(folder, "robustness.json") or {})["settings"]["recipe"]
    found = list(folder.glob(f"*/{recipe}{RECORDS_SUFFIX}"))
    if len(found) != 1:
        raise AlignAttnError(f"it holds {len(found)} files of records instead of one")
    run = read_run(found[0])
    rows = np.array(run.header.usable_rows)
    failed, attacked = np.zeros((2, len(rows)))
    for record in run.records:
        place = np.searchsorted(rows, record.index)
        failed[place] = record.outcome == "failed"
        attacked[place] = record.outcome != "skipped"
    return ratio_scores(rows, failed, attacked)


def share_rows(results: Results, path: Sequence[str]) -> int | None:
    """Return how many rows the number at a path is a share of, as an accuracy is; None for other numbers."""
    match path:
        case ["metrics", split, metric] if metric in SHARES:
            return int(results["evaluation_rows"][split])
        case ["sides", side, "figures", _, "accuracy", "value"]:
            return int(results["sides"][side]["held_out_rows"])
        case ["accuracy_before" | "accuracy_under_attack"]:
            return sum(int(results[name]) for name in ("failed", "succeeded", "skipped")) - int(results["errors"])
    return None


def reason_no_ensemble(command: str, path: Sequence[str]) -> str:
    """Return why there is no ensemble of the number at a path, in one line; empty if there is one."""
    match path:
        case ["metrics", *_] | ["sides", _, "figures", "before", *_]:
            return ""
        case ["sides", _, "figures", "after", *_]:
            return "an ensemble has no temperature of its own"
    if results_of(command).needs_saved_model:
        return "attacks need one saved model, and an ensemble is several"
    return f"an ensemble has no {'.'.join(path)}: it is not a score of predictions"


def _read_run(folder: RunFolder) -> Run:
    """Read a run; one whose result cannot be read has failed."""
    status = folder.status()
    published = partial(_without_paths, results=folder.results, options=folder.values)
    run = Run(
        digest=folder.experiment.digest,
        title=folder.experiment.title,
        state=status.state,
        reason=None if status.reason is None else published(status.reason),
        folder=published(str(folder.path)),
        command=published(folder.command_line),
    )
    if status.state != "done":
        return run
    try:
        results = folder.read_results() or {}
        # The training of a domain shift is in a folder of its own.
        trained = folder.output / RUN_FOLDER if "sides" in results else folder.output
        split = "out-of-domain-held-out" if "sides" in results else next(iter(results.get("metrics", ())), None)
        config = folder.output / CONFIG_FILE
        charts = training_charts(read_logs(trained))
        if (probabilities := read_probabilities(folder.output, split)) is not None:
            panel = reliability_panel(*probabilities)
            charts[f"reliability, {panel.title}"] = reliability_chart(panel)
        facts = {name: published(fact) for name, fact in (_facts(results) | folder.cost_texts).items()}
        text = read_text(config) if config.is_file() else yaml.safe_dump(results.get("settings", {}))
    except UNREADABLE as error:
        reason = published(f"its results cannot be read: {one_line(error)}")
        return replace(run, state="failed", reason=reason)
    return replace(run, results={"cost": folder.cost, **results}, facts=facts, config=published(text), charts=charts)


def _facts(results: Results) -> dict[str, str]:
    """Return the seed, data, hardware and versions of a run, as far as its command wrote them."""
    facts = {"seed": str(results["seed"])} if "seed" in results else {}
    if "sides" in results:
        sides = results["sides"].values()
        trained = [f"{side['train_rows']} rows of {side['task']}" for side in sides if side["train_rows"]]
        evaluated = [f"{side['held_out_rows']} rows of {side['task']} {side['split']}" for side in sides]
        facts |= {"trained on": ", ".join(trained), "evaluated on": ", ".join(evaluated)}
        facts["temperature"] = f"{results['temperature']:.3f}"
    if "metrics" in results:
        evaluated = [f"{rows} rows of {split}" for split, rows in results["evaluation_rows"].items()]
        facts |= {"trained on": f"{results['train_rows']} rows", "evaluated on": ", ".join(evaluated)}
        speed = results["train_samples_per_second"]
        facts["training took"] = f"{results['train_runtime']:.0f} s, {speed:.1f} rows a second"
        facts["parameters"] = f"{results['parameters']['total']:,}"
    if "failed_share" in results:
        facts["attacked"] = f"{results['failed'] + results['succeeded']} rows, {results['skipped']} skipped"
        facts["errors"] = str(results["errors"])
    if "device" in results:
        facts["hardware"] = results["device"]
    if "versions" in results:
        facts["versions"] = ", ".join(f"{name} {version}" for name, version in results["versions"].items())
    return facts


def _without_paths(text: str, results: Path, options: Mapping[str, Any] = MappingProxyType({})) -> str:
    """Return a text without this machine's paths: the results folder keeps its name, others their last two parts."""
    text = text.replace(str(results.absolute()), results.absolute().name)
    for path in filter(os.path.isabs, (value for value in options.values() if isinstance(value, str))):
        text = text.replace(path, short_path(path))
    return publishable_text(text)


def measured_source(table: Table, cells: Sequence[PlannedCell], done: Collection[str]) -> str:
    """Describe the runs behind the measured numbers: models, seeds, options.

    Args:
        table: the table.
        cells: its cells.
        done: digests of the runs that have finished.
    """
    models = dict.fromkeys(map(table.model_of, table.rows))
    seeds: dict[Any, bool] = {}
    for experiment in (one for cell in cells for one in cell.experiments):
        if (seed := experiment.all_options.get(SEED_OPTION)) is not None:
            seeds[seed] = seeds.get(seed, False) or experiment.digest in done
    finished = [str(seed) for seed, is_done in seeds.items() if is_done]
    parts = [" and ".join(short_path(model) for model in models)]
    if seeds:
        of_all = f" of {len(seeds)}" if len(finished) < len(seeds) else ""
        parts.append(f"seeds {', '.join(finished) or 'none'}{of_all}")
    given = [
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in table.given.items()
        if name not in {MODEL_OPTION, *OF_THE_MACHINE}
    ]
    return "; ".join([*parts, *([f"with {', '.join(given)}"] if given else [])])
