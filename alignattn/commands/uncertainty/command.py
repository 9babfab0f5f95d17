"""Measure whether a trained classifier is certain where it is right, by dropout passes on clean and noisy inputs."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

import alignattn
from alignattn.commands.uncertainty import PREDICTIONS_FILE, UNCERTAINTY_FILE, UncertaintyOptions
from alignattn.commands.uncertainty.noise import InputNoise
from alignattn.evaluation.calibration import FIGURES, Estimate
from alignattn.evaluation.calibration.passes import PASS_FIGURES, PassScores, summarise_passes
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL
from alignattn.finetuning.predictor import Batching, Predictor, load_predictor
from alignattn.finetuning.rows import encode_split, load_run_evaluation
from alignattn.finetuning.run_folder import FinishedRun, read_finished_run
from alignattn.reports.charts import reliability_chart
from alignattn.reports.diagrams import interval_text, reliability_panel
from alignattn.reports.report import REPORT_FILE, Section, write_report
from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.rows import max_samples
from alignattn.tasks.task import FIRST, PROBABILITIES
from alignattn.tasks.task_types import processor_class
from alignattn.training.methods.mc_dropout import can_drop, mc_dropout
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, replacing, unfinished, write_json
from alignattn.utils.progress import counted
from alignattn.utils.publishing import publishable
from alignattn.utils.text_tables import render_table

ORIGINAL, NOISY = "original", "noisy"

SHOWN = ("accuracy", *PASS_FIGURES, "expected_calibration_error", "area_under_risk_coverage")
"""Measures of the table; the file has all."""


@dataclass(frozen=True)
class MeasuredInputs:
    """The measures of the passes over a split.

    Attributes:
        split: its name.
        inputs: `ORIGINAL` or `NOISY`.
        labels: `[N]`.
        scores: the scores of the passes.
        estimates: the estimates by figure.
    """

    split: str
    inputs: str
    labels: NDArray[np.int64]
    scores: PassScores
    estimates: Mapping[str, Estimate]

    @property
    def name(self) -> str:
        """The name of the split in the saved predictions."""
        return self.split if self.inputs == ORIGINAL else f"{self.split}, {self.inputs}"


def uncertainty(options: UncertaintyOptions) -> list[MeasuredInputs]:
    """Measure how certain a run's model is; print a table, and write `uncertainty.json`, predictions and a page.

    Returns:
        Each split on its inputs, and on noisy ones unless `--noise 0`.
    """
    run = read_finished_run(Path(options.run), "--run")
    _check_task(run)
    folder = Path(options.output_dir)
    splits = _chosen_splits(run, options)
    check_free(folder, [UNCERTAINTY_FILE, PREDICTIONS_FILE, REPORT_FILE])
    predictor = load_predictor(run)
    if not can_drop(predictor.model):
        raise AlignAttnError(
            f"--run {options.run}: {run.options.model.model} has no dropout, or only rates of 0, so all passes would "
            "be equal: give a run of another model"
        )
    encoded = {
        name: encode_split(run.task, rows, predictor.tokenizer, run.options.data) for name, rows in splits.items()
    }
    measured = [one for name, split in encoded.items() for one in _measured(predictor, name, split, options)]
    with unfinished(folder):
        header, lines = figure_cells(measured)
        sections = [
            Section(title="Figures", notes=_caption(options), header=header, rows=lines, words=2),
            *(_section(name, [one for one in measured if one.split == name], options.num_bins) for name in splits),
        ]
        write_report(folder / REPORT_FILE, f"Uncertainty of {Path(options.run).name}", {}, sections)
        with replacing(folder / PREDICTIONS_FILE) as temporary:
            pq.write_table(pa.concat_tables([_table(one) for one in measured]), temporary)
        write_json(folder / UNCERTAINTY_FILE, _content(run, measured, options))
    print("\n".join([render_table(header, lines), "", *_caption(options), f"written to {folder}"]))
    return measured


def figure_cells(measured: list[MeasuredInputs]) -> tuple[list[str], list[list[str]]]:
    """Return the header and two lines per split and kind of inputs: figures in percent, and their intervals below."""
    lines = []
    for one in measured:
        lines.append(
            [one.split, one.inputs, str(len(one.labels)), *(f"{100 * one.estimates[name].value:.1f}" for name in SHOWN)]
        )
        lines.append(["", "", "", *(interval_text(one.estimates[name]) for name in SHOWN)])
    headings = [PASS_FIGURES[name] if name in PASS_FIGURES else FIGURES[name].heading for name in SHOWN]
    return ["split", "inputs", "rows", *headings], lines


def _check_task(run: FinishedRun) -> None:
    if not run.task.has_classes:
        raise AlignAttnError(
            f"--run {run.folder}: rows of task {run.task.name!r} do not have one class each: give the run of a "
            "classifier"
        )


def _chosen_splits(run: FinishedRun, options: UncertaintyOptions) -> dict[str, Any]:
    """Return the selected rows, by split."""
    rows = load_run_evaluation(run.options, options.data_dir)
    if not rows.evaluation:
        raise AlignAttnError(f"--run {run.folder} has no evaluation rows: it was made without --validation_file")
    unknown = [name for name in options.split or () if name not in rows.evaluation]
    if unknown:
        raise AlignAttnError(f"--split: there is no split {unknown[0]!r}: choose among {', '.join(rows.evaluation)}")
    chosen = {
        name: max_samples(run.task, dataset, options.max_eval_samples, FIRST)
        for name, dataset in rows.evaluation.items()
        if options.split is None or name in options.split
    }
    for name, dataset in chosen.items():
        if UNLABELLED in dataset[run.task.label_column][:]:  # type: ignore[attr-defined]
            raise AlignAttnError(
                f"--run {run.folder}: rows of {name} have answers that are none of the classes, and the figures need a "
                "class per row"
            )
    return chosen


def _measured(
    predictor: Predictor, name: str, split: EncodedSplit, options: UncertaintyOptions
) -> Iterator[MeasuredInputs]:
    """Measure a split on its inputs, and on noisy ones if they are requested."""
    size = options.batch_size or predictor.run.options.training.per_device_eval_batch_size
    batching = Batching(size, by_length=False)
    yield _of_passes(predictor, name, split, batching, options, None)
    if options.noise:
        noise = InputNoise(predictor.model, processor_class(predictor.task), amount=options.noise, seed=options.seed)
        with noise.measured():
            predictor.outputs(split, batching)
        yield _of_passes(predictor, name, split, batching, options, noise)


def _of_passes(
    predictor: Predictor,
    name: str,
    split: EncodedSplit,
    batching: Batching,
    options: UncertaintyOptions,
    noise: InputNoise | None,
) -> MeasuredInputs:
    inputs = ORIGINAL if noise is None else NOISY
    labels = np.asarray(split.rows[predictor.task.label_column][:], dtype=np.int64)  # type: ignore[attr-defined]
    passes = []
    with mc_dropout(predictor.model, options.seed, predictor.model.device):
        for _ in counted(range(options.passes), f"{name}, {inputs}", options.passes, "pass"):
            surrounding: AbstractContextManager[None] = nullcontext() if noise is None else noise.added()
            with surrounding:
                passes.append(predictor.outputs(split, batching)[0])
            if len(passes) > 1 and (passes[-1] == passes[0]).all():
                raise AlignAttnError(f"--run {options.run}: two passes with dropout are equal, so all would be")
    logits = np.stack(passes)
    drawn = {"num_bins": options.num_bins, "resamples": options.resamples, "seed": options.seed}
    estimates = summarise_passes(logits, labels, level=options.level, **drawn)
    return MeasuredInputs(name, inputs, labels, PassScores.of(logits), estimates)


def _section(split: str, measured: list[MeasuredInputs], num_bins: int) -> Section:
    charts = {}
    for one in measured:
        panel = reliability_panel(one.scores.probabilities, one.labels, num_bins, f"{one.inputs} inputs")
        charts[f"{panel.title}, PAvPU {100 * one.estimates['pavpu'].value:.1f} %"] = reliability_chart(panel)
    return Section(title=f"{split}, {len(measured[0].labels)} rows, mean of passes", charts=charts)


def _table(one: MeasuredInputs) -> pa.Table:
    """Return the predictions as `alignattn calibrate` reads them, with the p-value of each row."""
    return pa.table(
        {
            "split": [one.name] * len(one.labels),
            "row": np.arange(len(one.labels)),
            "label": one.labels,
            "prediction": one.scores.probabilities.argmax(axis=1),
            PROBABILITIES: list(one.scores.probabilities),
            "p_value": one.scores.p_value,
        }
    )


def _content(run: FinishedRun, measured: list[MeasuredInputs], options: UncertaintyOptions) -> dict[str, Any]:
    """Return the content of `uncertainty.json`; shares are fractions, not percentages."""
    settings = {name: value for name, value in asdict(options).items() if name not in ("run", "output_dir", "data_dir")}
    splits: dict[str, Any] = {one.split: {} for one in measured}
    for one in measured:
        figures = {name: asdict(estimate) for name, estimate in one.estimates.items()}
        counts = one.scores.counts(one.labels, options.level)
        splits[one.split][one.inputs] = {"rows": len(one.labels), "counts": counts, **figures}
    of_run = {"run": publishable(str(run.folder)), "task": run.task.name, "model": publishable(run.options.model.model)}
    return {"alignattn": alignattn.__version__, **of_run, "settings": settings, "splits": splits}


def _caption(options: UncertaintyOptions) -> list[str]:
    lines = [
        f"{options.passes} passes with dropout; probabilities are their mean. A row is certain where the two likeliest",
        (
            f"classes differ significantly over the passes, with p < {options.level:g} (paired t-test of their "
            "logits). PAvPU: rows that"
        ),
        "are right and certain, or wrong and uncertain.",
        f"Below each figure its {CONFIDENCE_LEVEL:.0%} bootstrap interval, {options.resamples} resamples of rows.",
    ]
    if options.noise:
        lines.append(
            f"{NOISY}: Gaussian noise on the inputs, {options.noise:g} times each feature's standard deviation."
        )
    return lines
