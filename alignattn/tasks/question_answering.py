"""Extraction of the answer to a question from a context."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from alignattn.tasks.task import EncodedSplit, Evaluation, Task, TaskOptions, by_row, evaluation_table
from alignattn.utils.errors import plural, shown

if TYPE_CHECKING:
    import datasets
    import pyarrow as pa
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

_ANSWER_FIELDS = ("text", "answer_start")


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extraction of the answer to a question from a context: columns `id`, `question`, `context` and `answers`.

    Attributes:
        metrics: Scores of `alignattn.tasks.answers.squad_metric.squad_scores`.
        has_unanswerable: Whether some questions have no answer in their context (SQuAD 2.0).
    """

    kind = "question-answering"
    input_columns = ("question", "context")
    can_smooth_labels = False  # the Trainer smooths one class per output, not a start and an end
    truncates_rows = False
    auto_class = "AutoModelForQuestionAnswering"

    metrics: tuple[Literal["f1", "exact", "best_f1", "best_exact"], ...] = ("f1", "exact")
    max_length: int = 384
    has_unanswerable: bool = False

    def problem(self) -> str | None:
        """Return the problem of metrics that need unanswerable questions, or that of `Task.problem`."""
        if not self.has_unanswerable and any(name.startswith("best_") for name in self.metrics):
            return "metrics best_f1 and best_exact need has_unanswerable: true"
        return super().problem()

    def columns(self) -> list[str]:
        """Return SQuAD's columns."""
        return ["id", "question", "context", "answers"]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with a list of answer texts and one of starts; SQuAD's own files have pairs of both."""
        from alignattn.tasks.reading import dataset_of

        values = dataset["answers"][:]
        if not any(isinstance(value, list) for value in values):
            return dataset
        answers = [
            {name: [answer[name] for answer in value] for name in _ANSWER_FIELDS}
            if isinstance(value, list)
            and all(isinstance(answer, Mapping) and answer.keys() >= {*_ANSWER_FIELDS} for answer in value)
            else value
            for value in values
        ]
        columns = {name: dataset[name][:] for name in dataset.column_names} | {"answers": answers}
        return dataset_of(columns)

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows whose answer is not in the context, or is missing although all questions have one."""
        rows = dataset.select_columns(["context", "question", "answers"])[:]
        return by_row(
            qa_problem(*row, has_unanswerable=self.has_unanswerable) for row in zip(*rows.values(), strict=True)
        )

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a question or a context."""
        return by_row(map(question_problem, dataset["context"][:], dataset["question"][:]))

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows without an answer, and with their numbers as ids."""
        import datasets

        texts, starts = datasets.List(datasets.Value("string")), datasets.List(datasets.Value("int32"))
        feature = {"text": texts, "answer_start": starts}
        dataset = dataset.add_column("id", [str(number) for number in range(len(dataset))])
        return dataset.add_column("answers", [{"text": [], "answer_start": []}] * len(dataset), feature=feature)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set two outputs per token, whatever the checkpoint was trained for."""
        config.num_labels = 2

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the windows: the model's inputs, the answer's tokens, and the character span of each token."""
        from alignattn.tasks.answers.windows import encode_windows

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
        import pyarrow as pa

        from alignattn.tasks.answers.spans import best_answers
        from alignattn.tasks.answers.squad_metric import final_answers

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
                "prediction": pa.array(final_answers(best, no_answer_scores) if self.has_unanswerable else best),
                "no_answer_score": pa.array(no_answer_scores),
                "n_best": pa.array([candidate.texts for candidate in candidates]),
                "n_best_starts": pa.array([candidate.starts for candidate in candidates]),
                "n_best_probabilities": pa.array([candidate.probabilities for candidate in candidates]),
            }
        )

    def readable_predictions(self, predictions: pa.Table, top_k: int | None) -> pa.Table:
        """Return the answer, its first character and its probability; with `top_k`, also the `top_k` best answers."""
        import pyarrow as pa

        rows = predictions.to_pylist()
        lists = ("n_best", "n_best_starts", "n_best_probabilities")
        fields = ("answer", "start", "probability")
        best = [
            [dict(zip(fields, values, strict=True)) for values in zip(*(row[name] for name in lists), strict=True)]
            for row in rows
        ]
        # "No answer" has no start and no probability.
        given: list[Any] = [found[0] if row["prediction"] else {} for row, found in zip(rows, best, strict=True)]
        columns = {
            "prediction": predictions["prediction"],
            "start": pa.array([answer.get("start") for answer in given], pa.int64()),
            "probability": pa.array([answer.get("probability") for answer in given], pa.float64()),
        }
        columns |= {"no_answer_score": predictions["no_answer_score"]} if self.has_unanswerable else {}
        # Not `answers`, a column of labelled rows.
        alternatives = {} if top_k is None else {"best_answers": pa.array([answers[:top_k] for answers in best])}
        return pa.table(columns | alternatives)

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return "no answer" if no question is answered."""
        return None if any(predictions["prediction"].to_pylist()) or predictions.num_rows == 1 else "no answer"

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the best answers by SQuAD's metrics."""
        import pyarrow as pa

        from alignattn.tasks.answers.squad_metric import squad_scores

        rows, predictions = split.rows, self.predictions(split, outputs, labels)
        golds = [gold["text"] for gold in rows["answers"][:]]
        best = [texts[0] for texts in predictions["n_best"].to_pylist()]
        no_answer_scores = predictions["no_answer_score"].to_pylist()
        scores = squad_scores(best, golds, no_answer_scores if self.has_unanswerable else None)
        # Given, because types of empty lists and of other ids would not fit those of another split.
        columns = {
            "id": pa.array(map(str, rows["id"][:]), pa.string()),
            "label": pa.array(golds, pa.list_(pa.string())),
        }
        return Evaluation(scores.metrics, evaluation_table(rows, columns, predictions), scores.thresholds)


