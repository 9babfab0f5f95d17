"""The kinds of tasks: a room and a line here each. Imports nothing heavy before a kind is asked for."""

from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

from alignattn.tasks.task import Task
from alignattn.utils.registry import Entry, Registry

if TYPE_CHECKING:
    from alignattn.tasks.processor import TaskProcessor

TASK_PROCESSORS = Registry(
    "kind of task",
    {
        "text-classification": Entry(".texts.task:TextClassification", "a class or a score of one text or two"),
        "multi-label-classification": Entry(
            ".multilabel.task:MultiLabelClassification", "any number of labels of one text or two"
        ),
        "multiple-choice": Entry(".choices.task:MultipleChoice", "the right ending among several"),
        "token-classification": Entry(".tags.task:TokenClassification", "a tag for each word"),
        "question-answering": Entry(".answers.task:QuestionAnswering", "the span of a context that answers a question"),
        "visual-question-answering": Entry(
            ".vqa.task:VisualQuestionAnswering", "the answer to a question about an image"
        ),
        "text2text-generation": Entry(".sequences.task:SequenceToSequence", "a sequence that is written of another"),
        "image-to-text": Entry(".captions.task:ImageToText", "a caption that is written for a picture"),
        "node-classification": Entry(".nodes.task:NodeClassification", "a class of a node of a graph"),
    },
    __package__,
)
"""What the Hub calls a kind, and the record of its tasks."""

T = TypeVar("T", bound=Task)


def processor_for(task: T | type[T]) -> "TaskProcessor[T]":
    """Return what the kind of a task, or of a class of tasks, does with rows and outputs; imports transformers."""
    kind: Any = resolve_name(task.implementation)
    return kind()
