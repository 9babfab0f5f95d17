"""`alignattn uncertainty`: its figures against the functions, the noise against NumPy, and what it refuses."""

import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import tiny_batch, tiny_model
from graphs import write_graph
from task_rows import make_rows, write_rows

from alignattn.cli import USER_ERROR_EXIT_CODE, main
from alignattn.commands.uncertainty import InputNoise
from alignattn.evaluation.calibration import area_under_risk_coverage, expected_calibration_error
from alignattn.tasks.definitions import get_task

pytestmark = pytest.mark.usefixtures("one_thread")

FAST = "--disable_tqdm true --use_cpu true --save_strategy no"
ROWS = 13


@pytest.fixture(scope="module")
def train(tiny_checkpoint, tmp_path_factory):
    """A function that trains a run of a kind of task once, and returns its folder."""
    made = {}

    def make(kind):
        if kind in made:
            return made[kind]
        folder = tmp_path_factory.mktemp(kind)
        if kind in ("graph", "dropless"):
            rate = 0.3 if kind == "graph" else 0.0
            words = f"--model gat --task {write_graph(folder / 'mine.npz')} --num_train_epochs 30 --attention aa-ct"
            words += f" --model_config hidden_dim=4 num_attention_heads=2 dropout={rate}"
        elif kind == "memn2n":
            file = folder / "qa1.txt"
            file.write_text("1 Mary slept.\n2 Who slept?\tMary\t1\n3 Ann ate.\n4 Who ate?\tAnn\t3\n")
            words = f"--model memn2n --train_file {file} --validation_file {file} --text_columns story question"
            words += " --label_column answer --max_steps 1"
        else:
            file = write_rows(folder / "rows.jsonl", make_rows(get_task(kind), ROWS))
            words = f"--task {kind} --train_file {file} --validation_file {file} --model {tiny_checkpoint}"
            words += " --attention aa-ct --max_length 32 --max_steps 4 --learning_rate 1e-2"
        assert main(f"finetune {words} {FAST} --output_dir {folder / 'run'}".split()) == 0
        made[kind] = folder / "run"
        return made[kind]

    return make


def measure(run, folder, words=""):
    told = f"--run {run} --output_dir {folder} --passes 4 --resamples 20 {words}"
    assert main(["uncertainty", *told.split()]) == 0
    return json.loads((folder / "uncertainty.json").read_text()), pd.read_parquet(folder / "predictions.parquet")


@pytest.mark.parametrize("kind", ["graph", "mrpc", "hellaswag"])
def test_figures_equal_those_of_the_saved_predictions(train, kind, tmp_path, capsys):
    content, table = measure(train(kind), tmp_path / "out")
    splits = ["validation", "test"] if kind == "graph" else ["validation"]
    assert list(content["splits"]) == splits
    for split in splits:
        for inputs, name in (("original", split), ("noisy", f"{split}, noisy")):
            found, rows = content["splits"][split][inputs], table[table["split"] == name]
            probabilities, labels = np.stack(rows["probabilities"]), rows["label"].to_numpy()
            is_right = probabilities.argmax(axis=1) == labels
            is_certain = rows["p_value"].to_numpy() < 0.05
            assert found["rows"] == len(rows) == sum(found["counts"].values())
            assert found["accuracy"]["value"] == pytest.approx(is_right.mean())
            assert found["pavpu"]["value"] == pytest.approx((is_right == is_certain).mean())
            assert found["certain"]["value"] == pytest.approx(is_certain.mean())
            for figure, function in (
                ("expected_calibration_error", expected_calibration_error),
                ("area_under_risk_coverage", area_under_risk_coverage),
            ):
                assert found[figure]["value"] == pytest.approx(function(probabilities, labels))
        assert f">{split}, " in (tmp_path / "out" / "report.html").read_text()
    assert "PAvPU" in capsys.readouterr().out
    saved = tmp_path / "out" / "predictions.parquet"
    assert main(["calibrate", str(saved), "--output_dir", str(tmp_path / "c"), "--resamples", "20"]) == 0


