"""Rows of questions about images: how they are read, their batches, and which rows are refused."""

import json
import sys
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
from questions import ANSWERS, SIDE, WIDTH, question_rows, write_features, write_pictures, write_task
from scipy.special import expit

from alignattn.models.words import build_tokenizer
from alignattn.tasks.definitions import get_task
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task import EncodedSplit, TaskOptions
from alignattn.tasks.visual_question_answering import with_features
from alignattn.tasks.vqa.images import colour_moments, picture_problem, read_features, read_picture
from alignattn.utils.errors import AlignAttnError


@pytest.fixture
def rows(tmp_path):
    return question_rows(write_pictures(tmp_path / "pictures"))


def problems_of(task, rows):
    return task.row_problems(datasets.Dataset.from_list(rows), may_be_empty=False)


def batch_of(task, dataset, tokenizer):
    options = TaskOptions(max_length=14)
    split = EncodedSplit(dataset, task.encode(dataset, tokenizer, options), options)
    return task.collator(tokenizer, split)(list(split.encoded))


def test_a_batch_has_questions_and_pictures(rows, tmp_path):
    task = get_task(str(write_task(tmp_path)))
    dataset = task.drop_unlabelled(datasets.Dataset.from_list(rows), "here")
    tokenizer = build_tokenizer(dataset["question"][:])
    batch = batch_of(task, dataset, tokenizer)
    assert list(batch["image"].shape) == [9, 3, SIDE, SIDE]
    assert batch["labels"].tolist() == [ANSWERS.index(row["label"]) for row in rows]
    assert batch["attention_mask"].sum(dim=1).tolist() == [5] * 3 + [4] * 3 + [8] * 3
    torch.testing.assert_close(batch["image"][0, :, 0, 0], torch.tensor([220, 30, 30]) / 255)
    assert read_picture(rows[0]["image"], 8).shape == (3, 8, 8)
    mean, deviation = colour_moments([rows[0]["image"], rows[1]["image"]], SIDE)
    assert mean == pytest.approx([125 / 255, 115 / 255, 35 / 255])
    assert deviation == pytest.approx([95 / 255, 85 / 255, 5 / 255])


def test_a_picture_that_was_overwritten_is_read_again(rows):
    first, other = rows[0]["image"], rows[1]["image"]
    before, wanted = read_picture(first, SIDE), read_picture(other, SIDE)
    assert not torch.equal(before, wanted)
    Path(other).replace(first)
    assert torch.equal(read_picture(first, SIDE), wanted)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"image": ""}, "column 'image' names no image"),
        ({"image": None}, "column 'image' names no image"),
        ({"image": "nowhere.png"}, "there is no image nowhere.png"),
        ({"image": "broken.png"}, "cannot be read"),
        ({"image": "regions.npz"}, "does not fit the task, which reads a picture"),
        ({"question": " "}, "column 'question' is empty"),
        ({"label": "purple"}, "label 'purple' is not a class number from 0 to 4 (red, green, blue, yes, no)"),
    ],
)
def test_the_problem_of_a_bad_row_is_reported(changed, problem, rows, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.png").write_text("no picture")
    write_features(tmp_path / "regions.npz")
    found = problems_of(get_task(str(write_task(tmp_path))), [rows[0], rows[1] | changed])
    assert list(found) == [1]
    assert problem in found[1]


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        ({"x": np.array([{}], dtype=object)}, "holds a pickle, which is never loaded"),
        ({"x": np.zeros((3, 5), np.float32)}, f"holds float32 [3, 5], and features are floats [boxes, {WIDTH}]"),
        ({"regions": np.zeros((3, WIDTH), np.float32)}, "no array x or features, but regions"),
        ({"x": np.zeros((3, WIDTH), np.int64)}, "holds int64"),
        ({"x": np.zeros((0, WIDTH), np.float32)}, "holds float32 [0, 6]"),
    ],
)
def test_bad_features_are_recognised_by_their_header(arrays, problem, tmp_path):
    task = get_task(str(write_task(tmp_path, feature_width=WIDTH)))
    bad = str(write_features(tmp_path / "bad.npz", **arrays))
    good = str(write_features(tmp_path / "good.npz"))
    rows = [{"image": path, "question": "what is it?", "label": "yes"} for path in (good, bad)]
    (message,) = problems_of(task, rows).values()
    assert problem in message
    if "holds int64" not in problem and "[0" not in problem:
        with pytest.raises(AlignAttnError):
            read_features(bad, WIDTH)


def test_features_are_read_in_either_orientation(tmp_path):
    made = np.random.default_rng(0).random((3, WIDTH)).astype(np.float32)
    for name, array in (("x", made.T), ("features", made)):
        torch.testing.assert_close(
            read_features(str(write_features(tmp_path / "a.npz", **{name: array})), WIDTH), torch.tensor(made)
        )
    np.save(tmp_path / "a.npy", made)
    torch.testing.assert_close(read_features(str(tmp_path / "a.npy"), WIDTH), torch.tensor(made))


