"""The `report.html` of a run: what it scores and where it is wrong, on one page."""

import base64
import math
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup
from numpy.typing import NDArray

from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.evaluation.statistics.intervals import CONFIDENCE_LEVEL, RESAMPLES
from alignattn.finetuning.examples import MAX_SLICES, SliceScores, metric_examples
from alignattn.finetuning.logs import LogHistory, training_charts
from alignattn.finetuning.results import (
    CLASS_SCORES,
    PREDICTIONS_FILE,
    RESULTS_FILE,
    RunResult,
    class_cells,
    score_text,
)
from alignattn.reports.charts import confidence_chart, reliability_chart, reliability_panel
from alignattn.reports.pages import REPORT_FILE, Section, Shaded, write_report
from alignattn.tasks import Task
from alignattn.tasks.names import PROBABILITIES
from alignattn.tasks.pictures import open_picture
from alignattn.tasks.task import EncodedSplit, Evaluation
from alignattn.tasks.text_classification import LABEL_PROBABILITIES
from alignattn.tasks.truncation import windows_hint
from alignattn.utils.errors import listing

MAX_CLASSES = 50
MAX_CONFUSED = 20
MAX_MISTAKES = 20
"""Lines of the tables by class, of confusions, and of wrong rows."""
MAX_CHARACTERS = 300
"""Maximum characters of a text in a cell."""
MAX_NUMBERS = 10_000_000
"""Maximum number of probabilities in a reliability diagram; if there are more, it shows the first rows."""
MAX_RESAMPLED = 500_000
"""Maximum of rows times classes for an interval of a score: more would take many seconds."""
THUMBNAIL = 96
"""Pixels of the longer side of a picture in a cell."""
INTERVAL = f"{CONFIDENCE_LEVEL:.0%} interval"


def write_run_report(
    folder: Path,
    task: Task,
    result: RunResult,
    splits: Mapping[str, EncodedSplit],
    evaluations: Mapping[str, Evaluation],
    slices: Mapping[str, SliceScores],
    log_history: LogHistory,
) -> None:
    """Write the page of a run to its folder.

    Args:
        folder: the folder of the run.
        task: the task of its rows.
        result: the result of the run.
        splits: the evaluated rows, by name.
        evaluations: the evaluations of the splits.
        slices: the scores of slices by split; empty without `--slice_by`.
        log_history: the log of the training.
    """
    facts = {
        "task": result.task,
        "model": result.model,
        "attention": result.attention,
        "seed": str(result.seed),
        "trained on": f"{result.train_rows:,} rows",
        "evaluated on": ", ".join(f"{rows:,} rows of {split}" for split, rows in result.evaluation_rows.items()),
        "truncated": "; ".join(f"{split}: {rows}" for split, rows in result.truncated_rows.items()),
        "also trained on": ", ".join(f"{rows:,} rows of {split}" for split, rows in result.trained_rows.items()),
        "class weights": ", ".join(f"{name} {weight:.3g}" for name, weight in result.class_weights.items()),
        "hardware": result.device,
    }
    if facts["truncated"]:
        facts["truncated"] += windows_hint(task, splits.values())
    sections = []
    for split, evaluation in evaluations.items():
        parts = _score_sections(evaluation, slices.get(split, {}), len(result.labels))
        parts += _row_sections(task, splits[split], evaluation.predictions, result.labels)
        prefix = f"{split}: " if len(evaluations) > 1 else ""
        sections += [Section(**{**vars(part), "title": prefix + part.title}) for part in parts]
    inputs = task.input_columns
    targets = [name for name in task.columns() if name not in inputs] or [result.task]
    title = f"{listing(targets)} from {listing(inputs)}, by {Path(result.model).name}"
    known = {name: value for name, value in facts.items() if value}
    write_report(
        folder / REPORT_FILE, title, known, [*sections, Section(title="Training", charts=training_charts(log_history))]
    )


