"""Tasks: their definitions, the loading and encoding of their rows, and the scores of predictions.

`reading` reads a file by its format (`formats`). `rows` checks the rows and their labels (`labels`), and draws samples.
The task encodes and batches its rows and scores their predictions.

This module has no heavy imports; the methods of tasks import what they need.
"""

from alignattn.tasks.definitions import TASKS, get_task, is_definition, plain_name
from alignattn.tasks.image_classification import ImageClassification
from alignattn.tasks.image_to_text import ImageToText
from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.multiple_choice import MultipleChoice
from alignattn.tasks.node_classification import NodeClassification
from alignattn.tasks.question_answering import QuestionAnswering
from alignattn.tasks.sequence_to_sequence import GenerationTask, SequenceToSequence
from alignattn.tasks.task import Sources, Task
from alignattn.tasks.text_classification import MultiLabelClassification, TextClassification
from alignattn.tasks.token_classification import TokenClassification
from alignattn.tasks.visual_question_answering import VisualQuestionAnswering

__all__ = [
    "TASKS",
    "GenerationTask",
    "ImageClassification",
    "ImageToText",
    "LabelledTask",
    "MultiLabelClassification",
    "MultipleChoice",
    "NodeClassification",
    "QuestionAnswering",
    "SequenceToSequence",
    "Sources",
    "Task",
    "TextClassification",
    "TokenClassification",
    "VisualQuestionAnswering",
    "get_task",
    "is_definition",
    "plain_name",
]