def write_vqa_v2(folder, answers):
    """Write the files of VQA-v2 with one image and a question per list of answers, the same for both splits."""
    (folder / "vqav2").mkdir(parents=True)
    for year in ("train2014", "val2014"):
        questions = [
            {"image_id": 7, "question": "what is it?", "question_id": number} for number in range(len(answers))
        ]
        entries = [
            {
                "question_id": number,
                "answers": [{"answer": text, "answer_id": index} for index, text in enumerate(given)],
            }
            for number, given in enumerate(answers)
        ]
        place = folder / "vqav2"
        (place / f"v2_OpenEnded_mscoco_{year}_questions.json").write_text(json.dumps({"questions": questions}))
        (place / f"v2_mscoco_{year}_annotations.json").write_text(json.dumps({"annotations": entries}))


def test_vqa_v2_is_read_with_its_answers_and_scored_by_the_official_rule(tmp_path):
    given = [["Red"] * 8 + ["dark red"] * 2, ["red"] * 5 + ["blue"] * 5, ["blue."] * 10, ["mauve"] * 10]
    write_vqa_v2(tmp_path / "data", given)
    write_features(tmp_path / "regions" / "train2014" / "COCO_train2014_000000000007.jpg.npz", width=2048)
    task = with_features(get_task("vqa-v2"), str(tmp_path / "regions"))
    object.__setattr__(task, "fewest_answers", 1)
    loaded = load_rows(task, data_dir=tmp_path / "data")
    assert loaded.task.labels == ("red", "blue", "mauve")
    assert loaded.train["label"][:] == [0, 0, 1, 2]
    task, rows = loaded.task, loaded.evaluation["validation"]
    tokenizer = build_tokenizer(rows["question"][:])
    batch = batch_of(loaded.task, rows, tokenizer)
    assert list(batch["image"].shape) == [4, 3, 2048]
    assert batch["image_mask"].all()
    assert batch["answer_ids"].tolist() == [[0, 0], [0, 1], [1, 0], [2, 0]]
    assert batch["answer_scores"].tolist() == [[1, 0], [1, 1], [1, 0], [1, 0]]
    options = TaskOptions(max_length=14)
    split = EncodedSplit(rows, rows, options)
    logits = np.eye(3)[[0, 1, 1, 0]]
    found = task.evaluate(split, logits, np.array(rows["label"][:]))
    # All people wrote "blue.", so "blue" matches none of them.
    assert found.predictions["vqa_accuracy"].to_pylist() == [1, 1, 0, 0]
    assert found.metrics == {"vqa_accuracy": 0.5, "accuracy": 0.5}


@pytest.mark.parametrize(
    ("task", "folder", "message"),
    [
        ("vqa-v2", "empty", "contains no features"),
        ("easy-vqa", "empty", "--features is for vqa-v2"),
        ("vqa-v2", None, "give --data_dir DIR whose folder vqav2"),
    ],
)
def test_wrong_or_missing_sources_of_vqa_v2_are_refused(task, folder, message, tmp_path):
    (tmp_path / "empty").mkdir()
    write_vqa_v2(tmp_path / "data", [["red"] * 10])
    with pytest.raises(AlignAttnError, match=message):
        load_rows(with_features(get_task(task), folder and str(tmp_path / folder)), data_dir=tmp_path / "data")


def test_easy_vqa_is_complete():
    rows = load_rows(get_task("easy-vqa"))
    assert (len(rows.train), len(rows.evaluation["test"])) == (38575, 9673)
    assert len(rows.train.unique("image")) == 4000


def test_without_pillow_a_picture_is_refused_with_what_to_install(rows, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(AlignAttnError, match=r"alignattn\[images\]"):
        picture_problem(rows[0]["image"])


def test_passes_average_the_probabilities_of_the_loss(tmp_path):
    # The passes' softmax favours class 0, their sigmoid class 1.
    passes = np.array([[[-5.0, -8.0]], [[0.0, 1.0]]])
    answered = {"answers_column": "answers", "metrics": ["vqa_accuracy"]}
    for fields, best in (({}, 0), (answered, 1)):
        task = get_task(str(write_task(tmp_path, labels=["a", "b"], **fields)))
        mean = task.average_outputs(passes)
        assert mean.argmax(axis=1) == [best]
    np.testing.assert_allclose(expit(mean), expit(passes).mean(axis=0))
    np.testing.assert_allclose(task.average_outputs(passes[:1]), passes[0])
    assert np.isfinite(task.average_outputs(1000 * passes)).all()
