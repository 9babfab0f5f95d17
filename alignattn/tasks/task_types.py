"""The task types: the record of each, and the look-up of its processor. This module has no heavy imports.

To add a type, write its record and its `TaskProcessor` (`tests/toy_processor.py` has both) and add it to `TASK_TYPES`.
The records of the shipped types are separate from their processors, so that reading a task's file does not import
transformers.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from alignattn.tasks.metrics import MetricName
from alignattn.tasks.task import MAX_TEXTS, TAGS, TEST, TOKENS, VALIDATION, LabelledTask, Task
from alignattn.utils.errors import AlignAttnError

if TYPE_CHECKING:
    from alignattn.tasks.processor import TaskProcessor

T = TypeVar("T", bound=Task)


def processor_class(task: T | type[T]) -> "type[TaskProcessor[T]]":
    """Import the processor class of a task or of a task type; this imports transformers."""
    found: Any = resolve_name(task.processor)
    return found


def processor_for(task: T) -> "TaskProcessor[T]":
    """Return the processor of a task; this imports transformers."""
    return processor_class(task)(task)


@dataclass(frozen=True, kw_only=True)
class TextClassification(LabelledTask):
    """Classification or regression of one text or a pair of texts.

    Attributes:
        text_columns: One or two columns of text, in the order in which the model reads them.
        length_third: Use only the third of each split with the shortest or the longest texts, counted in words.
        supporting_facts: The number of sentences of a generated story that an answer needs. Stories are generated if no
            rows are given; 0 generates none.
    """

    kind = "text-classification"
    processor = "alignattn.tasks.texts:TextClassificationProcessor"

    text_columns: tuple[str, ...]
    length_third: Literal["", "shortest", "longest"] = ""
    supporting_facts: Literal[0, 1, 2] = 0

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The text columns."""
        return self.text_columns

    def problem(self) -> str | None:
        """Return the problem of the columns, or that of `LabelledTask.problem`."""
        return _text_columns_problem(self.text_columns, (self.label_column,)) or super().problem()


def _text_columns_problem(text_columns: Sequence[str], label_columns: Sequence[str]) -> str | None:
    columns = (*text_columns, *label_columns)
    if not 1 <= len(text_columns) <= MAX_TEXTS:
        return f"text_columns needs one or two columns, not {len(text_columns)}"
    if len(set(columns)) < len(columns):
        return f"duplicate column among {', '.join(columns)}"
    return None


MULTI_LABEL_METRICS = ("micro_f1", "macro_f1", "accuracy")


@dataclass(frozen=True, kw_only=True)
class MultiLabelClassification(Task):
    """Any number of labels for one text or a pair of texts.

    Attributes:
        text_columns: One or two columns of text, in the order in which the model reads them.
        label_columns: One column per label: 0 or 1, false or true.
    """

    kind = "multi-label-classification"
    processor = "alignattn.tasks.multilabel:MultiLabelProcessor"

    text_columns: tuple[str, ...]
    label_columns: tuple[str, ...]
    metrics: tuple[str, ...] = MULTI_LABEL_METRICS

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The text columns."""
        return self.text_columns

    @property
    def num_labels(self) -> int:
        """The number of outputs per row."""
        return len(self.label_columns)

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels, which are the column names."""
        return self.label_columns

    @property
    def can_weight_classes(self) -> bool:
        """True: each label is a class."""
        return True

    def problem(self) -> str | None:
        """Return the problem of the columns or the metrics, or that of `Task.problem`."""
        if problem := _text_columns_problem(self.text_columns, self.label_columns):
            return problem
        if len(self.label_columns) <= 1:
            return "label_columns needs two or more columns: for one, use text-classification"
        if unknown := [name for name in self.metrics if name not in MULTI_LABEL_METRICS]:
            return f"metrics {', '.join(unknown)} are not among {', '.join(MULTI_LABEL_METRICS)}"
        return super().problem()


