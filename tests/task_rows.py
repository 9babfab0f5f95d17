"""Rows in the columns of any task, with random words of the vocabulary of the tests."""

import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from conftest import WORDS

from alignattn.tasks import (
    MultiLabelClassification,
    MultipleChoice,
    QuestionAnswering,
    Task,
    TextClassification,
    TokenClassification,
)


def sentence(length: int) -> list[str]:
    return random.choices(WORDS, k=length)


def text_row(task: TextClassification, number: int) -> dict[str, Any]:
    label = float(number % 5) if task.is_regression else number % task.num_labels
    return {column: " ".join(sentence(4)) for column in task.text_columns} | {task.label_column: label}


def choice_row(task: MultipleChoice, number: int) -> dict[str, Any]:
    endings = [" ".join(sentence(4)) for _ in task.labels]
    columns = task.ending_columns
    row = dict(zip(columns, endings, strict=True)) if len(columns) > 1 else {columns[0]: endings}
    start = {task.start_column: "the man"} if task.start_column else {}
    return {task.context_column: " ".join(sentence(5)), **start, **row, task.label_column: number % task.num_labels}


def tagged_row(task: TokenClassification, number: int) -> dict[str, Any]:
    tokens = sentence(3 + number % 5)
    tags = ["B-ANIMAL" if word in ("cat", "dog", "bird") else "O" for word in tokens]
    return {task.tokens_column: tokens, task.tags_column: tags}


def question_row(task: QuestionAnswering, number: int) -> dict[str, Any]:
    words = sentence(45)
    context, first = " ".join(words), number % 40
    start = len(" ".join(words[:first])) + (first > 0)
    text = " ".join(words[first : first + 2])
    is_answerable = not task.has_unanswerable or number % 3 > 0
    answers = {"text": [text], "answer_start": [start]} if is_answerable else {"text": [], "answer_start": []}
    return {"id": f"q{number}", "question": "who sees the cat", "context": context, "answers": answers}


def labels_row(task: MultiLabelClassification, number: int) -> dict[str, Any]:
    labels = {column: (number >> place) & 1 for place, column in enumerate(task.label_columns)}
    return {column: " ".join(sentence(4)) for column in task.text_columns} | labels


MAKERS: Mapping[str, Callable[[Any, int], dict[str, Any]]] = {
    "text-classification": text_row,
    "multi-label-classification": labels_row,
    "multiple-choice": choice_row,
    "token-classification": tagged_row,
    "question-answering": question_row,
}


def make_rows(task: Task, count: int) -> list[dict[str, Any]]:
    return [MAKERS[task.kind](task, number) for number in range(count)]


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path
