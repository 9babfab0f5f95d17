"""Questions about images, whose answers are classes."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import AutoModelForVisualQuestionAnswering, PreTrainedConfig, PreTrainedTokenizerBase

from alignattn.tasks.labelled import PREDICTION, LabelledProcessor
from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    check_max_length,
    encode_rows,
    name_classes,
    text_problem,
)
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.vqa.batches import ANSWER_IDS, ANSWER_SCORES, ImageBatches
from alignattn.tasks.vqa.images import PICTURE_DIMS, image_problem
from alignattn.tasks.vqa.official import answer_scores, plain_answer, vqa_accuracy
from alignattn.tasks.vqa.sources import easy_vqa_rows, vqa_v2_rows
from alignattn.tasks.vqa.task import EASY_VQA, IMAGE, QUESTION, VQA_ACCURACY, VQA_V2, VisualQuestionAnswering
from alignattn.utils.errors import AlignAttnError, shown


class VqaProcessor(LabelledProcessor[VisualQuestionAnswering]):
    """A question and an image a row: tokens of the question, and the image's file until a batch is made."""

    auto_class = AutoModelForVisualQuestionAnswering
    reads_texts_alone = False
    continuous_input = IMAGE

    def feature_dim(self, dims: int) -> int:
        """Return that of the colours of pictures, or that of the features of regions."""
        return 1 if dims == PICTURE_DIMS else -1

    def read_split(
        self, task: VisualQuestionAnswering, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a collection; None for a task of files, and for easy-VQA as Parquet of a `--data_dir`."""
        if task.collection == VQA_V2:
            return vqa_v2_rows(task, name, data_dir)
        if task.collection == EASY_VQA and data_dir is None:
            return easy_vqa_rows(task, name)
        return None

    def columns(self, task: VisualQuestionAnswering) -> list[str]:
        """Return the columns of the image, the question and the answer or the answers."""
        return [*task.input_columns, task.answers_column or task.label_column]

    def resolve(self, task: VisualQuestionAnswering, dataset: datasets.Dataset, origin: str) -> VisualQuestionAnswering:
        """Return the task with the answers that are frequent among its training rows, the most frequent first."""
        if task.labels:
            return task
        best = [_most_given(answers) for answers in dataset[task.answers_column][:] if _is_answered(answers)]
        counts = Counter(best)
        frequent = [answer for answer, count in counts.items() if answer and count >= task.fewest_answers]
        if len(frequent) < 2:
            raise AlignAttnError(
                f"{origin} has {len(frequent)} answer(s) that {task.fewest_answers} questions have, and a task has two"
            )
        return replace(task, labels=tuple(sorted(frequent, key=lambda answer: (-counts[answer], answer))))

    def normalise(self, task: VisualQuestionAnswering, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a label: of several people's answers the most frequent that is a class, or none (-1)."""
        if not task.answers_column:
            return super().normalise(task, dataset)
        number = {label: index for index, label in enumerate(task.labels)}
        labels = [_best_known(answers, number) for answers in dataset[task.answers_column][:]]
        return dataset.add_column(task.label_column, np.array(labels, dtype=np.int64))

    def problems(
        self, task: VisualQuestionAnswering, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows without a question or an image, and those whose answer is none of the task's."""
        problems = super().problems(task, dataset, may_be_empty=may_be_empty)
        if task.answers_column:
            for index, answers in enumerate(dataset[task.answers_column][:]):
                if not _is_answered(answers):
                    problems[index] = f"column {task.answers_column!r} is no list of answers ({shown(answers)})"
        return problems

    def input_problems(
        self, task: VisualQuestionAnswering, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows without a question, and those without an image that can be read."""
        images = dataset[IMAGE][:]
        known = {path: image_problem(path, task) for path in set(images) if isinstance(path, str) and path}
        problems: dict[int, str] = {}
        for index, (path, question) in enumerate(zip(images, dataset[QUESTION][:], strict=True)):
            problem = text_problem(f"column {QUESTION!r}", question) or (
                known[path] if path in known else f"column {IMAGE!r} names no image ({shown(path)})"
            )
            if problem is not None:
                problems[index] = problem
        return problems

    def labelled(self, task: VisualQuestionAnswering, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label; where people were asked all: an answer that is no class is a wrong one."""
        return dataset if task.answers_column else super().labelled(task, dataset, origin)

    def unlabelled(self, task: VisualQuestionAnswering, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the label 0, which stands for none."""
        return super().unlabelled(replace(task, answers_column=""), dataset)

    def smooths_labels(self, task: VisualQuestionAnswering) -> bool:
        """Return whether a question has one right answer: where people were asked, each answer has a score."""
        return not task.answers_column

    def has_divergence(self, task: VisualQuestionAnswering) -> bool:
        """Return whether the loss is of one class a row: where people were asked, it is of each answer by itself."""
        return not task.answers_column

    def configure(self, task: VisualQuestionAnswering, config: PreTrainedConfig) -> None:
        """Set the names of the answers."""
        name_classes(config, task.labels)

    def encode(
        self,
        task: VisualQuestionAnswering,
        dataset: datasets.Dataset,
        processor: PreTrainedTokenizerBase,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return `input_ids`, `attention_mask`, the image's file and `label`, and answers where there are several."""
        check_max_length(task, processor, options.max_length, 1)
        return encode_rows(_encode_batch, task, dataset, processor, options)

    def batches(self, processor: PreTrainedTokenizerBase, split: EncodedSplit, *, trains: bool = False) -> ImageBatches:
        """Return what makes a batch: it reads the images."""
        options = split.options
        return ImageBatches(processor, options.image_size, options.feature_width)

    def evaluate(self, task: VisualQuestionAnswering, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits as for all tasks of classes, and by the official rule where several people were asked."""
        of_classes = tuple(name for name in task.metrics if name != VQA_ACCURACY)
        evaluation = super().evaluate(replace(task, metrics=of_classes), split, outputs, labels)
        if not task.answers_column:
            return evaluation
        predicted = evaluation.predictions[PREDICTION].to_pylist()
        given = split.rows[task.answers_column][:]
        right = [vqa_accuracy(task.labels[one], answers) for one, answers in zip(predicted, given, strict=True)]
        predictions = evaluation.predictions.append_column(VQA_ACCURACY, pa.array(right))
        return Evaluation({VQA_ACCURACY: float(np.mean(right)), **evaluation.metrics}, predictions)


def _is_answered(answers: Any) -> bool:
    return isinstance(answers, list) and bool(answers) and all(isinstance(answer, str) for answer in answers)


def _most_given(answers: Sequence[str]) -> str:
    # Of those that are as frequent, the one that stands first.
    return Counter(map(plain_answer, answers)).most_common(1)[0][0]


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
