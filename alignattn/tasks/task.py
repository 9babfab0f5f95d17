"""What a task is: one small record, from which everything else about it follows.

The class of a record is its kind; `alignattn.tasks.kinds` holds what each kind does with rows and outputs.
"""

from dataclasses import dataclass
from typing import Literal

MetricName = Literal["accuracy", "f1", "macro_f1", "matthews_correlation", "pearson", "spearmanr"]
"""The metrics of `alignattn.tasks.metrics.METRICS`; named here so that a record needs no heavy import."""

MOST_TEXTS = 2
"""Texts that a tokenizer joins into one sequence."""


@dataclass(frozen=True, kw_only=True)
class Task:
    """What all kinds of tasks have in common.

    Attributes:
        name: What a user calls the task.
        metrics: The names of the task's official metrics. The first selects checkpoints and ranks runs.
        evaluation_splits: The names of the labelled splits that are not trained on.
        derives_validation: Whether the split `validation` is a tenth of the training rows, drawn once and for all,
            because the data set has none (as in Wu et al. 2020).
        max_length: The most tokens of a sequence where the user asks for no other length.
        hub_id: The data set's id on the Hub; empty where it is not there.
        hub_config: The configuration of that data set.
        hub_revision: The branch of the Hub that holds it as Parquet, where the main one holds code alone.
        folder: Where `<split>.parquet` lies below a `--data_dir`.
    """

    name: str
    metrics: tuple[str, ...]
    evaluation_splits: tuple[str, ...] = ("validation",)
    derives_validation: bool = False
    max_length: int = 128
    hub_id: str = ""
    hub_config: str = ""
    hub_revision: str = "main"
    folder: str = ""

    @property
    def main_metric(self) -> str:
        """The metric that selects checkpoints and ranks runs; larger is better for every metric here."""
        return self.metrics[0]


@dataclass(frozen=True, kw_only=True)
class LabelledTask(Task):
    """A task whose rows have one label each: a class or a score.

    Attributes:
        metrics: Names of `alignattn.tasks.metrics.METRICS`.
        label_column: The column of class numbers 0 to C-1 or of real numbers; -1 marks an unlabelled row.
        labels: The names of the classes in the order of their numbers; empty for a regression.
        label_range: The smallest and the largest score of a regression; None where there is no limit.
    """

    metrics: tuple[MetricName, ...]
    label_column: str = "label"
    labels: tuple[str, ...] = ()
    label_range: tuple[float, float] | None = None

    @property
    def is_regression(self) -> bool:
        """True where the label is a real number and not a class."""
        return not self.labels

    @property
    def num_labels(self) -> int:
        """How many outputs a row has: the number of classes, 1 for a regression."""
        return len(self.labels) or 1


@dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledTask):
    """Classification or regression of one text or a pair of texts.

    Attributes:
        text_columns: The one or two columns of text, in the order in which the model reads them.
    """

    text_columns: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(LabelledTask):
    """The choice of the right ending of a context; the label is its number.

    Attributes:
        context_column: The column of what comes before.
        start_column: The column of words that every ending begins with; empty where there is none.
        ending_columns: One column an ending, or the one column of lists of them.
    """

    context_column: str
    ending_columns: tuple[str, ...]
    start_column: str = ""
    metrics: tuple[MetricName, ...] = ("accuracy",)


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """Tags of words, such as those of named entities.

    Attributes:
        metrics: Of `alignattn.tasks.tags.entities.entity_scores`.
        tokens_column: The column of lists of words.
        tags_column: The column of lists of as many tags, strings or class numbers.
        labels: The tags in the order of their numbers; empty until the training rows tell.
    """

    metrics: tuple[str, ...] = ("f1", "precision", "recall", "token_accuracy")
    tokens_column: str = "tokens"
    tags_column: str = "ner_tags"
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extraction of the answer to a question from a context: columns `id`, `question`, `context` and `answers`.

    Attributes:
        metrics: Of `alignattn.tasks.answers.squad_metric.squad_scores`.
        has_unanswerable: Whether some questions have no answer in their context (SQuAD 2.0).
    """

    metrics: tuple[str, ...] = ("f1", "exact")
    max_length: int = 384
    has_unanswerable: bool = False


@dataclass(frozen=True)
class TaskOptions:
    """What a user can choose of how rows become tensors, and outputs answers.

    Attributes:
        max_length: the most tokens of a sequence, special tokens included.
        doc_stride: tokens that neighbouring windows of a long context share.
        n_best_size: answers to keep for each question.
        max_answer_length: the most tokens of an answer.
        num_proc: processes that tokenize; this one when None.
    """

    max_length: int
    doc_stride: int = 128
    n_best_size: int = 20
    max_answer_length: int = 30
    num_proc: int | None = None
