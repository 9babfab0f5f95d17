"""`alignattn figure`: its pictures compared with the runs, and its messages for mistakes."""

import json
import re
import shutil
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from conftest import WORDS
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from alignattn.attention.distance import sliced_wasserstein
from alignattn.cli import USER_ERROR_EXIT_CODE
from alignattn.cli import main as run_command
from alignattn.commands.figure import FigureOptions, make_figure
from alignattn.finetuning.logs import (
    DISTANCE_NAME,
    curve_panels,
    training_charts,
)
from alignattn.reports.charts import reliability_panel

NUM_LAYERS, NUM_HEADS, MAX_LENGTH = 2, 3, 32
TRAIN_ROWS, EVAL_ROWS, BATCH, EPOCHS = 24, 20, 8, 2
STEPS = EPOCHS * TRAIN_ROWS // BATCH
NUM_ROWS = 5
MAX_SVG = 40_000
SIGNATURES = {".png": b"\x89PNG", ".svg": b"<?xml", ".pdf": b"%PDF"}
SENTENCE = "the red cat sees a small dog"


pytestmark = pytest.mark.usefixtures("one_thread")


def write_pairs(path: Path, count: int, seed: int) -> Path:
    rng = np.random.default_rng(seed)
    rows = [[" ".join(rng.choice(WORDS, rng.integers(3, 9))) for _ in "ab"] for _ in range(count)]
    frame = pd.DataFrame(rows, columns=["a", "b"])
    frame.assign(same=["yes" if "cat" in first else "no" for first in frame["a"]]).to_csv(path, index=False)
    return path


def train(folder: Path, model: Path, data: Path, attention: str, *more: str) -> Path:
    words = ["--model", str(model), "--train_file", str(data / "train.csv"), "--text_columns", "a", "b"]
    words += ["--validation_file", str(data / "validation.csv"), "--label_column", "same", "--attention", attention]
    words += ["--output_dir", str(folder), "--num_train_epochs", str(EPOCHS), "--logging_steps", "2"]
    words += ["--per_device_train_batch_size", str(BATCH), "--learning_rate", "1e-3", "--max_length", str(MAX_LENGTH)]
    words += ["--save_strategy", "no", "--eval_strategy", "epoch", "--disable_tqdm", "true", "--use_cpu", "true"]
    assert run_command(["finetune", *words, *more]) == 0
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figure-data")
    write_pairs(folder / "train.csv", TRAIN_ROWS, seed=0)
    write_pairs(folder / "validation.csv", EVAL_ROWS, seed=1)
    return folder


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_checkpoint: Path, data: Path) -> dict[str, Path]:
    """Runs by name; all but the last log the distance between queries and keys."""
    root = tmp_path_factory.mktemp("figure-runs")
    logs = ("--log_query_key_distance", "true")
    return {
        "soft": train(root / "soft", tiny_checkpoint, data, "soft", *logs),
        "aa-ct": train(root / "aa-ct", tiny_checkpoint, data, "aa-ct", *logs),
        "silent": train(root / "silent", tiny_checkpoint, data, "aa-ct"),
    }


def draw(kind: str, runs: dict[str, Path], output: Path, of: tuple[str, ...] = ("soft", "aa-ct"), **options: object):
    runs_of = [str(runs[name]) for name in of]
    return make_figure(FigureOptions(kind=kind, run=runs_of, output_file=str(output), **options))


def panels_of(figure):
    """The axes with a title: the others are colour bars."""
    return [axes for axes in figure.axes if axes.get_title()]


def legend_of(figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def plain_layers(folder: Path, *texts: str | list[str]):
    """Queries and keys `[B, H, n, d]` of each layer from plain transformers, the attention weights, and the mask."""
    model = AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager").eval()
    batch = AutoTokenizer.from_pretrained(folder)(*texts, return_tensors="pt", padding=True)
    features: dict[str, list[torch.Tensor]] = {"query": [], "key": []}
    for name, module in model.named_modules():
        role = name.rpartition(".")[2]
        if role in features:
            module.register_forward_hook(
                lambda _, __, out, role=role: features[role].append(out.unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2))
            )
    with torch.no_grad():
        attentions = model(**batch, output_attentions=True).attentions
    return features["query"], features["key"], attentions, batch["attention_mask"].bool()


