"""A run on questions about images, from files to predictions: folder, card, resuming and refusals."""

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from questions import WIDTH, question_rows, write_features, write_pictures, write_task

import alignattn
from alignattn.cli import main
from alignattn.commands.figure import COMMAND, make_figure
from alignattn.finetuning.examples import read_probabilities
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_folder import read_finished_run, read_run_options

SIZES = "hidden_dim=16 num_attention_heads=2 num_hidden_layers=1 embedding_dim=8 reduction_dim=8 joint_dim=16"
SMALL = f"--disable_tqdm true --use_cpu true --model_config {SIZES} conv_channels=[8,8] dropout=0.1"


@pytest.fixture
def files(tmp_path):
    """A task and its rows."""
    rows = question_rows(write_pictures(tmp_path / "pictures"), times=4)
    # A table's paths are relative to its folder, which is not the current one.
    in_table = [row | {"image": str(Path(row["image"]).relative_to(tmp_path))} for row in rows]
    pd.DataFrame(in_table).to_csv(tmp_path / "rows.csv", index=False)
    task = write_task(tmp_path, sources={"files": {"train": "rows.csv", "validation": "rows.csv"}})
    return {"task": task, "rows": tmp_path / "rows.csv", "picture": rows[0]["image"]}


@pytest.fixture
def finetune(files, tmp_path):
    def run(words="", folder="run"):
        place = ["--task", str(files["task"]), "--output_dir", str(tmp_path / folder), "--model", "mcan"]
        return main(["finetune", *place, *SMALL.split(), *words.split()])

    return run


def test_a_run_its_card_and_its_predictions(files, finetune, tmp_path, monkeypatch, capsys):
    words = "--attention aa-ct --num_train_epochs 30 --learning_rate 0.01 --log_query_key_distance true"
    assert finetune(f"{words} --eval_strategy no --save_strategy no") == 0
    run = tmp_path / "run"
    result = json.loads((run / "results.json").read_text())
    assert result["metrics"]["validation"]["accuracy"] == 1
    assert result["training"]["align_loss"] > 0
    assert result["training"]["query_key_distance"] > 0
    card = (run / "README.md").read_text()
    assert "AutoModelForVisualQuestionAnswering" in card
    assert "yu2019deep" in card
    monkeypatch.chdir(tmp_path)
    loaded = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL)[1], loaded)
    assert loaded["model"].alignattn.config.name == "aa-ct"

    out = tmp_path / "out.csv"
    table = pd.read_csv(files["rows"]).drop(columns="label")
    table.to_csv(tmp_path / "asked.csv", index=False)
    assert main(["predict", "--run", str(run), "--file", str(tmp_path / "asked.csv"), "--output_file", str(out)]) == 0
    told = pd.read_csv(out)
    assert told["prediction"].tolist() == pd.read_csv(files["rows"])["label"].tolist()
    (one,) = alignattn.load_run(run).predict([(files["picture"], "is it red?")])
    assert one["prediction"] == "yes"

    told = ["--text", files["picture"], "is it red?", "--output_file", str(tmp_path / "picture.png")]
    figure = make_figure(COMMAND.parse(["attention", "--run", str(run), *told]))
    assert figure.axes[0].get_title() == "run\nlayer 2 (regions to words), head 0"
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["is", "it", "red", "?"]
    cells = [str(number) for number in range(16)]  # 4 × 4
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == cells
    assert figure.axes[0].images[0].get_array().sum(axis=1).tolist() == pytest.approx([1] * 16)

    check_pictures(run, tmp_path)
    table.assign(image="").to_csv(tmp_path / "blind.csv", index=False)
    table.assign(question=" ").to_csv(tmp_path / "mute.csv", index=False)
    features = write_features(tmp_path / "a.npz")
    refused = [
        (f"predict --run {run} --file {tmp_path / 'blind.csv'} --output_file no.csv", "names no image"),
        (f"predict --run {run} --file {tmp_path / 'mute.csv'} --output_file no.csv", "column 'question' is empty"),
        (f"predict --run {run} --text {features} why?", "does not fit the task, which reads a picture"),
        (f"inspect --model {run} --task {files['task']} --output_dir no", "inspect measures models of texts alone"),
        (f"figure attention --run {run} --text why? --output_file no.png", "needs 2: image, question"),
        (f"figure tsne --run {run} --text a b --output_file no.png", "row 1: "),
        (f"figure tsne --run {run} --layer 3 --output_file no.png", "layers 0 to 2"),
    ]
    capsys.readouterr()
    for words, message in refused:
        assert main(words.split()) == 2
        error = capsys.readouterr().err
        assert message in error
        assert len(error.splitlines()) == 1


def check_pictures(run, tmp_path):
    """Assert that pictures show the last of the three attention calls, from the regions of pictures to words."""
    for words in ("", "--balanced"):
        picture = tmp_path / f"tsne{words}.png"
        figure = make_figure(COMMAND.parse(["tsne", "--run", str(run), "--output_file", str(picture), *words.split()]))
        title = figure.axes[0].get_title()
        assert "layer 2 (regions to words), head 0\n500 of 512 regions, " in title
        assert ("balanced" in figure._suptitle.get_text()) == bool(words)
    picture = ["--layer", "0", "--output_file", str(tmp_path / "attention.png")]
    assert make_figure(COMMAND.parse(["attention", "--run", str(run), *picture])).axes[0].images


