"""Deep ensembles of saved predictions: a row that costs no run, and a seed that draws its own rows."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from processes import run_python
from sklearn.metrics import accuracy_score
from test_reproduce import write_rte

from alignattn.commands.finetune.result_reader import FinetuneReader
from alignattn.finetuning.examples import mean_predictions
from alignattn.utils.errors import AlignAttnError

ROWS = 6
TABLE = {
    "title": "t",
    "command": "finetune",
    "options": {"max_train_samples": 12, "take": "seed", "evaluation_splits": ["test"]},
    "rows": [
        {"options": {"attention": "soft"}},
        {"label": "soft + smoothing", "options": {"attention": "soft", "label_smoothing_factor": 0.2}},
        {"label": "ensemble", "ensemble": True, "options": {"attention": "soft"}},
    ],
    "columns": [
        {
            "label": "RTE",
            "options": {"task": "rte"},
            "measures": [{"label": "accuracy", "path": "metrics.test.accuracy"}],
        }
    ],
}


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


def test_other_rows_or_labels_or_answers_are_refused(drawn):
    one = predictions(drawn[0])
    for other in (one.slice(1), predictions(drawn[1], labels=(1, 1, 0, 1, 0, 1))):
        with pytest.raises(AlignAttnError, match="same rows and labels"):
            mean_predictions([one, other])
    with pytest.raises(AlignAttnError, match="more and fewer classes"):
        mean_predictions([one, predictions(drawn[1][:, :2] / drawn[1][:, :2].sum(axis=1, keepdims=True))])
    texts = pa.table({"row": [0], "label": ["a"], "prediction": ["b"]})
    with pytest.raises(AlignAttnError, match="neither"):
        mean_predictions([texts, texts])


def test_an_ensemble_of_finished_runs_is_scored_by_its_mean(tmp_path, drawn):
    """Two that are each wrong on a row of their own are right together."""
    sure, unsure = [0.9, 0.05, 0.05], [0.3, 0.4, 0.3]
    labels = (0,) * ROWS
    runs = []
    for name, wrong in (("a", 0), ("b", 1)):
        run = tmp_path / name / "run"
        run.mkdir(parents=True)
        rows = [unsure if row == wrong else sure for row in range(ROWS)]
        pq.write_table(predictions(rows, labels).add_column(0, "split", [["test"] * ROWS]), run / "predictions.parquet")
        runs.append(run)
    values = [FinetuneReader().ensemble(some, ["metrics", "test", "accuracy"]).value for some in (runs, runs[:1])]
    assert values == [1.0, (ROWS - 1) / ROWS]


def test_a_table_of_a_baseline_and_an_ensemble(tmp_path, tiny_checkpoint, monkeypatch):
    for split, rows, seed in (("train", 24, 0), ("validation", 8, 5), ("test", 16, 9)):
        write_rte(tmp_path / "data/glue/rte" / f"{split}.parquet", rows, seed)
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(TABLE))
    given = f"--model {tiny_checkpoint} --data_dir {tmp_path}/data --num_train_epochs 1 --max_length 16 --use_cpu true"
    words = ["reproduce", str(path), "--num_seeds", "2", *given.split(), "--save_strategy", "no"]
    monkeypatch.chdir(tmp_path)
    done = run_python("-m", "alignattn.cli", *words)
    assert done.returncode == 0, done.stderr
    assert "0 of 4 runs are done" in done.stdout
    table = pd.read_csv(tmp_path / "results/mine/mine.csv").set_index("row")
    assert table["seeds"].to_dict() == {"soft": 2, "soft + smoothing": 2, "ensemble": 1}
    assert table["detectable_difference"].notna().to_dict() == {
        "soft": False,
        "soft + smoothing": True,
        "ensemble": True,
    }
    assert "16 examples" in table.loc["ensemble", "test"]
    assert "an ensemble is one model of all seeds" in table.loc["ensemble", "test"]
    runs = [tmp_path / "results/runs" / digest / "run" for digest in table.loc["ensemble", "runs"].split()]
    own = [pq.read_table(run / "predictions.parquet") for run in runs]
    mean = np.mean([np.stack(one["probabilities"].to_numpy()) for one in own], axis=0)
    expected = accuracy_score(own[0]["label"].to_numpy(), mean.argmax(axis=1))
    assert table.loc["ensemble", "mean"] == pytest.approx(100 * expected)
    # Each seed drew rows of its own; what it is evaluated on is the same.
    drawn = [json.loads((run / "results.json").read_text())["train_rows"] for run in runs]
    assert drawn == [12, 12]
    assert own[0]["label"].equals(own[1]["label"])
