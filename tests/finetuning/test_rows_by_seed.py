"""`--take seed` and `--evaluation_splits`: what a run trains on and is judged by."""

import pandas as pd
import pytest

from alignattn.commands import get_command
from alignattn.finetuning.rows import load_run_rows
from alignattn.utils.errors import AlignAttnError

ROWS = 40


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "validation", "test"):
        path = folder / "glue/mrpc" / f"{split}.parquet"
        path.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"{split} {number}" for number in range(ROWS)]
        labels = [number % 2 for number in range(ROWS)]
        pd.DataFrame({"sentence1": texts, "sentence2": texts, "label": labels}).to_parquet(path)
    return folder


def rows_of(data_dir, *words):
    given = ["--model", "any", "--task", "mrpc", "--data_dir", str(data_dir), "--output_dir", "x"]
    return load_run_rows(get_command("finetune").parse([*given, *words]))


def test_each_seed_draws_its_own_rows_to_train_on_and_none_its_own_to_be_judged_by(data_dir):
    limits = ("--max_train_samples", "10", "--max_eval_samples", "10")
    first, again, second = (rows_of(data_dir, *limits, "--take", "seed", "--seed", seed) for seed in ("1", "1", "2"))
    assert first.train["sentence1"][:] == again.train["sentence1"][:] != second.train["sentence1"][:]
    assert sorted(first.train["label"][:]) == [0] * 5 + [1] * 5
    drawn = rows_of(data_dir, *limits, "--seed", "2")
    for rows in (first, second):
        assert rows.evaluation["validation"][:] == drawn.evaluation["validation"][:]


def test_another_split_is_evaluated_on(data_dir):
    rows = rows_of(data_dir, "--evaluation_splits", "test")
    assert list(rows.evaluation) == ["test"]
    assert rows.evaluation["test"]["sentence1"][0] == "test 0"


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ("--evaluation_splits train", "trained on"),
        ("--take seed --max_eval_samples 3", "--take"),
    ],
)
def test_mistakes(words, reason, data_dir):
    with pytest.raises(AlignAttnError, match=reason):
        rows_of(data_dir, *words.split())
