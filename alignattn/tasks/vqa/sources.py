"""The rows of collections: easy-VQA, which is a package, and VQA-v2, which the user has."""

from pathlib import Path
from typing import Any

import datasets

from alignattn.tasks.task import TEST, TRAIN, VALIDATION, Task
from alignattn.tasks.vqa.images import feature_files
from alignattn.tasks.vqa.task import IMAGE, QUESTION, VisualQuestionAnswering
from alignattn.utils.errors import AlignAttnError, install_extra
from alignattn.utils.files import check_file
from alignattn.utils.json_records import read_json

YEARS = {TRAIN: "train2014", VALIDATION: "val2014"}
"""The parts of VQA-v2 by the names of splits."""


def easy_vqa_rows(task: VisualQuestionAnswering, split: str) -> tuple[datasets.Dataset, str]:
    """Return the rows of a split of easy-VQA and where they are from; raises `AlignAttnError` if it is not there."""
    images, questions, answers = easy_vqa_questions(task, split)
    columns = {IMAGE: images, QUESTION: questions, task.label_column: answers}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of easy-vqa"


def easy_vqa_questions(task: Task, split: str) -> tuple[list[str], list[str], list[str]]:
    """Return the files of pictures, the questions about them and the answers of a split of easy-VQA.

    Raises:
        AlignAttnError: if it is not there.
    """
    try:
        import easy_vqa
    except ImportError as error:
        raise AlignAttnError(
            f"task {task.name!r} is the package easy-vqa, which is not installed: {install_extra('vqa')}"
        ) from error
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
    """Return the rows of a split of VQA-v2 and where they are from.

    Raises:
        AlignAttnError: if a file of it, or the features of an image, are not there.
    """
    if data_dir is None or not task.features:
        raise AlignAttnError(
            f"task {task.name!r} is not on the Hub: give --data_dir DIR with {task.sources.folder}/ and the files of "
            "questions and annotations of visualqa.org in it, and --features DIR with those of regions"
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
            f"--features {task.features} has no file of {len(lost)} image(s) of split {split!r}, such as {lost[0]}"
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
