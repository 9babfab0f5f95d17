"""Questions about images, whose answers are classes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from alignattn.tasks.labelled import PREDICTION, LabelledTask
from alignattn.tasks.labels import UNLABELLED
from alignattn.tasks.names import ANSWER_IDS, ANSWER_SCORES, IMAGE, QUESTION, TRAIN
from alignattn.tasks.task import (
    EncodedSplit,
    Evaluation,
    Task,
    TaskOptions,
    by_row,
    check_max_length,
    name_classes,
    text_problem,
)
from alignattn.tasks.vqa.official import answer_scores, plain_answer, vqa_accuracy
from alignattn.utils.errors import AlignAttnError, plural, shown

if TYPE_CHECKING:
    import datasets
    from transformers import PreTrainedConfig


VQA_ACCURACY = "vqa_accuracy"
"""The metric of tasks with several people's answers per question."""


@dataclass(frozen=True, kw_only=True)
class VisualQuestionAnswering(LabelledTask):
    """Questions about images, whose answers are classes.

    Attributes:
        metrics: Metrics of classes, and `vqa_accuracy` where several people have answered each question.
        max_length: The maximum number of words of a question; the rest is truncated.
        labels: The answers; with several people's answers, the frequent answers of the training rows.
        answers_column: The column of lists of answers, one per person; empty if a row has one answer, its label.
        fewest_answers: An answer is a label if it is the most frequent answer to at least this many training
            questions.
        collection: `easy-vqa` or `vqa-v2`, which have a reader; empty if the rows are in files.
        image_size: Pixels per side to which pictures are scaled.
        feature_width: The number of features of a region; 0 for pictures.
        features: The folder of a collection's feature files (`--features`).
    """

    kind = "visual-question-answering"
    input_columns = (IMAGE, QUESTION)
    auto_class = "AutoModelForVisualQuestionAnswering"
    reads_only_texts = False
    continuous_input = IMAGE
    file_column = IMAGE

    metrics: tuple[Literal["accuracy", "macro_f1", "vqa_accuracy"], ...]
    max_length: int = 14
    answers_column: str = ""
    fewest_answers: int = 1
    collection: Literal["", "easy-vqa", "vqa-v2"] = ""
    image_size: int = 64
    feature_width: int = 0
    features: str = ""

    @property
    def can_weight_classes(self) -> bool:
        """Whether a question has one correct answer; with several people's answers, each answer has a score."""
        return super().can_weight_classes and not self.answers_column

    @property
    def reads_features(self) -> bool:
        """Whether the model reads features of regions instead of pictures."""
        return self.feature_width > 0

    def problem(self) -> str | None:
        """Return the problem of the sizes or the answers, or that of `LabelledTask.problem`."""
        if self.is_regression and not self.answers_column:
            return "give two or more labels, or answers_column, the column of several people's answers"
        if (VQA_ACCURACY in self.metrics) != bool(self.answers_column):
            return f"{VQA_ACCURACY} goes with answers_column, the column of several people's answers: give both"
        if min(self.image_size, self.fewest_answers) < 1 or self.feature_width < 0:
            return "image_size and fewest_answers must be at least 1, and feature_width not negative"
        # Without labels, the task gets its classes from its rows.
        return None if self.is_regression else super().problem()

    @property
    def can_smooth_labels(self) -> bool:
        """Whether a question has one correct answer; with several people's answers, each answer has a score."""
        return not self.answers_column

    @property
    def supports_r_drop(self) -> bool:
        """Whether the loss has one class per row; with several people's answers, each answer has its own loss."""
        return not self.answers_column

    def data_files(self, data_dir: Path) -> dict[str, Path]:
        """Return the files in `--data_dir`: of VQA-v2, the questions and the answers of each split."""
        from alignattn.tasks.vqa.sources import YEARS, vqa_v2_files

        if self.collection != "vqa-v2":
            return super().data_files(data_dir)
        files = {}
        for split in (TRAIN, *self.evaluation_splits):
            if split in YEARS:
                files[split], files[f"{split} answers"] = vqa_v2_files(data_dir / self.sources.folder, split)
        return files

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return the rows of a collection; None if they are in files, such as easy-VQA's in a `--data_dir`."""
        import datasets

        from alignattn.tasks.vqa.sources import easy_vqa_questions, vqa_v2_rows

        if self.collection == "vqa-v2":
            folder = self.sources.folder
            if data_dir is None or not self.features:
                raise AlignAttnError(
                    f"task {self.name!r} is not on the Hub: give --data_dir DIR whose folder {folder} has the "
                    "question and annotation files of visualqa.org, and --features DIR with files of region features"
                )
            values = vqa_v2_rows(Path(data_dir) / folder, self.features, self.name, name)
            columns = zip((IMAGE, QUESTION, self.answers_column), values, strict=True)
            return datasets.Dataset.from_dict(dict(columns)), f"split {name!r} of {Path(data_dir) / folder}"
        if self.collection == "easy-vqa" and data_dir is None:
            found = zip((IMAGE, QUESTION, self.label_column), easy_vqa_questions(self.name, name), strict=True)
            return datasets.Dataset.from_dict(dict(found)), f"split {name!r} of easy-vqa"
        return None

    def columns(self) -> list[str]:
        """Return the columns of the image, the question and the answer or the answers."""
        return [*self.input_columns, self.answers_column or self.label_column]

    def infer_labels(self, dataset: datasets.Dataset, origin: str) -> Self:
        """Return the task with the frequent answers of its training rows, the most frequent first."""
        if self.labels:
            return self
        # In a tie of a row's answers, the first counts.
        rows = (answers for answers in dataset[self.answers_column][:] if _is_answered(answers))
        counts = Counter(Counter(map(plain_answer, answers)).most_common(1)[0][0] for answers in rows)
        frequent = [answer for answer, count in counts.items() if answer and count >= self.fewest_answers]
        if len(frequent) < 2:
            raise AlignAttnError(
                f"{origin} has {plural(len(frequent), 'answer')} to {self.fewest_answers} or more questions: give at "
                "least two"
            )
        return replace(self, labels=tuple(sorted(frequent, key=lambda answer: (-counts[answer], answer))))

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a label: the most frequent answer that is a class, or -1."""
        import numpy as np

        if not self.answers_column:
            return super().normalise(dataset)
        number = {label: index for index, label in enumerate(self.labels)}
        labels = []
        for answers in dataset[self.answers_column][:]:
            counts = Counter(map(plain_answer, answers)) if _is_answered(answers) else Counter()
            labels.append(next((number[answer] for answer, _ in counts.most_common() if answer in number), UNLABELLED))
        return dataset.add_column(self.label_column, np.array(labels, dtype=np.int64))

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question, an image or a list of answers, or with a label that is not the task's."""
        problems = super().row_problems(dataset, may_be_empty=may_be_empty)
        if column := self.answers_column:
            for index, answers in enumerate(dataset[column][:]):
                if not _is_answered(answers):
                    problems[index] = f"column {column!r} is not a list of answers ({shown(answers)})"
        return problems

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question or a readable image."""
        from alignattn.tasks.vqa.images import image_problem

        images = dataset[IMAGE][:]
        paths = [image if isinstance(image, str) else "" for image in images]
        known = {path: image_problem(path, self.feature_width) for path in set(paths) if path}
        return by_row(
            text_problem(f"column {QUESTION!r}", question)
            or (known[path] if path else f"column {IMAGE!r} names no image ({shown(image)})")
            for path, image, question in zip(paths, images, dataset[QUESTION][:], strict=True)
        )

    def drop_unlabelled(self, dataset: datasets.Dataset, origin: str) -> datasets.Dataset:
        """Return the rows that have a label; with several people's answers all: unlabelled ones count as wrong."""
        return dataset if self.answers_column else super().drop_unlabelled(dataset, origin)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the answers."""
        name_classes(config, self.labels)

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `input_ids`, `attention_mask`, the image's file, `label`, and several people's answers if any."""
        check_max_length(self.name, tokenizer, options.max_length, 1)
        return self.encode_rows(self._encode_batch, dataset, tokenizer, options)

    def _encode_batch(self, batch: dict[str, list[Any]], tokenizer: Any, max_length: int) -> dict[str, list[Any]]:
        tokens = tokenizer(batch[QUESTION], truncation=True, max_length=max_length, return_token_type_ids=False)
        encoded = {**tokens, IMAGE: batch[IMAGE], "label": [int(label) for label in batch[self.label_column]]}
        if self.answers_column in batch:
            number = {label: index for index, label in enumerate(self.labels)}
            scores = [answer_scores(answers) for answers in batch[self.answers_column]]
            known = [{number[answer]: score for answer, score in row.items() if answer in number} for row in scores]
            encoded |= {ANSWER_IDS: [list(row) for row in known], ANSWER_SCORES: [list(row.values()) for row in known]}
        return encoded

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that reads the images."""
        from alignattn.tasks.vqa.images import ImageCollator

        return ImageCollator(tokenizer, self.image_size, self.feature_width)

    def average_outputs(self, outputs: Sequence[Any]) -> Any:
        """Return the logits of the mean probabilities; with several people's answers, each answer has its own."""
        import numpy as np
        from scipy.special import log_expit, logsumexp

        if not self.answers_column:
            return super().average_outputs(outputs)
        logits = np.asarray(outputs, dtype=np.float64)
        return logsumexp(log_expit(logits), axis=0) - logsumexp(log_expit(-logits), axis=0)

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score logits as classes, and with several people's answers also by the official rule."""
        import numpy as np
        import pyarrow as pa

        evaluation = super().evaluate(split, outputs, labels)
        if not self.answers_column:
            return evaluation
        predicted = evaluation.predictions[PREDICTION].to_pylist()
        given = split.rows[self.answers_column][:]
        right = [vqa_accuracy(self.labels[one], answers) for one, answers in zip(predicted, given, strict=True)]
        predictions = evaluation.predictions.append_column(VQA_ACCURACY, pa.array(right))
        return Evaluation({VQA_ACCURACY: float(np.mean(right)), **evaluation.metrics}, predictions)


def with_features(task: Task, folder: str | None) -> Task:
    """Return the task with the folder of its regions' features (`--features`); the task itself for None.

    Raises:
        AlignAttnError: if the task reads no features.
    """
    if folder is None:
        return task
    if not isinstance(task, VisualQuestionAnswering) or not task.reads_features or not task.collection:
        raise AlignAttnError(f"--features is for vqa-v2, not task {task.name!r}: leave it out")
    return replace(task, features=folder)


def _is_answered(answers: Any) -> bool:
    return isinstance(answers, list) and bool(answers) and all(isinstance(answer, str) for answer in answers)
