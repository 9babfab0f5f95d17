"""The examples behind a run's numbers, read from the files that it leaves: predictions, and records of attacks."""

from typing import Any

import numpy as np

from alignattn.calibration.measures import calibration_scores
from alignattn.robustness.records import AttackRun
from alignattn.statistics.example_scores import (
    ExampleScores,
    example_scores,
    mean_scores,
    ratio_scores,
)
from alignattn.tasks.answers.squad_metric import SquadVersion, exact_match, f1
from alignattn.tasks.metrics import METRICS

NO_ANSWER_COLUMN = "no_answer_score"
"""A column of the predictions of question answering alone."""


def metric_examples(metric: str, predictions: Any) -> ExampleScores | None:
    """Return what a metric of a table of predictions is made of; None where it is no statistic of single rows."""
    if NO_ANSWER_COLUMN in predictions.column_names:
        return _answer_examples(metric, predictions)
    if metric not in METRICS or predictions["label"].type.num_fields:
        return None
    return example_scores(metric, predictions["label"].to_numpy(), predictions["prediction"].to_numpy())


def calibration_examples(predictions: Any) -> ExampleScores:
    """Return what the expected calibration error of a table of predictions is made of."""
    return calibration_scores(np.stack(predictions["probabilities"].to_numpy()), predictions["label"].to_numpy())


def attack_examples(run: AttackRun) -> ExampleScores:
    """Return what the share of failed attacks is made of, over all rows that there are: those not reached weigh 0."""
    rows = np.array(run.header.usable_rows)
    failed, attacked = np.zeros((2, len(rows)))
    for place, record in zip(np.searchsorted(rows, run.header.row_numbers), run.records, strict=False):
        failed[place] = record.outcome == "failed"
        attacked[place] = record.outcome != "skipped"
    return ratio_scores(rows, failed, attacked)


def _answer_examples(metric: str, predictions: Any) -> ExampleScores | None:
    score = {"exact": exact_match, "f1": f1}.get(metric)
    if score is None:
        return None
    answers, golds = predictions["prediction"].to_pylist(), predictions["label"].to_pylist()
    # The scripts of both versions differ where an answer is empty, as it is for unanswerable questions alone.
    version: SquadVersion = "2.0" if any(not gold for gold in golds) else "1.1"
    scores = [score(answer, gold, version) for answer, gold in zip(answers, golds, strict=True)]
    return mean_scores(predictions["row"].to_numpy(), scores)
