"""Deep ensembles of saved predictions: their means, their scores, and predictions that have no mean."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignattn.commands.reproduce.results import examples_of
from alignattn.finetuning.examples import mean_predictions
from alignattn.utils.errors import AlignAttnError

ROWS = 6


def predictions(probabilities, labels=(0, 1, 0, 1, 0, 1)):
    rows = np.asarray(probabilities, dtype=float)
    columns = {"row": range(len(rows)), "label": labels, "prediction": rows.argmax(axis=1), "probabilities": list(rows)}
    return pa.table({name: pa.array(list(column)) for name, column in columns.items()})


@pytest.fixture
def drawn():
    return np.random.default_rng(0).dirichlet([1, 1, 1], (2, ROWS))


def test_an_ensemble_of_equal_models_is_the_model(drawn):
    one = predictions(drawn[0])
    whole = mean_predictions([one, one, one])
    assert whole["prediction"].to_pylist() == one["prediction"].to_pylist()
    np.testing.assert_allclose(np.stack(whole["probabilities"].to_numpy()), drawn[0])


def test_an_ensemble_is_the_mean_of_probabilities_or_scores(drawn):
    whole = mean_predictions([predictions(one) for one in drawn])
    np.testing.assert_allclose(np.stack(whole["probabilities"].to_numpy()), (drawn[0] + drawn[1]) / 2)
    assert whole["prediction"].to_pylist() == (drawn[0] + drawn[1]).argmax(axis=1).tolist()
    scores = [
        pa.table({"row": [0, 1], "label": [1.0, 2.0], "prediction": values}) for values in ([1.0, 3.0], [2.0, 5.0])
    ]
    assert mean_predictions(scores)["prediction"].to_pylist() == [1.5, 4.0]


def test_predictions_without_a_common_mean_are_refused(drawn):
    one = predictions(drawn[0])
    for other in (one.slice(1), predictions(drawn[1], labels=(1, 1, 0, 1, 0, 1))):
        with pytest.raises(AlignAttnError, match="same rows and labels"):
            mean_predictions([one, other])
    with pytest.raises(AlignAttnError, match="the same labels"):
        mean_predictions([one, predictions(drawn[1][:, :2] / drawn[1][:, :2].sum(axis=1, keepdims=True))])
    texts = pa.table({"row": [0], "label": ["a"], "prediction": ["b"]})
    with pytest.raises(AlignAttnError, match="neither"):
        mean_predictions([texts, texts])


def test_an_ensemble_of_finished_runs_is_scored_by_its_mean(tmp_path, drawn):
    """Two runs with errors on different rows are right together."""
    sure, unsure = [0.9, 0.05, 0.05], [0.3, 0.4, 0.3]
    labels = (0,) * ROWS
    runs = []
    for name, wrong in (("a", 0), ("b", 1)):
        run = tmp_path / name / "run"
        run.mkdir(parents=True)
        rows = [unsure if row == wrong else sure for row in range(ROWS)]
        pq.write_table(predictions(rows, labels).add_column(0, "split", [["test"] * ROWS]), run / "predictions.parquet")
        runs.append(run)
    values = [examples_of(some, ["metrics", "test", "accuracy"]).value for some in (runs, runs[:1])]
    assert values == [1.0, (ROWS - 1) / ROWS]
