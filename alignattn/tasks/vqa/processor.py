"""Questions about images, whose answers are classes."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    AutoModelForVisualQuestionAnswering,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.labelled import PREDICTION, LabelledProcessor
from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    by_row,
    check_max_length,
    encode_rows,
    name_classes,
    text_problem,
)
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.task_types import EASY_VQA, IMAGE, QUESTION, VQA_ACCURACY, VQA_V2, VisualQuestionAnswering
from alignattn.tasks.vqa.images import (
    WHITE,
    image_problem,
    is_of_features,
    read_features,
    read_picture,
)
from alignattn.tasks.vqa.official import answer_scores, plain_answer, vqa_accuracy
from alignattn.tasks.vqa.sources import easy_vqa_rows, vqa_v2_rows
from alignattn.utils.errors import AlignAttnError, shown

ANSWER_IDS, ANSWER_SCORES = "answer_ids", "answer_scores"
"""The people's answers as class numbers, and the accuracy of each."""


class VqaProcessor(LabelledProcessor[VisualQuestionAnswering]):
    """One question and one image per row; the collator loads the image."""

    auto_class = AutoModelForVisualQuestionAnswering
    reads_only_texts = False
    continuous_input = IMAGE
    file_column = IMAGE

    @property
    def can_smooth_labels(self) -> bool:
        """Whether a question has one correct answer; with several people's answers, each answer has a score."""
        return not self.task.answers_column

    @property
    def supports_r_drop(self) -> bool:
        """Whether the loss has one class per row; with several people's answers, each answer has its own loss."""
        return not self.task.answers_column

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a collection; None if they are in files, such as easy-VQA's in a `--data_dir`."""
        if self.task.collection == VQA_V2:
            return vqa_v2_rows(self.task, name, data_dir)
        if self.task.collection == EASY_VQA and data_dir is None:
            return easy_vqa_rows(self.task, name)
        return None

    def columns(self) -> list[str]:
        """Return the columns of the image, the question and the answer or the answers."""
        return [*self.task.input_columns, self.task.answers_column or self.task.label_column]

    def infer_labels(self, dataset: datasets.Dataset, origin: str) -> VisualQuestionAnswering:
        """Return the task with the frequent answers of its training rows, the most frequent first."""
        task = self.task
        if task.labels:
            return task
        # In a tie of a row's answers, the first counts.
        rows = (answers for answers in dataset[task.answers_column][:] if _is_answered(answers))
        counts = Counter(Counter(map(plain_answer, answers)).most_common(1)[0][0] for answers in rows)
        frequent = [answer for answer, count in counts.items() if answer and count >= task.fewest_answers]
        if len(frequent) < 2:
            raise AlignAttnError(
                f"{origin} has {len(frequent)} answer(s) to {task.fewest_answers} or more questions: give at least two"
            )
        return replace(task, labels=tuple(sorted(frequent, key=lambda answer: (-counts[answer], answer))))

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a label: the most frequent answer that is a class, or -1."""
        if not self.task.answers_column:
            return super().normalise(dataset)
        number = {label: index for index, label in enumerate(self.task.labels)}
        labels = [_best_known(answers, number) for answers in dataset[self.task.answers_column][:]]
        return dataset.add_column(self.task.label_column, np.array(labels, dtype=np.int64))

    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question, an image or a list of answers, or with a label that is not the task's."""
        problems = super().problems(dataset, may_be_empty=may_be_empty)
        if column := self.task.answers_column:
            for index, answers in enumerate(dataset[column][:]):
                if not _is_answered(answers):
                    problems[index] = f"column {column!r} is not a list of answers ({shown(answers)})"
        return problems

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question or a readable image."""
        images = dataset[IMAGE][:]
        paths = [image if isinstance(image, str) else "" for image in images]
        known = {path: image_problem(path, self.task) for path in set(paths) if path}
        return by_row(
            text_problem(f"column {QUESTION!r}", question)
            or (known[path] if path else f"column {IMAGE!r} names no image ({shown(image)})")
            for path, image, question in zip(paths, images, dataset[QUESTION][:], strict=True)
        )

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label; with several people's answers all: unlabelled ones count as wrong."""
        return dataset if self.task.answers_column else super().drop_unlabelled(dataset, origin)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the answers."""
        name_classes(config, self.task.labels)

    def encode(
        self, dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, options: TaskOptions
    ) -> datasets.Dataset:
        """Return `input_ids`, `attention_mask`, the image's file, `label`, and several people's answers if any."""
        check_max_length(self.task, tokenizer, options.max_length, 1)
        return encode_rows(_encode_batch, self.task, dataset, tokenizer, options)

    def collator(
        self, tokenizer: PreTrainedTokenizerBase, split: EncodedSplit, *, is_training: bool = False
    ) -> "ImageCollator":
        """Return a collator that reads the images."""
        return ImageCollator(tokenizer, self.task.image_size, self.task.feature_width)

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits as classes, and with several people's answers also by the official rule."""
        evaluation = super().evaluate(split, outputs, labels)
        if not self.task.answers_column:
            return evaluation
        predicted = evaluation.predictions[PREDICTION].to_pylist()
        given = split.rows[self.task.answers_column][:]
        right = [vqa_accuracy(self.task.labels[one], answers) for one, answers in zip(predicted, given, strict=True)]
        predictions = evaluation.predictions.append_column(VQA_ACCURACY, pa.array(right))
        return Evaluation({VQA_ACCURACY: float(np.mean(right)), **evaluation.metrics}, predictions)