def _score_sections(evaluation: Evaluation, slices: SliceScores, num_classes: int) -> list[Section]:
    """Return the sections on all rows of a split, on its slices, and on its classes."""
    rows = []
    for name, value in evaluation.metrics.items():
        examples = None if math.isnan(value) else metric_examples(name, evaluation.predictions)
        rows.append([name, score_text(name, value), _interval(name, examples, num_classes)])
    note = (
        f"In percent, except errors. {INTERVAL}: Wilson's for a share of rows, else the bootstrap over rows "
        f"({RESAMPLES:,} resamples); – if the score is undefined or no statistic of rows, or there are too many rows."
    )
    sections = [Section(title="Scores", notes=[note], header=["score", "value", INTERVAL], rows=rows)]

    # A slice lacks the metrics that are undefined for it, so the main one is that of a slice with the most.
    by_metrics = sorted(slices.values(), key=len, reverse=True)
    metrics = list(dict.fromkeys(name for scores in by_metrics for name in scores))
    lines = []
    for slice_name, scores in slices.items() if metrics else ():
        values = {name: score_text(name, one.value) for name, one in scores.items()}
        count = max((len(one.examples) for one in scores.values()), default=0)
        main, *others = (values.get(name, "–") for name in metrics)
        interval = _interval(metrics[0], scores.get(metrics[0]), num_classes)
        lines.append([slice_name, f"{count:,}", main, interval, *others])
    full = f"At most {MAX_SLICES} slices, those with the most rows, are shown."
    header = ["slice", "rows", *metrics[:1], INTERVAL, *metrics[1:]]
    notes = [full] if len(slices) == MAX_SLICES else []
    sections.append(Section(title="Slices", notes=notes, header=header, rows=lines))

    classes = evaluation.classes
    left_out = f"The {MAX_CLASSES} classes of {len(classes):,} with the lowest F1; {RESULTS_FILE} has all."
    notes = [left_out] if len(classes) > MAX_CLASSES else []
    header = ["class", *CLASS_SCORES, "rows"]
    return [*sections, Section(title="By class", notes=notes, header=header, rows=class_cells(classes, MAX_CLASSES))]


def _interval(name: str, examples: ExampleScores | None, num_classes: int) -> str:
    is_small = examples is not None and len(examples.examples) * max(1, num_classes) <= MAX_RESAMPLED
    ends = examples.interval() if examples is not None and (is_small or examples.is_share_of_examples) else None
    return "–" if ends is None else f"{score_text(name, ends.low)} to {score_text(name, ends.high)}"


def _row_sections(task: Task, split: EncodedSplit, predictions: pa.Table, names: Sequence[str]) -> list[Section]:
    """Return the sections on single rows: confusions, reliability, mistakes."""
    if LABEL_PROBABILITIES in predictions.column_names:
        labels, probabilities = _matrix(predictions["label"]), _matrix(predictions[LABEL_PROBABILITIES])
        of_label = np.stack([1 - probabilities.ravel(), probabilities.ravel()], axis=1)
        is_true, is_predicted = labels.astype(bool), probabilities > 1 / 2
        counts = [
            (truth & prediction).sum(axis=0)
            for truth in (is_true, ~is_true)
            for prediction in (is_predicted, ~is_predicted)
        ]
        rows = [[name, *(f"{count:,}" for count in line)] for name, *line in zip(names, *counts, strict=True)]
        right_and_wrong = Section(
            title="Right and wrong by label",
            notes=[f"The first {MAX_CLASSES} of {len(rows):,} labels."] if len(rows) > MAX_CLASSES else [],
            header=["label", "found", "missed", "wrongly found", "rightly absent"],
            rows=rows[:MAX_CLASSES],
        )
        confidence = np.where(
            is_predicted == is_true, -1, np.where(is_predicted, probabilities, 1 - probabilities)
        ).ravel()
        lines = []
        for index in _worst(confidence):
            row, column = divmod(index, len(names))
            verb = "predicted" if is_predicted[row, column] else "missed"
            lines.append((row, [names[column], verb, f"{100 * confidence[index]:.1f}"]))
        wrong = f"the {int((confidence >= 0).sum()):,} wrong ones of {confidence.size:,} labels"
        header = ["label", "wrongly", "confidence"]
        mistakes = _mistakes("Most confident mistakes", lines, header, wrong, task, split)
        return [right_and_wrong, _reliability(of_label, labels.ravel()), mistakes]

    # The label is -1 if several people answered a question and no answer is a class.
    if PROBABILITIES in predictions.column_names and pc.min(predictions["label"]).as_py() >= 0:
        labels, predicted = predictions["label"].to_numpy(), predictions["prediction"].to_numpy()
        probabilities = _matrix(predictions[PROBABILITIES])
        confidence = np.where(labels == predicted, -1, probabilities[np.arange(len(labels)), predicted])
        lines = [
            (row, [names[labels[row]], names[predicted[row]], f"{100 * confidence[row]:.1f}"])
            for row in _worst(confidence)
        ]
        wrong = f"the {int((labels != predicted).sum()):,} wrong ones of {len(labels):,} rows"
        header = ["label", "prediction", "confidence"]
        mistakes = _mistakes("Most confident mistakes", lines, header, wrong, task, split)
        return [_confusions(labels, predicted, names), _reliability(probabilities, labels), mistakes]

    if pa.types.is_floating(predictions["prediction"].type):
        labels, predicted = predictions["label"].to_numpy(), predictions["prediction"].to_numpy()
        errors = np.abs(labels - predicted)
        lines = [(row, [f"{labels[row]:.4g}", f"{predicted[row]:.4g}", f"{errors[row]:.4g}"]) for row in _worst(errors)]
        header = ["label", "prediction", "error"]
        return [_mistakes("Largest errors", lines, header, f"{len(labels):,} rows", task, split)]

    if task.can_weight_classes and pa.types.is_list(predictions["label"].type):
        tags = [predictions[name].combine_chunks().flatten().to_pylist() for name in ("label", "prediction")]
        all_tags = list(dict.fromkeys([*names, *tags[0], *tags[1]]))
        tag_ids = {name: index for index, name in enumerate(all_tags)}
        gold, guessed = (np.array([tag_ids[tag] for tag in column_tags], dtype=np.int64) for column_tags in tags)
        return [_confusions(gold, guessed, all_tags)]
    return []


