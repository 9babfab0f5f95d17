"""Extraction of the answer to a question from a context."""

from copy import copy
from typing import Any

import datasets
import pyarrow as pa
from transformers import (
    AutoModelForQuestionAnswering,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.answers.spans import best_answers
from alignattn.tasks.answers.squad_metric import final_answers, squad_scores
from alignattn.tasks.answers.squad_rows import columnar_answers, qa_problem, question_problem
from alignattn.tasks.answers.windows import encode_windows
from alignattn.tasks.processor import EncodedSplit, Evaluation, TaskProcessor, by_row, evaluation_table
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.task_types import QuestionAnswering

_ANSWERS = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
"""Type of an answer column."""


class QuestionAnsweringProcessor(TaskProcessor[QuestionAnswering]):
    """One sequence per window of the context; the model scores where the answer starts and ends."""

    truncates_rows = False
    auto_class = AutoModelForQuestionAnswering

    @property
    def can_smooth_labels(self) -> bool:
        """False: the Trainer smooths one class per output, not a start and an end."""
        return False

    def columns(self) -> list[str]:
        """Return SQuAD's columns."""
        return ["id", "question", "context", "answers"]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a list of answer texts and one of starts; SQuAD's own files have pairs of both."""
        values = dataset["answers"][:]
        if not any(isinstance(value, list) for value in values):
            return dataset
        answers = [columnar_answers(value) for value in values]
        columns = {name: dataset[name][:] for name in dataset.column_names} | {"answers": answers}
        return datasets.Dataset.from_dict(columns, on_mixed_types="use_json")

    def problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows whose answer is not in the context, or is missing although all questions have one."""
        rows = dataset.select_columns(["context", "question", "answers"])[:]
        return by_row(
            qa_problem(*row, has_unanswerable=self.task.has_unanswerable) for row in zip(*rows.values(), strict=True)
        )

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question or a context."""
        return by_row(map(question_problem, dataset["context"][:], dataset["question"][:]))

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows without an answer, and with their numbers as ids."""
        dataset = dataset.add_column("id", [str(number) for number in range(len(dataset))])
        return dataset.add_column("answers", [{"text": [], "answer_start": []}] * len(dataset), feature=_ANSWERS)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set two outputs per token, whatever the checkpoint was trained for."""
        config.num_labels = 2

    def encode(
        self, dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the windows: the model's inputs, the answer's tokens, and the character span of each token."""
        return encode_windows(
            dataset,
            tokenizer,
            max_length=options.max_length,
            doc_stride=options.doc_stride,
            num_proc=options.num_proc,
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that pads on the right: the positions of [CLS] and of answers count from the left."""
        padding = copy(tokenizer)
        padding.padding_side = "right"
        return super().collator(padding, split, is_training=is_training)

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return the answer to each question, and the n best with their characters and probabilities."""
        windows, rows = split.encoded, split.rows
        start_logits, end_logits = outputs[:2]
        candidates = best_answers(
            windows["row"][:],
            windows["span_start"][:],
            windows["span_end"][:],
            start_logits,
            end_logits,
            rows["context"][:],
            n_best=split.options.n_best_size,
            max_answer_length=split.options.max_answer_length,
        )
        best = [candidate.texts[0] for candidate in candidates]
        no_answer_scores = [candidate.no_answer_score for candidate in candidates]
        return pa.table(
            {
                "prediction": pa.array(final_answers(best, no_answer_scores) if self.task.has_unanswerable else best),
                "no_answer_score": pa.array(no_answer_scores),
                "n_best": pa.array([candidate.texts for candidate in candidates]),
                "n_best_starts": pa.array([candidate.starts for candidate in candidates]),
                "n_best_probabilities": pa.array([candidate.probabilities for candidate in candidates]),
            }
        )

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the answer, its first character and its probability; with `top_k`, also the `top_k` best answers."""
        rows = predictions.to_pylist()
        lists = ("n_best", "n_best_starts", "n_best_probabilities")
        fields = ("answer", "start", "probability")
        best = [
            [dict(zip(fields, values, strict=True)) for values in zip(*(row[name] for name in lists), strict=True)]
            for row in rows
        ]
        columns = {
            "prediction": predictions["prediction"],
            # "No answer" has no start.
            "start": pa.array(
                [first["start"] if row["prediction"] else None for row, (first, *_) in zip(rows, best, strict=True)],
                pa.int64(),
            ),
            "probability": pa.array([first["probability"] for first, *_ in best]),
        }
        columns |= {"no_answer_score": predictions["no_answer_score"]} if self.task.has_unanswerable else {}
        # Not `answers`, a column of labelled rows.
        alternatives = {} if top_k is None else {"best_answers": pa.array([answers[:top_k] for answers in best])}
        return pa.table(columns | alternatives)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return "no answer" if no question is answered."""
        return None if any(predictions["prediction"].to_pylist()) or predictions.num_rows == 1 else "no answer"

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the best answers by SQuAD's metrics."""
        rows, predictions = split.rows, self.predictions(split, outputs, labels)
        golds = [gold["text"] for gold in rows["answers"][:]]
        best = [texts[0] for texts in predictions["n_best"].to_pylist()]
        no_answer_scores = predictions["no_answer_score"].to_pylist()
        scores = squad_scores(best, golds, no_answer_scores if self.task.has_unanswerable else None)
        columns = {"id": pa.array(rows["id"][:]), "label": pa.array(golds)}
        return Evaluation(scores.metrics, evaluation_table(rows, columns, predictions), scores.thresholds)