@dataclass(frozen=True, kw_only=True)
class MultipleChoice(LabelledTask):
    """The choice of the correct ending of a context; the label is its number.

    Attributes:
        context_column: The column of the context.
        start_column: The column of the first words of every ending; empty for none.
        ending_columns: One column per ending, or one column of lists of endings.
    """

    kind = "multiple-choice"
    processor = "alignattn.tasks.choices:MultipleChoiceProcessor"

    context_column: str
    ending_columns: tuple[str, ...]
    start_column: str = ""
    metrics: tuple[MetricName, ...] = ("accuracy",)

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The columns of the context, of the start of every ending, and of the endings."""
        return (self.context_column, *((self.start_column,) if self.start_column else ()), *self.ending_columns)

    @property
    def can_weight_classes(self) -> bool:
        """False: a label is the position of an ending, which says nothing about it."""
        return False

    @property
    def texts_of_a_row(self) -> int:
        """The number of texts of a row, counting every ending."""
        return len(self.input_columns) - len(self.ending_columns) + self.num_labels

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row with these texts; the endings may be one column of lists."""
        if len(self.ending_columns) > 1:
            return super().row_of(texts)
        first = self.texts_of_a_row - self.num_labels
        return dict(zip(self.input_columns, [*texts[:first], list(texts[first:])], strict=True))

    def problem(self) -> str | None:
        """Return the problem of the endings, or that of `LabelledTask.problem`."""
        if not self.labels or len(self.ending_columns) not in (1, len(self.labels)):
            return (
                f"ending_columns needs one column of lists or one column per label, not {len(self.ending_columns)} "
                f"for {len(self.labels)} labels"
            )
        return super().problem()


TagMetric = Literal["f1", "precision", "recall", "token_accuracy"]


@dataclass(frozen=True, kw_only=True)
class TokenClassification(Task):
    """Tags of words, such as those of named entities.

    Attributes:
        metrics: Scores of `alignattn.tasks.tags.entities.entity_scores`.
        tokens_column: The column of lists of words.
        tags_column: The column of lists of tags, one per word, as names or class numbers.
        labels: The tags in the order of their numbers; if empty, those of the training rows.
    """

    kind = "token-classification"
    processor = "alignattn.tasks.tags.processor:TokenClassificationProcessor"

    metrics: tuple[TagMetric, ...] = ("f1", "precision", "recall", "token_accuracy")
    tokens_column: str = TOKENS
    tags_column: str = TAGS
    labels: tuple[str, ...] = ()

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The column of words."""
        return (self.tokens_column,)

    @property
    def can_weight_classes(self) -> bool:
        """True: each tag is a class."""
        return True

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row with the words of a text, split at blanks."""
        return {self.tokens_column: texts[0].split()}

    def problem(self) -> str | None:
        """Return the problem of the columns or the tags, or that of `Task.problem`."""
        if self.tokens_column == self.tags_column or len({*self.labels, ""}) <= len(self.labels):
            return "tokens_column and tags_column must differ, and labels must not repeat or be empty text"
        return super().problem()


@dataclass(frozen=True, kw_only=True)
class QuestionAnswering(Task):
    """Extraction of the answer to a question from a context: columns `id`, `question`, `context` and `answers`.

    Attributes:
        metrics: Scores of `alignattn.tasks.answers.squad_metric.squad_scores`.
        has_unanswerable: Whether some questions have no answer in their context (SQuAD 2.0).
    """

    kind = "question-answering"
    processor = "alignattn.tasks.answers.processor:QuestionAnsweringProcessor"

    metrics: tuple[Literal["f1", "exact", "best_f1", "best_exact"], ...] = ("f1", "exact")
    max_length: int = 384
    has_unanswerable: bool = False

    @property
    def input_columns(self) -> tuple[str, ...]:
        """Question and context."""
        return ("question", "context")

    def problem(self) -> str | None:
        """Return the problem of metrics that need unanswerable questions, or that of `Task.problem`."""
        if not self.has_unanswerable and any(name.startswith("best_") for name in self.metrics):
            return "metrics best_f1 and best_exact need has_unanswerable: true"
        return super().problem()


IMAGE, QUESTION = "image", "question"
"""Columns: the file of a picture or of the features of its regions, and the question about it."""

EASY_VQA, VQA_V2, CMUDICT = "easy-vqa", "vqa-v2", "cmudict"
"""Data sets with their own reader."""

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
    processor = "alignattn.tasks.vqa.processor:VqaProcessor"

    metrics: tuple[Literal["accuracy", "macro_f1", "vqa_accuracy"], ...]
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