def test_equal_seeds_give_equal_figures_and_splits_are_independent(train, tmp_path):
    run = train("graph")
    tables = [measure(run, tmp_path / name, words)[1] for name, words in (("a", ""), ("b", ""), ("c", "--seed 7"))]
    assert tables[0].equals(tables[1])
    assert not tables[0]["p_value"].equals(tables[2]["p_value"])
    content, table = measure(run, tmp_path / "d", "--noise 0 --split test --max_eval_samples 3")
    assert list(content["splits"]) == ["test"]
    assert list(content["splits"]["test"]) == ["original"]
    assert len(table) == 3
    # A split's passes depend neither on other splits nor on the number of reported rows.
    of_test = tables[0][tables[0]["split"] == "test"][:3]
    assert np.allclose(np.stack(table["probabilities"]), np.stack(of_test["probabilities"]), rtol=1e-6)


def test_noise_on_embeddings_has_the_deviation_of_each_feature():
    model = tiny_model("bert").eval()
    embeddings, batch = model.get_input_embeddings(), tiny_batch()
    noise = InputNoise(model, SimpleNamespace(continuous_input=None), amount=2.0, seed=3)
    with noise.measured():
        embeddings(batch["input_ids"])
    plain = embeddings(batch["input_ids"])
    is_real = batch["input_ids"] != embeddings.padding_idx
    with noise.added():
        first = embeddings(batch["input_ids"]) - plain
    with noise.added():
        assert torch.equal(embeddings(batch["input_ids"]) - plain, first)
    assert torch.equal(embeddings(batch["input_ids"]), plain)
    assert not is_real.all()
    assert not first[~is_real].any()
    deviation = plain[is_real].detach().numpy().std(axis=0)
    drawn = torch.randn(first.shape, generator=torch.Generator().manual_seed(3)).numpy()
    expected = 2 * drawn * deviation * is_real[..., None].numpy()
    assert np.allclose(first.detach().numpy(), expected, atol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_noise_on_a_batch_has_the_deviation_of_each_feature(sparse):
    class Model(torch.nn.Module):
        def forward(self, image):
            return image

    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.normal(size=(50, 4)) * [0.1, 1, 10, 0] if sparse else draw.normal(size=(5, 3, 6, 6)))
    kind = SimpleNamespace(continuous_input="image", feature_dim=lambda dims: -1 if sparse else -3)
    given, model = images.to_sparse_csr() if sparse else images, Model()
    noise = InputNoise(model, kind, amount=1.0, seed=0)
    with noise.measured():
        assert torch.equal(model(image=given), images)
    with noise.added():
        added = model(image=given) - images
    dims = 0 if sparse else (0, 2, 3)
    ratio = added.std(dim=dims) / images.std(dim=dims, correction=0)
    assert ratio[images.std(dim=dims) > 0] == pytest.approx(1, abs=0.3)
    assert torch.equal(model(image=images), images)


def test_noise_on_regions_has_the_deviation_of_the_real_ones():
    class Model(torch.nn.Module):
        def forward(self, image, image_mask):
            return image

    regions = torch.randn(3, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 4
    is_real = torch.arange(5) < torch.tensor([5, 2, 1])[:, None]
    batch, model = {"image": regions * is_real[..., None], "image_mask": is_real}, Model()
    noise = InputNoise(model, SimpleNamespace(continuous_input="image"), amount=1.0, seed=0)
    with noise.measured():
        model(**batch)
    with noise.added():
        added = model(**batch) - batch["image"]
    drawn = torch.randn(regions.shape, generator=torch.Generator().manual_seed(0))
    expected = drawn * regions[is_real].std(dim=0, correction=0) * is_real[..., None]
    torch.testing.assert_close(added, expected)


@pytest.mark.parametrize(
    ("kind", "words", "reason"),
    [
        ("dropless", "", "only rates of 0"),
        ("memn2n", "", "memn2n has no dropout"),
        ("stsb", "", "one class per row, and task 'stsb' has none"),
        ("mrpc", "--data_dir .", "--data_dir does not go with"),
        ("graph", "--split dev", "there is no split 'dev': choose among validation, test"),
        ("graph", "--passes 1", "--passes 1 must be at least 2"),
        ("graph", "--level 0", "--level 0"),
    ],
    ids=["dropless", "without", "regression", "data_dir", "split", "passes", "level"],
)
def test_unsupported_runs_and_options_are_refused(train, kind, words, reason, tmp_path, capsys):
    run = train(kind)
    capsys.readouterr()
    asked = f"--run {run} --output_dir {tmp_path / 'out'} --resamples 20 {words}"
    assert main(["uncertainty", *asked.split()]) == USER_ERROR_EXIT_CODE
    (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn: ")]
    assert reason in line
    assert not (tmp_path / "out" / "uncertainty.json").exists()
