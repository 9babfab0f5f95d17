"""Extraction of the answer to a question from a context."""

from typing import Any

import datasets
import pyarrow as pa
from transformers import (
    AutoModelForQuestionAnswering,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.answers.spans import best_answers
from alignattn.tasks.answers.squad_metric import final_answers, squad_scores
from alignattn.tasks.answers.squad_rows import columnar_answers, qa_problem, question_problem
from alignattn.tasks.answers.task import QuestionAnswering
from alignattn.tasks.answers.windows import encode_windows
from alignattn.tasks.processor import EncodedSplit, Evaluation, TaskProcessor, row_numbers
from alignattn.tasks.task import TaskOptions

_ANSWERS = {"text": datasets.List(datasets.Value("string")), "answer_start": datasets.List(datasets.Value("int32"))}
"""The type of a column of answers."""


class QuestionAnsweringProcessor(TaskProcessor[QuestionAnswering]):
    """One sequence a window of the context; the model scores where the answer starts and ends."""

    truncates_rows = False
    auto_class = AutoModelForQuestionAnswering

    def columns(self, task: QuestionAnswering) -> list[str]:
        """Return SQuAD's columns."""
        return ["id", "question", "context", "answers"]

    def normalise(self, task: QuestionAnswering, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the texts and the starts of their answers, which SQuAD's own files keep in pairs."""
        values = dataset["answers"][:]
        if not any(isinstance(value, list) for value in values):
            return dataset
        answers = [columnar_answers(value) for value in values]
        whole = {name: dataset[name][:] for name in dataset.column_names} | {"answers": answers}
        return datasets.Dataset.from_dict(whole, on_mixed_types="use_json")

    def problems(self, task: QuestionAnswering, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows whose answers are not in their contexts, or missing where all questions have one."""
        columns = (dataset[name][:] for name in ("context", "question", "answers"))
        problems: dict[int, str] = {}
        for index, (context, question, answers) in enumerate(zip(*columns, strict=True)):
            problem = qa_problem(context, question, answers)
            if problem is None and not (answers["text"] or task.has_unanswerable):
                problem = f"its question has no answer, and all of {task.name} have one (those of squadv2 need not)"
            if problem is not None:
                problems[index] = problem
        return problems

    def input_problems(
        self, task: QuestionAnswering, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows whose question or context is missing."""
        rows = zip(dataset["context"][:], dataset["question"][:], strict=True)
        found = {index: question_problem(*texts) for index, texts in enumerate(rows)}
        return {index: problem for index, problem in found.items() if problem is not None}

    def unlabelled(self, task: QuestionAnswering, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows without an answer, and their numbers as ids."""
        dataset = dataset.add_column("id", [str(number) for number in range(len(dataset))])
        return dataset.add_column("answers", [{"text": [], "answer_start": []}] * len(dataset), feature=_ANSWERS)

    def constant_prediction(self, task: QuestionAnswering, predictions: pa.Table) -> str | None:
        """Return that no question is answered, if none is."""
        return None if any(predictions["prediction"].to_pylist()) or predictions.num_rows == 1 else "no answer"

    def smooths_labels(self, task: QuestionAnswering) -> bool:
        """Return False: the Trainer smooths one class an output, not a start and an end."""
        return False

    def configure(self, task: QuestionAnswering, config: PreTrainedConfig) -> None:
        """Set the two outputs a token, whatever the checkpoint was trained for."""
        config.num_labels = 2

    def encode(
        self,
        task: QuestionAnswering,
        dataset: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return the windows: the model's inputs, where the answer is, and the characters of each token."""
        return encode_windows(
            dataset,
            tokenizer,
            max_length=options.max_length,
            doc_stride=options.doc_stride,
            num_proc=options.num_proc,
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
        """Return what pads to the longest window of a batch."""
        return DataCollatorWithPadding(tokenizer)

    def answers(self, task: QuestionAnswering, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
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
                "prediction": pa.array(final_answers(best, no_answer_scores) if task.has_unanswerable else best),
                "no_answer_score": pa.array(no_answer_scores),
                "n_best": pa.array([candidate.texts for candidate in candidates]),
                "n_best_starts": pa.array([candidate.starts for candidate in candidates]),
                "n_best_probabilities": pa.array([candidate.probabilities for candidate in candidates]),
            }
        )

    def readable(self, task: QuestionAnswering, answers: pa.Table, most: int | None) -> pa.Table:
        """Return the answer, the character it starts at and its probability; of `most`, also the best so many."""
        rows = answers.to_pylist()
        best = [
            [
                {"answer": text, "start": start, "probability": probability}
                for text, start, probability in zip(
                    row["n_best"], row["n_best_starts"], row["n_best_probabilities"], strict=True
                )
            ][:most]
            for row in rows
        ]
        # Where there is no answer, none begins anywhere.
        starts = [first["start"] if row["prediction"] else None for row, (first, *_) in zip(rows, best, strict=True)]
        columns = {
            "prediction": answers["prediction"],
            "start": pa.array(starts, pa.int64()),
            "probability": pa.array([first["probability"] for first, *_ in best]),
        }
        columns |= {"no_answer_score": answers["no_answer_score"]} if task.has_unanswerable else {}
        return pa.table(columns | ({} if most is None else {"answers": pa.array(best)}))

    def evaluate(self, task: QuestionAnswering, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the best answers by SQuAD's metrics."""
        rows, answers = split.rows, self.answers(task, split, outputs, labels)
        golds = [gold["text"] for gold in rows["answers"][:]]
        best = [texts[0] for texts in answers["n_best"].to_pylist()]
        no_answer_scores = answers["no_answer_score"].to_pylist()
        scores = squad_scores(best, golds, no_answer_scores if task.has_unanswerable else None)
        columns = {"row": pa.array(row_numbers(rows)), "id": pa.array(rows["id"][:]), "label": pa.array(golds)}
        columns |= {name: answers[name] for name in answers.column_names}
        return Evaluation(scores.metrics, pa.table(columns), scores.thresholds)