def pairs(data: Path, count: int) -> tuple[list[str], list[str]]:
    frame = pd.read_csv(data / "validation.csv").head(count)
    return list(frame["a"]), list(frame["b"])


def history(folder: Path) -> list[dict[str, float]]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


class TestTsne:
    def test_every_real_token_is_a_query_and_a_key(self, runs: dict[str, Path], data: Path, tmp_path: Path) -> None:
        figure = draw("tsne", runs, tmp_path / "a.png", max_eval_samples=NUM_ROWS)
        tokenizer = AutoTokenizer.from_pretrained(runs["soft"])
        num_tokens = sum(len(ids) for ids in tokenizer(*pairs(data, NUM_ROWS))["input_ids"])
        panels = panels_of(figure)
        assert [panel.get_title().split("\n")[0] for panel in panels] == ["soft", "aa-ct"]
        for panel in panels:
            assert [len(cloud.get_offsets()) for cloud in panel.collections] == [num_tokens, num_tokens]
            assert f"layer {NUM_LAYERS - 1}, head 0, {num_tokens} tokens" in panel.get_title()
            assert (panel.get_xlabel(), panel.get_ylabel()) == ("t-SNE dimension 1", "t-SNE dimension 2")
            queries, keys = panel.collections
            assert not np.allclose(queries.get_facecolor(), keys.get_facecolor())
            assert len(queries.get_paths()[0].vertices) != len(keys.get_paths()[0].vertices)
        assert legend_of(figure) == ["queries", "keys"]

    def test_the_distance_in_the_title_is_that_of_the_chosen_head(self, runs: dict[str, Path], tmp_path: Path) -> None:
        figure = draw("tsne", runs, tmp_path / "a.png", layer=0, head=2, text=[SENTENCE])
        for name, panel in zip(("soft", "aa-ct"), panels_of(figure), strict=True):
            query, key, _, mask = plain_layers(runs[name], SENTENCE)
            expected = sliced_wasserstein(query[0], key[0], mask)[2]
            assert f"layer 0, head 2, {mask.sum()} tokens" in panel.get_title()
            shown = float(re.search(r"query-key distance ([\d.]+)", panel.get_title())[1])
            assert shown == pytest.approx(float(expected), abs=6e-4)

    def test_balanced_queries_and_keys_have_one_mean(self, runs: dict[str, Path], tmp_path: Path) -> None:
        options = {"of": ("soft",), "max_eval_samples": NUM_ROWS}
        titles = []
        for balanced in (False, True):
            figure = draw("tsne", runs, tmp_path / f"{balanced}.png", balanced=balanced, **options)
            assert ("balanced" in figure._suptitle.get_text()) == balanced
            titles.append(panels_of(figure)[0].get_title())
        shown = [float(re.search(r"query-key distance ([\d.]+)", title)[1]) for title in titles]
        assert shown[1] < shown[0] / 2
        # The drawn basis does not change the measured distances.
        assert titles[0].splitlines()[-1] == titles[1].splitlines()[-1]
        assert re.fullmatch(r"over spread: as is [\d.]+, balanced [\d.]+, floor [\d.]+", titles[0].splitlines()[-1])

    def test_max_tokens_are_sampled_by_the_seed(self, runs: dict[str, Path], tmp_path: Path) -> None:
        clouds = []
        for index, seed in enumerate((3, 3, 4)):
            figure = draw("tsne", runs, tmp_path / f"{index}.png", of=("soft",), max_tokens=7, seed=seed)
            queries, keys = panels_of(figure)[0].collections
            clouds.append(np.concatenate([queries.get_offsets(), keys.get_offsets()]))
            assert len(clouds[-1]) == 14
        np.testing.assert_array_equal(clouds[0], clouds[1])
        assert not np.allclose(clouds[0], clouds[2])