def test_answers_that_are_no_class_are_wrong_and_leave_no_calibration(finetune, files, tmp_path, capsys):
    names = ["red", "green", "blue"]
    answered = [{"image": f"pictures/{name}.png", "question": "which color?", "answers": [name] * 10} for name in names]
    for name, rows in (("train", answered * 4), ("validation", [*answered, answered[0] | {"answers": ["mauve"] * 10}])):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"files": {name: f"{name}.jsonl" for name in ("train", "validation")}}
    write_task(tmp_path, labels=names, answers_column="answers", metrics=["vqa_accuracy"], sources=sources)
    assert finetune("--num_train_epochs 1") == 0
    run = tmp_path / "run"
    predicted = pd.read_parquet(run / "predictions.parquet")
    assert predicted["label"].tolist() == [0, 1, 2, -1]
    assert predicted["vqa_accuracy"].iloc[-1] == 0
    assert read_probabilities(run, "validation") is None
    capsys.readouterr()
    for words in (f"uncertainty --run {run} --output_dir", f"figure reliability --run {run} --output_file"):
        assert main([*words.split(), str(tmp_path / "no.png")]) == 2
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("alignattn")]
        assert "class" in line


def test_the_answers_of_the_training_rows_are_the_classes_of_the_finished_run(finetune, files, tmp_path):
    # By frequency: the evaluation rows alone would give another order, and lack a class.
    answers = {"train": ["blue"] * 3 + ["red"] * 2 + ["green"] * 2, "validation": ["red", "red", "green"]}
    for name, listed in answers.items():
        rows = [{"image": f"pictures/{one}.png", "question": "which color?", "answers": [one] * 10} for one in listed]
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    sources = {"files": {name: f"{name}.jsonl" for name in answers}}
    write_task(
        tmp_path, labels=[], answers_column="answers", fewest_answers=2, metrics=["vqa_accuracy"], sources=sources
    )
    assert finetune("--num_train_epochs 1") == 0
    run = tmp_path / "run"
    labels = tuple(json.loads((run / "results.json").read_text())["labels"])
    assert labels == ("blue", "green", "red")
    assert read_finished_run(run, "--run").task.labels == labels
    assert load_run_evaluation(read_run_options(run)).task.labels == labels
    (answer,) = alignattn.load_run(run).predict([(files["picture"], "which color?")])
    assert answer["prediction"] in labels


def test_a_run_resumed_from_a_checkpoint_ends_with_the_same_weights(finetune, tmp_path):
    words = "--attention aa-ct+qvi --num_train_epochs 2 --per_device_train_batch_size 9 --save_steps 3"
    words += " --save_strategy steps --save_total_limit 10 --keep_checkpoints true"
    assert finetune(words, "whole") == 0
    assert finetune(f"{words} --resume_from_checkpoint {tmp_path / 'whole' / 'checkpoint-3'}", "resumed") == 0
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "resumed")]
    assert weights[0] == weights[1]
    # A run that started again from the beginning would save this checkpoint too.
    assert not (tmp_path / "resumed" / "checkpoint-3").exists()


@pytest.mark.parametrize(
    ("field", "value", "words", "message"),
    [
        ("labels", ["red", "green", "yes", "no"], "", "label 'blue' is not a class number from 0 to 3"),
        ("feature_width", WIDTH, "", "does not fit the task, which reads features of width 6"),
        ("metrics", ["vqa_accuracy"], "", "goes with answers_column"),
        ("labels", None, "", "give two or more labels"),
        ("image_size", 0, "", "image_size and fewest_answers must be at least 1"),
        ("image_size", 16, "--model_config pixel_mean=[0,0,0]", "the data determine pixel_mean"),
        ("image_size", 16, "--features .", "--features is for vqa-v2"),
        ("image_size", 16, "--train_file rows.csv --features .", "--features"),
    ],
)
def test_mistakes_are_one_line(field, value, words, message, finetune, tmp_path, capsys):
    files = {"train": "rows.csv", "validation": "rows.csv"}
    write_task(tmp_path, **{"sources": {"files": files}, field: value})
    assert finetune(words) == 2
    error = capsys.readouterr().err
    assert message in error
    assert len(error.splitlines()) == 1


def test_a_model_of_texts_and_images_do_not_go_together(files, tmp_path, capsys):
    place = ["--output_dir", str(tmp_path / "run")]
    assert main(["finetune", "--model", "bert-base-uncased", "--task", str(files["task"]), *place]) == 2
    assert "is visual-question-answering" in capsys.readouterr().err
    assert main(["finetune", "--model", "mcan", "--task", "sst2", *place]) == 2
    assert "--model mcan is for visual-question-answering" in capsys.readouterr().err