class ImageCollator:
    """A collator of encoded questions and the files of their images.

    Args:
        tokenizer: the tokenizer of the questions.
        size: pixels per side to which pictures are scaled.
        width: number of features of a region.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, width: int) -> None:
        self.pad_questions = DataCollatorWithPadding(tokenizer)
        self.size = size
        self.width = width

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the padded questions and the tensors of `images`.

        If the rows have several people's answers, also `answer_ids` `[B, a]` and `answer_scores` `[B, a]`, padded by 0.
        """
        others = (IMAGE, ANSWER_IDS, ANSWER_SCORES)
        questions = [{name: value for name, value in row.items() if name not in others} for row in rows]
        batch = {**self.pad_questions(questions), **self.images([row[IMAGE] for row in rows])}
        if ANSWER_IDS in rows[0]:
            batch[ANSWER_IDS] = _padded([torch.tensor(row[ANSWER_IDS], dtype=torch.int64) for row in rows])
            batch[ANSWER_SCORES] = _padded([torch.tensor(row[ANSWER_SCORES]) for row in rows])
        return batch

    def images(self, paths: Sequence[str]) -> dict[str, Tensor]:
        """Return `image`: pictures `[B, 3, size, size]` in [0, 1], or regions `[B, boxes, width]` and `image_mask`."""
        if not is_of_features(paths[0]):
            return {IMAGE: torch.stack([read_picture(path, self.size) for path in paths]).float() / WHITE}
        regions = [read_features(path, self.width) for path in paths]
        mask = _padded([torch.ones(len(boxes), dtype=torch.bool) for boxes in regions])
        return {IMAGE: _padded(regions), "image_mask": mask}


def _padded(rows: Sequence[Tensor]) -> Tensor:
    return pad_sequence(list(rows), batch_first=True)


def _is_answered(answers: Any) -> bool:
    return isinstance(answers, list) and bool(answers) and all(isinstance(answer, str) for answer in answers)


def _best_known(answers: Any, number: dict[str, int]) -> int:
    counts = Counter(map(plain_answer, answers)) if _is_answered(answers) else Counter()
    return next((number[answer] for answer, _ in counts.most_common() if answer in number), UNLABELLED)


def _encode_batch(
    batch: dict[str, list[Any]], task: VisualQuestionAnswering, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    tokens = tokenizer(batch[QUESTION], truncation=True, max_length=max_length, return_token_type_ids=False)
    encoded = {**tokens, IMAGE: batch[IMAGE], "label": [int(label) for label in batch[task.label_column]]}
    if task.answers_column in batch:
        number = {label: index for index, label in enumerate(task.labels)}
        scores = [answer_scores(answers) for answers in batch[task.answers_column]]
        known = [{number[answer]: score for answer, score in row.items() if answer in number} for row in scores]
        encoded |= {ANSWER_IDS: [list(row) for row in known], ANSWER_SCORES: [list(row.values()) for row in known]}
    return encoded
