"""Samples of rows: every class has its share, and every run has the same rows."""

import datasets
import numpy as np
import pytest

from alignattn.tasks import MultiLabelClassification, TextClassification
from alignattn.tasks.definitions import TASKS
from alignattn.tasks.names import FIRST
from alignattn.tasks.rows import load_user_rows, max_samples, sample_rows, with_validation_share
from alignattn.utils.errors import AlignAttnError

TASK = TextClassification(name="t", text_columns=("a",), labels=("x", "y", "z"), metrics=("accuracy",))


def rows_of(*counts):
    """A data set sorted by its labels."""
    labels = np.repeat(np.arange(len(counts)), counts)
    return datasets.Dataset.from_dict({"a": [f"text {n}" for n in range(len(labels))], "label": labels})


@pytest.mark.parametrize("count", [3, 7, 10, 50, 99])
def test_each_class_has_its_share(count):
    sizes = np.array([70, 27, 3])
    drawn = sample_rows(TASK, rows_of(*sizes), count)
    assert len(drawn) == len(set(drawn)) == count
    assert list(drawn) == sorted(drawn)
    shares = np.bincount(np.array(rows_of(*sizes)["label"])[drawn], minlength=3)
    assert (shares >= 1).all()
    assert (np.abs(shares - count * sizes / 100)[: 2 if count < 50 else 3] < 2).all()


def test_a_sample_is_reproducible_and_not_the_first_rows():
    dataset = rows_of(50, 50)
    drawn = sample_rows(TASK, dataset, 20)
    assert (sample_rows(TASK, dataset, 20) == drawn).all()
    assert not (drawn == np.arange(20)).all()


def test_scores_and_questions_are_sampled_without_classes():
    scores = datasets.Dataset.from_dict({"a": list("abcdef"), "label": [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]})
    regression = TextClassification(name="t", text_columns=("a",), metrics=("pearson",))
    assert len(sample_rows(regression, scores, 4)) == 4
    assert len(sample_rows(TASKS["squad"], datasets.Dataset.from_dict({"id": list("abcdef")}), 4)) == 4


def test_a_sample_of_rows_with_several_labels_has_the_rates_of_all_rows():
    labels = np.random.default_rng(0).random((2000, 20)) < 0.12
    names = [f"l{number}" for number in range(20)]
    columns = {name: labels[:, number].astype(int) for number, name in enumerate(names)}
    dataset = datasets.Dataset.from_dict({"a": ["x"] * 2000, **columns})
    task = MultiLabelClassification(name="t", text_columns=("a",), label_columns=tuple(names))
    for count in (200, 1000):
        drawn = labels[sample_rows(task, dataset, count)]
        assert len(drawn) == count
        assert abs(drawn.sum(axis=1).mean() - labels.sum(axis=1).mean()) < 0.25


def test_max_samples_samples_rows_or_takes_the_first():
    dataset = rows_of(6, 6)
    assert max_samples(TASK, dataset, 4, FIRST)["a"][:] == [f"text {n}" for n in range(4)]
    assert sorted(max_samples(TASK, dataset, 4)["label"][:]) == [0, 0, 1, 1]
    for count in (12, 99, None):
        assert max_samples(TASK, dataset, count)["a"][:] == dataset["a"][:]
    with pytest.raises(AlignAttnError, match="cannot sample 0 rows"):
        max_samples(TASK, dataset, 0)


@pytest.fixture
def own_rows(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,label\n" + "".join(f"row {n},{'a' if n < 80 else 'b'}\n" for n in range(100)))
    return load_user_rows(path, None, ["text"], "label")


def test_a_share_of_the_training_rows_becomes_the_validation_split(own_rows):
    rows = with_validation_share(own_rows, 0.1)
    validation = rows.evaluation["validation"]
    assert np.bincount(validation["label"][:]).tolist() == [8, 2]
    assert sorted([*rows.train["text"], *validation["text"]]) == sorted(own_rows.train["text"])
    assert rows.derived == {"validation": "10 of the 100 training rows, drawn with seed 42"}
    assert rows.task.evaluation_splits == ("validation",)


def test_the_only_row_of_a_class_stays_in_training(tmp_path):
    path = tmp_path / "own.csv"
    path.write_text("text,label\nu,a\nv,a\nw,a\nx,a\ny,b\n")
    rows = with_validation_share(load_user_rows(path, None, ["text"], "label"), 0.6)
    assert set(rows.train["label"]) == {0, 1}
    path.write_text("text,label\nu,a\ny,b\n")
    with pytest.raises(AlignAttnError, match="--validation_share"):
        with_validation_share(load_user_rows(path, None, ["text"], "label"), 0.5)
