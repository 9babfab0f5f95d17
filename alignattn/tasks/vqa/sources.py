"""The rows of easy-VQA, which is a package, and of VQA-v2, whose files the user provides."""

from pathlib import Path
from typing import Any

import datasets

from alignattn.tasks.task import TEST, TRAIN, VALIDATION, Task
from alignattn.tasks.task_types import IMAGE, QUESTION, VisualQuestionAnswering
from alignattn.tasks.vqa.images import feature_files
from alignattn.utils.errors import AlignAttnError, check_installed
from alignattn.utils.files import check_file
from alignattn.utils.json_records import read_json

YEARS = {TRAIN: "train2014", VALIDATION: "val2014"}
"""VQA-v2's names of the splits."""


def easy_vqa_rows(task: VisualQuestionAnswering, split: str) -> tuple[datasets.Dataset, str]:
    """Return the rows of a split of easy-VQA and their origin; raises `AlignAttnError` if it is not installed."""
    images, questions, answers = easy_vqa_questions(task, split)
    columns = {IMAGE: images, QUESTION: questions, task.label_column: answers}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of easy-vqa"


def easy_vqa_questions(task: Task, split: str) -> tuple[list[str], list[str], list[str]]:
    """Return the picture, the question and the answer of each row of a split of easy-VQA.

    Raises:
        AlignAttnError: if it is not installed.
    """
    check_installed("easy_vqa", "vqa", f"task {task.name!r}")
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


def vqa_v2_rows(task: VisualQuestionAnswering, split: str, data_dir: str | Path | None) -> tuple[datasets.Dataset, str]:
    """Return the rows of a split of VQA-v2 and their origin.

    Raises:
        AlignAttnError: if a file, or the features of an image, are missing.
    """
    if data_dir is None or not task.features:
        raise AlignAttnError(
            f"task {task.name!r} is not on the Hub: give --data_dir DIR whose folder {task.sources.folder} has the "
            "question and annotation files of visualqa.org, and --features DIR with files of region features"
        )
    if split not in YEARS:
        raise AlignAttnError(f"task {task.name!r} has no split {split!r} with answers (there: {', '.join(YEARS)})")
    folder, year = Path(data_dir) / task.sources.folder, YEARS[split]
    questions = _entries(folder / f"v2_OpenEnded_mscoco_{year}_questions.json", "questions")
    annotations = _entries(folder / f"v2_mscoco_{year}_annotations.json", "annotations")
    answers = {entry["question_id"]: [one["answer"] for one in entry["answers"]] for entry in annotations}
    paths = feature_files(task.features)
    lost = sorted({entry["image_id"] for entry in questions} - paths.keys())
    if lost:
        raise AlignAttnError(
            f"--features {task.features} has no file for {len(lost)} image(s) of split {split!r}, such as {lost[0]}"
        )
    unanswered = [entry["question_id"] for entry in questions if entry["question_id"] not in answers]
    if unanswered:
        raise AlignAttnError(f"{folder} has no answers to {len(unanswered)} question(s) of split {split!r}")
    columns = {
        IMAGE: [paths[entry["image_id"]] for entry in questions],
        QUESTION: [entry["question"] for entry in questions],
        task.answers_column: [answers[entry["question_id"]] for entry in questions],
    }
    return datasets.Dataset.from_dict(columns), f"split {split!r} of {folder}"


def _entries(path: Path, name: str) -> list[dict[str, Any]]:
    check_file(path, "give the folder that has it as --data_dir")
    entries = read_json(path).get(name)
    if not isinstance(entries, list) or not entries:
        raise AlignAttnError(f"{path} holds no list {name!r}: give the file of visualqa.org")
    return entries