def qa_problem(context: Any, question: Any, answers: Any, *, has_unanswerable: bool = True) -> str | None:
    """Return the problem of a row in SQuAD's columns, or None.

    Args:
        context: the text that holds the answers.
        question: a text.
        answers: `{"text": [texts], "answer_start": [characters]}`, counted in Unicode code points from 0; both lists
            are empty for an unanswerable question.
        has_unanswerable: whether a question may have no answer.

    Returns:
        A phrase such as "its question is empty", that fits after the row's number.
    """
    if problem := question_problem(context, question):
        return problem
    if not isinstance(answers, Mapping) or not answers.keys() >= {*_ANSWER_FIELDS}:
        return "its answers are not of the form {'text': [...], 'answer_start': [...]}"
    texts, starts = answers["text"], answers["answer_start"]
    for name, values in (("text", texts), ("answer_start", starts)):
        if isinstance(values, str) or not isinstance(values, Sequence):
            return f"its answers' {name!r} is {shown(values)}, not a list"
    if len(texts) != len(starts):
        return f"its answers have {plural(len(texts), 'text')} and {plural(len(starts), 'answer_start')}"
    if not texts and not has_unanswerable:
        return "its question has no answer, which this task requires (squadv2 does not)"
    problems = (_answer_problem(context, text, start) for text, start in zip(texts, starts, strict=True))
    return next((problem for problem in problems if problem), None)


def question_problem(context: Any, question: Any) -> str | None:
    """Return the problem of the texts of a row, as `qa_problem` does."""
    for name, text in (("context", context), ("question", question)):
        if not isinstance(text, str):
            return f"its {name} is {shown(text)}, which is not text"
        if not text.strip():
            return f"its {name} is empty"
    return None


def _answer_problem(context: str, text: Any, start: Any) -> str | None:
    if not isinstance(text, str):
        return f"its answer is {shown(text)}, which is not text"
    if not text.strip():
        return "its answer is empty; an unanswerable question has no answers at all"
    if not isinstance(start, int) or isinstance(start, bool):
        return f"its answer_start is {shown(start)}, which is not a whole number"
    if not 0 <= start < len(context):
        return f"its answer starts at character {start}, and its context has {len(context)}"
    if context.startswith(text, start):
        return None
    found = context.find(text)
    elsewhere = "nor anywhere else in the context" if found < 0 else f"but at character {found}"
    return f"its answer {shown(text)} is not at character {start} of its context, {elsewhere}"
