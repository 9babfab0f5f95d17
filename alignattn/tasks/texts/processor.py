"""Classification or regression of one text or a pair of texts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.processor import check_max_length, encode_rows, name_classes, text_problem
from alignattn.tasks.task import TRAIN, TaskOptions
from alignattn.tasks.texts.stories import made_stories
from alignattn.tasks.texts.task import TextClassification

LENGTH_THIRD = 3
MADE_STORIES = 1000
"""Questions of a split, as many as bAbI has."""


class TextClassificationProcessor(LabelledProcessor[TextClassification]):
    """One sequence a row: the text, or the pair as the tokenizer joins pairs."""

    auto_class = AutoModelForSequenceClassification

    def read_split(
        self, task: TextClassification, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return stories that are made up, the same ones each time; None of any other task, or where rows are given."""
        if not task.supporting_facts or data_dir is not None or task.sources.files:
            return None
        seed = (TRAIN, *task.evaluation_splits).index(name)
        rows = made_stories(task.supporting_facts, MADE_STORIES, seed)
        return datasets.Dataset.from_dict(rows), f"split {name!r} of the stories that alignattn makes up"

    def input_problems(
        self, task: TextClassification, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows whose text is missing."""
        return text_problems(dataset, task.text_columns, may_be_empty=may_be_empty)

    def part(self, task: TextClassification, dataset: datasets.Dataset) -> tuple[NDArray[np.int64], str] | None:
        """Return the third with the fewest or the most words; of equally long ones those that stand first are fewer."""
        if not task.length_third:
            return None
        words = np.sum([[len(text.split()) for text in dataset[column][:]] for column in task.text_columns], axis=0)
        count = max(1, len(dataset) // LENGTH_THIRD)
        order = np.argsort(words, kind="stable")
        chosen = order[:count] if task.length_third == "shortest" else order[-count:]
        return np.sort(chosen), f"the {count} rows of {len(dataset)} with the {task.length_third} texts"

    def configure(self, task: TextClassification, config: PreTrainedConfig) -> None:
        """Set the number of outputs, and the names of the classes."""
        if task.is_regression:
            config.num_labels = task.num_labels
            config.problem_type = "regression"
        else:
            name_classes(config, task.labels)
            if len(task.labels) > 1:
                # The first forward with labels would write it: a run that is resumed at its end has none.
                config.problem_type = "single_label_classification"

    def encode(
        self,
        task: TextClassification,
        dataset: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return `input_ids`, `attention_mask`, `token_type_ids` where the model has them, and `label`.

        Of a pair that is too long the longer text is cut first. The label is an integer for a class, a float for a
        score.
        """
        check_max_length(task, tokenizer, options.max_length, len(task.text_columns))
        return encode_rows(_encode_batch, task, dataset, tokenizer, options)

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> DataCollatorWithPadding:
        """Return what pads to the longest row of a batch."""
        return DataCollatorWithPadding(tokenizer)


def text_problems(dataset: datasets.Dataset, columns: Sequence[str], *, may_be_empty: bool = False) -> dict[int, str]:
    """Return what is wrong with the first bad text of each row that has one, by the row's index from 0."""
    problems: dict[int, str] = {}
    for column in reversed(columns):
        for index, text in enumerate(dataset[column][:]):
            problem = text_problem(f"column {column!r}", text, may_be_empty=may_be_empty)
            if problem is not None:
                problems[index] = problem
    return problems


def _encode_batch(
    batch: dict[str, list[Any]], task: TextClassification, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    texts = [batch[column] for column in task.text_columns]
    encoding = dict(tokenizer(*texts, truncation=True, max_length=max_length))
    kind = float if task.is_regression else int
    encoding["label"] = [kind(label) for label in batch[task.label_column]]
    return encoding
