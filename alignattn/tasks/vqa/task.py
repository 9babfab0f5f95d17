"""The record of a task of questions about images."""

from dataclasses import dataclass, replace
from typing import Literal

from alignattn.tasks.task import LabelledTask, Task
from alignattn.utils.errors import AlignAttnError

IMAGE, QUESTION = "image", "question"
"""Columns of a row: the file of a picture or of the features of its regions, and what is asked of it."""

EASY_VQA, VQA_V2 = "easy-vqa", "vqa-v2"
"""Collections that are read by themselves."""

VQA_ACCURACY = "vqa_accuracy"
"""The metric of tasks whose questions several people have answered."""


@dataclass(frozen=True, kw_only=True)
class VisualQuestionAnswering(LabelledTask):
    """Questions about images, whose answers are classes.

    Attributes:
        metrics: Those of classes, and `vqa_accuracy` where each question has several people's answers.
        max_length: The most words of a question; what is beyond is cut.
        labels: The answers; where each question has several people's, those that are frequent among the training rows.
        answers_column: The column of lists of answers, one a person; empty where a row has one answer, its label.
        fewest_answers: Training questions that an answer must be the most frequent of, to be one of the labels.
        collection: `easy-vqa` or `vqa-v2`, which is read without further ado; empty for a task of files.
        image_size: Pixels of a side to which a picture is brought.
        feature_width: Numbers of a region's features, where no picture is read but these; 0 for pictures.
        features: The folder of the files of features of a collection (`--features`).
    """

    kind = "visual-question-answering"
    implementation = "alignattn.tasks.vqa.processor:VqaProcessor"

    metrics: tuple[Literal["accuracy", "macro_f1", "vqa_accuracy"], ...]  # type: ignore[assignment]
    max_length: int = 14
    answers_column: str = ""
    fewest_answers: int = 1
    collection: Literal["", "easy-vqa", "vqa-v2"] = ""
    image_size: int = 64
    feature_width: int = 0
    features: str = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The image and the question."""
        return IMAGE, QUESTION

    @property
    def reads_features(self) -> bool:
        """Whether the features of an image's regions are read, and no picture."""
        return self.feature_width > 0

    def problem(self) -> str | None:
        """Return what is wrong with the sizes or the answers, or as for every labelled task."""
        if self.is_regression and not self.answers_column:
            return "labels must be two answers or more, or answers_column name the column of several people's"
        if (VQA_ACCURACY in self.metrics) != bool(self.answers_column):
            return f"{VQA_ACCURACY} is for several people's answers, and answers_column names their column: give both"
        if min(self.image_size, self.fewest_answers) < 1 or self.feature_width < 0:
            return "image_size and fewest_answers must be at least 1, and feature_width not negative"
        # Whose labels its rows tell has classes all the same.
        return None if self.is_regression else super().problem()


def with_features(task: Task, folder: str | None) -> Task:
    """Return a task whose regions' features are in a folder (`--features`), or the task itself where none is named.

    Raises:
        AlignAttnError: if it reads none.
    """
    if folder is None:
        return task
    if not isinstance(task, VisualQuestionAnswering) or not task.reads_features or not task.collection:
        raise AlignAttnError(f"--features is for vqa-v2, and task {task.name!r} reads none from a folder: leave it out")
    return replace(task, features=folder)