@dataclass(frozen=True, kw_only=True)
class ImageClassification(LabelledTask):
    """Classification or regression of images.

    Attributes:
        image_column: The column of image files or of encoded images.
        collection: `digits`, the handwritten digits in scikit-learn; empty if the rows are in files.
    """

    kind = "image-classification"
    processor = "alignattn.tasks.images:ImageClassificationProcessor"

    image_column: str = IMAGE
    collection: Literal["", "digits"] = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The column of the images."""
        return (self.image_column,)

    def problem(self) -> str | None:
        """Return the problem of equal columns, or that of `LabelledTask.problem`."""
        if self.image_column == self.label_column:
            return f"image_column and label_column are both {self.image_column!r}"
        return super().problem()


ERROR_RATE, EXACT = "error_rate", "exact"
"""Edits from a prediction to the nearest reference over the reference's length; the share of exact predictions."""

Units = Literal["words", "characters"]
"""The tokens of a sequence: words between blanks, or characters."""


@dataclass(frozen=True, kw_only=True)
class GenerationTask(Task):
    """A task whose answer is generated token by token.

    Attributes:
        metrics: The metrics of the generated sequences.
        source_column: The column of the input.
        target_column: The column of the texts to generate. A row may list several references: training uses the first,
            evaluation the nearest.
        target_units: The tokens of a generated text, in which errors are counted.
    """

    processor = "alignattn.tasks.sequences:SequencesProcessor"

    metrics: tuple[Literal["error_rate", "exact"], ...] = ("error_rate", "exact")
    source_column: str = "source"
    target_column: str = "target"
    target_units: Units = "words"

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The source column."""
        return (self.source_column,)

    def problem(self) -> str | None:
        """Return the problem of equal columns, or that of `Task.problem`."""
        if self.source_column == self.target_column:
            return f"source_column and target_column are both {self.source_column!r}"
        return super().problem()


@dataclass(frozen=True, kw_only=True)
class SequenceToSequence(GenerationTask):
    """Pairs of sequences, the second generated from the first.

    Attributes:
        source_units: The tokens of a source text.
        collection: `cmudict`, the English pronunciations of the package `cmudict`; empty if the rows are in files.
    """

    kind = "text2text-generation"

    source_units: Units = "words"
    collection: Literal["", "cmudict"] = ""


@dataclass(frozen=True, kw_only=True)
class ImageToText(GenerationTask):
    """Pictures and their captions.

    Attributes:
        source_column: The column of picture files.
        target_column: The column of captions.
        collection: `easy-vqa`, whose captions name the shape and its colour; empty if the rows are in files.
        image_size: Pixels per side to which pictures are scaled.
    """

    kind = "image-to-text"
    processor = "alignattn.tasks.captions:CaptionsProcessor"

    source_column: str = IMAGE
    target_column: str = "caption"
    collection: Literal["", "easy-vqa"] = ""
    image_size: int = 64

    def problem(self) -> str | None:
        """Return the problem of the image size, or that of `GenerationTask.problem`."""
        return "image_size must be at least 1" if self.image_size < 1 else super().problem()


def check_generates(task: Task) -> None:
    """Refuse `--num_beams` for a task that generates no sequences; raises `AlignAttnError`."""
    if not isinstance(task, GenerationTask):
        raise AlignAttnError(f"--num_beams is for tasks that generate sequences, not {task.name!r}: leave it out")


GRAPH, NODE = "graph", "node"
"""Columns: the file of a graph, and the number of a node in it."""


@dataclass(frozen=True, kw_only=True)
class NodeClassification(LabelledTask):
    """Classification of the nodes of a graph: a row is a node, and the model reads the graph around it.

    Attributes:
        planetoid: The graph's name in torch-geometric's `Planetoid` loader, which is used if no file is given.
    """

    kind = "node-classification"
    processor = "alignattn.tasks.nodes.processor:NodeProcessor"

    evaluation_splits: tuple[str, ...] = (VALIDATION, TEST)
    planetoid: str = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The graph and the node."""
        return GRAPH, NODE

    def problem(self) -> str | None:
        """Return the problem of missing labels, or that of `LabelledTask.problem`."""
        return "give two or more labels: nodes have classes, not scores" if self.is_regression else super().problem()


TASK_TYPES: Mapping[str, type[Task]] = {
    record.kind: record
    for record in (
        TextClassification,
        MultiLabelClassification,
        MultipleChoice,
        TokenClassification,
        QuestionAnswering,
        VisualQuestionAnswering,
        ImageClassification,
        SequenceToSequence,
        ImageToText,
        NodeClassification,
    )
}
"""The record of each task type, by the Hub's name."""