class TestAttention:
    def test_a_map_holds_the_weights_of_plain_transformers(self, runs: dict[str, Path], tmp_path: Path) -> None:
        figure = draw("attention", runs, tmp_path / "a.svg", layer=0, head=1, text=[SENTENCE])
        panels = panels_of(figure)
        assert [panel.get_title() for panel in panels] == ["soft\nlayer 0, head 1", "aa-ct\nlayer 0, head 1"]
        tokens = ["[CLS]", *SENTENCE.split(), "[SEP]"]
        for name, panel in zip(("soft", "aa-ct"), panels, strict=True):
            for labels in (panel.get_xticklabels(), panel.get_yticklabels()):
                assert [label.get_text() for label in labels] == tokens
            assert panel.get_xlabel().startswith("key")
            assert panel.get_ylabel().startswith("query")
            expected = plain_layers(runs[name], SENTENCE)[2][0][0, 1]
            np.testing.assert_allclose(panel.images[0].get_array(), expected, atol=1e-5)
        assert panels[0].images[0].get_clim() == panels[1].images[0].get_clim()
        assert {axes.get_ylabel() for axes in figure.axes if not axes.get_title()} == {"attention weight"}

    def test_by_default_the_first_evaluation_row_is_shown(
        self, runs: dict[str, Path], data: Path, tmp_path: Path
    ) -> None:
        (panel,) = panels_of(draw("attention", runs, tmp_path / "a.png", of=("aa-ct",)))
        (first,), (second,) = pairs(data, 1)
        tokens = ["[CLS]", *first.split(), "[SEP]", *second.split(), "[SEP]"]
        assert [label.get_text() for label in panel.get_yticklabels()] == tokens


def test_reliability_diagrams_count_all_predictions(runs: dict[str, Path], tmp_path: Path) -> None:
    figure = draw("reliability", runs, tmp_path / "a.pdf")
    for name, panel, strip in zip(("soft", "aa-ct"), figure.axes[:2], figure.axes[2:], strict=True):
        table = pd.read_parquet(runs[name] / "predictions.parquet")
        confidence = np.stack(table["probabilities"]).max(axis=1)
        gaps = (confidence - (table["prediction"] == table["label"])).groupby(np.ceil(confidence * 10)).sum()
        error = 100 * gaps.abs().sum() / len(table)
        title = f"{name}\nvalidation, {EVAL_ROWS} rows, as saved: ECE {error:.1f} %"
        assert panel.get_title() == title
        assert sum(bar.get_height() for bar in strip.patches) == EVAL_ROWS
        assert strip.get_xlabel() == "confidence"
    assert figure.axes[0].get_ylabel() == "accuracy"


