"""The rows of easy-VQA, which is a package, and of VQA-v2, whose files the user provides."""

from pathlib import Path
from typing import Any

from alignattn.tasks.names import TEST, TRAIN, VALIDATION
from alignattn.tasks.vqa.images import feature_files
from alignattn.utils.errors import AlignAttnError, check_installed, plural
from alignattn.utils.files import read_json
from alignattn.utils.paths import check_file

YEARS = {TRAIN: "train2014", VALIDATION: "val2014"}
"""VQA-v2's names of the splits."""


def easy_vqa_questions(task_name: str, split: str) -> tuple[list[str], list[str], list[str]]:
    """Return the picture, the question and the answer of each row of a split of easy-VQA.

    Raises:
        AlignAttnError: if it is not installed.
    """
    check_installed("easy_vqa", "vqa", f"task {task_name!r}")
    import easy_vqa

    readers = {
        TRAIN: (easy_vqa.get_train_questions, easy_vqa.get_train_image_paths),
        TEST: (easy_vqa.get_test_questions, easy_vqa.get_test_image_paths),
    }
    if split not in readers:
        raise AlignAttnError(f"easy-vqa has no split {split!r} (there: {', '.join(readers)})")
    read_questions, read_paths = readers[split]
    questions, answers, numbers = read_questions()
    paths = read_paths()
    return [paths[number] for number in numbers], questions, answers


def vqa_v2_files(folder: Path, split: str) -> tuple[Path, Path]:
    """Return the files of the questions and of people's answers of a split of VQA-v2."""
    year = YEARS[split]
    return folder / f"v2_OpenEnded_mscoco_{year}_questions.json", folder / f"v2_mscoco_{year}_annotations.json"


def vqa_v2_rows(
    folder: Path, features: str, task_name: str, split: str
) -> tuple[list[str], list[str], list[list[str]]]:
    """Return the file of features, the question and people's answers of each row of a split of VQA-v2.

    Args:
        folder: the folder of the files of visualqa.org.
        features: the folder of the feature files.
        task_name: the name of the task, for messages.
        split: the split.

    Raises:
        AlignAttnError: if a file, or the features of an image, are missing.
    """
    if split not in YEARS:
        raise AlignAttnError(f"task {task_name!r} has no split {split!r} with answers (there: {', '.join(YEARS)})")
    questions, annotations = map(_entries, vqa_v2_files(folder, split), ("questions", "annotations"))
    answers = {entry["question_id"]: [one["answer"] for one in entry["answers"]] for entry in annotations}
    paths = feature_files(features)
    lost = sorted({entry["image_id"] for entry in questions} - paths.keys())
    if lost:
        raise AlignAttnError(
            f"--features {features} has no file for {plural(len(lost), 'image')} of split {split!r}, such as {lost[0]}"
        )
    unanswered = [entry["question_id"] for entry in questions if entry["question_id"] not in answers]
    if unanswered:
        raise AlignAttnError(f"{folder} has no answers to {plural(len(unanswered), 'question')} of split {split!r}")
    images = [paths[entry["image_id"]] for entry in questions]
    given = [answers[entry["question_id"]] for entry in questions]
    return images, [entry["question"] for entry in questions], given


def _entries(path: Path, name: str) -> list[dict[str, Any]]:
    check_file(path, "give the folder that has it as --data_dir")
    entries = read_json(path).get(name)
    if not isinstance(entries, list) or not entries:
        raise AlignAttnError(f"{path} holds no list {name!r}: give the file of visualqa.org")
    return entries