def _matrix(column: Any) -> NDArray[Any]:
    """Return a column of lists of equal length as `[N, C]`."""
    return np.asarray(column.combine_chunks().flatten().to_numpy(zero_copy_only=False)).reshape(len(column), -1)


def _confusions(labels: NDArray[np.int64], predicted: NDArray[np.int64], names: Sequence[str]) -> Section:
    """Return how often each class is predicted for each label; with many classes, for those that are confused most."""
    notes, shown = ["Rows are labels, columns are predictions; the shade is the share of the row."], list(names)
    if len(names) > MAX_CONFUSED:
        wrong = labels != predicted
        confused = np.bincount(np.concatenate([labels[wrong], predicted[wrong]]), minlength=len(names))
        kept = np.sort(np.argsort(-confused, kind="stable")[: MAX_CONFUSED - 1])
        place = np.full(len(names), len(kept))
        place[kept] = np.arange(len(kept))
        labels, predicted = place[labels], place[predicted]
        shown = [*(names[index] for index in kept), "others"]
        notes.append(f"The {len(kept)} classes of {len(names):,} that are confused most; “others” are the rest.")
    counts = np.bincount(labels * len(shown) + predicted, minlength=len(shown) ** 2).reshape(len(shown), -1)
    rows: list[list[str | Shaded]] = [
        [name, *(Shaded(f"{count:,}", count / max(1, line.sum())) for count in line.tolist())]
        for name, line in zip(shown, counts, strict=True)
    ]
    return Section(title="Confusion matrix", notes=notes, header=["label", *shown], rows=rows)


def _reliability(probabilities: NDArray[np.float64], labels: NDArray[np.int64]) -> Section:
    count = min(len(labels), MAX_NUMBERS // probabilities.shape[1])
    panel = reliability_panel(probabilities[:count], labels[:count].astype(np.int64), how="as predicted")
    notes = ["Of a calibrated model, accuracy equals confidence."]
    if count < len(labels):
        notes.append(f"The first {count:,} of {len(labels):,}.")
    charts = {panel.title: reliability_chart(panel), "rows by confidence": confidence_chart(panel)}
    return Section(title="Reliability", notes=notes, charts=charts)


def _cell(value: Any, *, is_picture: bool) -> str:
    if is_picture:
        picture = open_picture(value)
        picture.thumbnail((THUMBNAIL, THUMBNAIL))
        file = BytesIO()
        picture.save(file, "PNG")
        return Markup('<img alt="" src="data:image/png;base64,{}">').format(base64.b64encode(file.getvalue()).decode())
    text = str(value)
    return text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}…"


def _worst(confidence: NDArray[np.float64]) -> list[int]:
    """Return the indices of the largest values, without those below 0."""
    return [place for place in np.argsort(-confidence, kind="stable")[:MAX_MISTAKES].tolist() if confidence[place] >= 0]


def _mistakes(
    title: str, lines: Sequence[tuple[int, list[str]]], header: list[str], total: str, task: Task, split: EncodedSplit
) -> Section:
    """Return a section that quotes the inputs of rows, given their numbers and what to say of them."""
    columns = [name for name in task.input_columns if name in split.rows.column_names]
    rows = []
    for number, cells in lines:
        row = split.rows[number]
        quoted = [_cell(row[name], is_picture=task.reads_images) for name in columns]
        rows.append([str(number), *quoted, *cells])
    note = f"{len(lines)} of {total}; rows count from 0, as in {PREDICTIONS_FILE}."
    return Section(
        title=title, notes=[note], header=["row", *columns, *header], rows=rows, words=len(columns) + len(header)
    )