def test_the_distance_is_that_of_the_evaluation_rows_before_and_after_training(
    runs: dict[str, Path], data: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    panels = {panel.get_title(): panel for panel in panels_of(draw("curves", runs, tmp_path / "a.png"))}
    panel = panels[DISTANCE_NAME]
    assert panel.get_xlabel() == "training step"
    assert "distance" in panel.get_ylabel()
    assert len(panel.lines) == 2
    for name, line in zip(("soft", "aa-ct"), panel.lines, strict=True):
        assert line.get_label() == name
        assert list(line.get_xdata()) == [0, *range(2, STEPS + 1, 2)]
        for folder, shown in ((tiny_checkpoint, line.get_ydata()[0]), (runs[name], line.get_ydata()[-1])):
            query, key, _, mask = plain_layers(folder, *pairs(data, EVAL_ROWS))
            by_layer = [sliced_wasserstein(q, k, mask).mean() for q, k in zip(query, key, strict=True)]
            assert shown == pytest.approx(float(torch.stack(by_layer).mean()), rel=1e-4)


def test_logging_the_distance_leaves_the_run_bitwise_the_same(runs: dict[str, Path]) -> None:
    logging, silent = (load_file(runs[name] / "model.safetensors") for name in ("aa-ct", "silent"))
    assert logging.keys() == silent.keys()
    assert all(torch.equal(logging[name], silent[name]) for name in silent)
    entries = [[entry for entry in history(runs[name]) if "loss" in entry] for name in ("aa-ct", "silent")]
    assert all(DISTANCE_NAME in entry for entry in entries[0])
    assert [{k: v for k, v in entry.items() if not k.startswith(DISTANCE_NAME)} for entry in entries[0]] == entries[1]


class TestCurves:
    def test_a_line_shows_the_logged_values(self, runs: dict[str, Path], tmp_path: Path) -> None:
        figure = draw("curves", runs, tmp_path / "a.png")
        panels = {panel.get_title(): panel for panel in panels_of(figure)}
        assert {"loss", "task_loss", "align_loss", "critic_gap", DISTANCE_NAME, "eval_loss", "eval_accuracy"} <= {
            *panels
        }
        assert not {"eval_runtime", "step", "learning_rate", "train_runtime"} & {*panels}
        for quantity, panel in panels.items():
            assert panel.get_xlabel() == "training step"
            assert panel.get_ylabel()
            for name, line in zip(("soft", "aa-ct"), panel.lines, strict=True):
                logged = quantity
                if (name, quantity) == ("soft", "task_loss"):
                    logged = "loss"
                expected = [(entry["step"], entry[logged]) for entry in history(runs[name]) if logged in entry]
                assert list(zip(*line.get_data(), strict=True)) == expected
        assert legend_of(figure) == ["soft", "aa-ct"]


@pytest.mark.parametrize("ending", SIGNATURES)
def test_the_ending_chooses_the_format(ending: str, runs: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / f"picture{ending}"
    words = ["figure", "attention", "--run", *map(str, (runs["soft"], runs["aa-ct"])), "--output_file", str(path)]
    assert run_command(words) == 0
    content = path.read_bytes()
    assert content.startswith(SIGNATURES[ending])
    if ending == ".svg":
        texts = [element.text for element in ElementTree.fromstring(content).iter() if element.text]
        assert {"[CLS]", "attention weight"} <= {*texts}


class TestCharts:
    def test_curves_are_small_elements_with_their_points(self, runs: dict[str, Path]) -> None:
        charts = training_charts(history(runs["aa-ct"]))
        assert {"loss", "critic_gap"} <= charts.keys()
        assert len("".join(charts.values())) < MAX_SVG
        for name, chart in charts.items():
            root = ElementTree.fromstring(chart)
            assert root.get("aria-label") == name
            assert "training step" in [element.text for element in root.iter()]
        assert charts == training_charts(history(runs["aa-ct"]))

    def test_the_axis_says_what_is_best(self) -> None:
        names = ("eval_accuracy", "eval_mse", "eval_validation_matched_loss", "eval_loss")
        panels = curve_panels({"run": [{"step": 1, name: 0.5} for name in names]})
        assert {panel.title: panel.y_label for panel in panels} == {
            "eval_accuracy": "score (1: perfect)",
            "eval_mse": "error (0: perfect)",
            "eval_validation_matched_loss": "task loss, evaluation rows",
            "eval_loss": "task loss, evaluation rows",
        }

    @pytest.mark.parametrize(
        "log_history", [[], [{"step": 3, "train_runtime": 2.0}], [{"loss": float("nan"), "step": 1}]]
    )
    def test_nothing_logged_is_no_chart(self, log_history: list[dict[str, float]]) -> None:
        assert training_charts(log_history) == {}

    def test_the_reliability_title_shows_the_error(self) -> None:
        probabilities = np.array([[0.9, 0.1]] * 4 + [[0.3, 0.7]] * 4)
        panel = reliability_panel(probabilities, np.array([0, 0, 0, 1, 1, 1, 0, 0]))
        # (4 |0.9 - 0.75| + 4 |0.7 - 0.5|) / 8
        assert panel.title.endswith("ECE 17.5 %")


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run_command(["figure", *words]) == USER_ERROR_EXIT_CODE
    error = capsys.readouterr().err.strip()
    lines = [line for line in error.splitlines() if line.startswith("alignattn:")]
    assert lines == [error.splitlines()[-1]]
    return lines[0]


class TestMistakes:
    @pytest.mark.parametrize(
        ("kind", "options", "message"),
        [
            (
                "tsn",
                [],
                "KIND 'tsn': choose one of tsne, attention",
            ),
            ("tsne", ["--layer", "2"], "--layer 2: soft has layers 0 to 1"),
            ("attention", ["--head", "3"], "--head 3: soft has heads 0 to 2"),
            ("attention", ["--text", " "], "--text needs one or two texts"),
            ("nodes", ["--layer", "0"], "has no graph"),
            ("nodes", ["--head", "0", "--balanced", "true"], "--balanced needs tsne"),
            ("tsne", ["--text", "a", "--max_eval_samples", "3"], "--text does not go with --max_eval_samples"),
            ("attention", ["--text", "a " * 100], "the text has 102 tokens"),
            ("curves", ["--layer", "1"], "--layer needs tsne or nodes or attention"),
            ("reliability", ["--split", "test"], "--split test:"),
        ],
    )
    def test_options(
        self,
        kind: str,
        options: list[str],
        message: str,
        runs: dict[str, Path],
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        output = tmp_path / "picture.png"
        words = [kind, "--run", str(runs["soft"]), "--output_file", str(output), *options]
        assert message in refused(capsys, *words)
        assert not output.exists()

    def test_output(self, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        words = ["curves", "--run", str(runs["soft"]), "--output_file"]
        assert "must end in .png, .svg, .pdf" in refused(capsys, *words, str(tmp_path / "picture.gif"))
        there = tmp_path / "picture.png"
        there.write_text("mine")
        assert f"--output_file {there} already exists" in refused(capsys, *words, str(there))
        assert there.read_text() == "mine"

    def test_folders(self, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        output = ["--output_file", str(tmp_path / "picture.png")]
        assert "is not a run folder" in refused(capsys, "tsne", "--run", str(tmp_path), *output)
        twice = str(runs["soft"])
        assert "lists a folder twice" in refused(capsys, "curves", "--run", twice, twice, *output)

    def test_missing_and_damaged_files_of_a_run(
        self, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        output = ["--output_file", str(tmp_path / "picture.png")]
        bare = tmp_path / "bare"
        bare.mkdir()
        shutil.copy(runs["soft"] / "config.yaml", bare)
        assert "has no trainer_state.json" in refused(capsys, "curves", "--run", str(bare), *output)
        assert "has no predictions.parquet" in refused(capsys, "reliability", "--run", str(bare), *output)
        (bare / "trainer_state.json").write_text('{"log_history": [')
        assert "is damaged" in refused(capsys, "curves", "--run", str(bare), *output)
        pd.DataFrame({"split": ["validation"], "label": [0.5]}).to_parquet(bare / "predictions.parquet")
        assert f"{bare} has no probabilities" in refused(capsys, "reliability", "--run", str(bare), *output)

    def test_runs_share_their_rows_by_content(
        self, runs: dict[str, Path], data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        other = shutil.copytree(runs["aa-ct"], tmp_path / "other")
        moved = shutil.copy(data / "validation.csv", tmp_path / "moved.csv")
        config = (other / "config.yaml").read_text().replace(str(data / "validation.csv"), str(moved))
        (other / "config.yaml").write_text(config)
        words = ["attention", "--run", str(runs["soft"]), str(other), "--output_file"]
        assert run_command(["figure", *words, str(tmp_path / "same.png")]) == 0
        digests = json.loads((other / "data.json").read_text())
        (other / "data.json").write_text(json.dumps(digests | {"validation_file": "another"}))
        words.append(str(tmp_path / "picture.png"))
        assert "have other evaluation rows: give runs with the same ones, or --text" in refused(capsys, *words)
        assert run_command(["figure", *words, "--text", SENTENCE]) == 0

    def test_more_texts_than_a_row_has(
        self, runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        single = shutil.copytree(runs["aa-ct"], tmp_path / "single")
        config = (single / "config.yaml").read_text()
        (single / "config.yaml").write_text(config.replace("text_columns:\n- a\n- b\n", "text_columns:\n- a\n"))
        words = ["attention", "--output_file", str(tmp_path / "picture.png"), "--text", SENTENCE, SENTENCE, "--run"]
        assert "has one text per row" in refused(capsys, *words, str(single))
        assert run_command(["figure", *words, str(runs["aa-ct"])]) == 0
