"""Metrics from rows: resampled rows have the metric that they have alone."""

import numpy as np
import pyarrow as pa
import pytest

from alignattn.finetuning.examples import metric_examples
from alignattn.tasks.sequence_to_sequence import Nearest, error_rate
from alignattn.tasks.tags.entities import SCORES, entity_scores

GOLD = [["B-PER", "I-PER", "O"], ["O", "O"], ["B-LOC"], ["B-PER", "O", "B-LOC", "I-LOC"]]
FOUND = [["B-PER", "I-PER", "O"], ["O", "B-LOC"], ["O"], ["B-PER", "O", "B-LOC", "O"]]
RESAMPLED = np.array([3, 3, 0, 1])


def resampled(examples) -> float:
    return float(examples.statistic(*(array[RESAMPLED] for array in examples.arrays)))


@pytest.mark.parametrize("metric", SCORES)
def test_scores_of_tags(metric: str) -> None:
    examples = metric_examples(metric, pa.table({"row": range(4), "label": GOLD, "prediction": FOUND}))
    assert examples.value == pytest.approx(entity_scores(FOUND, GOLD)[metric])
    drawn = entity_scores([FOUND[row] for row in RESAMPLED], [GOLD[row] for row in RESAMPLED])
    assert resampled(examples) == pytest.approx(drawn[metric])


def test_a_tagger_that_finds_nothing_has_a_precision_of_0() -> None:
    nothing = [["O"] * len(tags) for tags in GOLD]
    assert metric_examples("precision", pa.table({"row": range(4), "label": GOLD, "prediction": nothing})).value == 0


def test_error_rates_of_generated_sequences() -> None:
    edits, lengths = [0, 2, 1, 0], [3, 4, 1, 2]
    texts = {"row": range(4), "label": [["a"]] * 4, "prediction": ["a"] * 4}
    table = pa.table(texts | {"edits": edits, "length": lengths})
    found = [Nearest(*one) for one in zip(edits, lengths, strict=True)]
    examples = metric_examples("error_rate", table)
    assert examples.value == pytest.approx(error_rate(found))
    assert resampled(examples) == pytest.approx(error_rate([found[row] for row in RESAMPLED]))
    assert metric_examples("exact", table).value == 0.5


def test_rows_with_several_labels_have_no_scores_of_tags() -> None:
    table = pa.table({"row": [0], "label": [[1, 1]], "prediction": [[1, 0]]})
    assert metric_examples("f1", table) is None
