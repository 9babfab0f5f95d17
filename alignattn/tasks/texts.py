"""Classification or regression of one text or a pair of texts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from numpy.typing import NDArray
from transformers import AutoModelForSequenceClassification, PreTrainedTokenizerBase

from alignattn.tasks.labelled import LabelledProcessor
from alignattn.tasks.long_texts import encode_texts
from alignattn.tasks.processor import text_problems
from alignattn.tasks.stories import made_stories
from alignattn.tasks.task import TEST, TRAIN, VALIDATION, TaskOptions
from alignattn.tasks.task_types import TextClassification
from alignattn.utils.errors import AlignAttnError

STORY_SEEDS = {TRAIN: 0, VALIDATION: 1, TEST: 2}
"""Seed of each split, the same whichever splits a run evaluates."""


class TextClassificationProcessor(LabelledProcessor[TextClassification]):
    """One sequence per row: the text, or the pair of texts joined by the tokenizer."""

    auto_class = AutoModelForSequenceClassification
    can_pool_windows = True

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return generated stories, the same in every run; None for other tasks, or if rows are given."""
        task = self.task
        if not task.supporting_facts or data_dir is not None or task.sources.files:
            return None
        if name not in STORY_SEEDS:
            raise AlignAttnError(f"{task.name} has no split {name!r} (there: {', '.join(STORY_SEEDS)})")
        # As many questions per split as in bAbI.
        rows = made_stories(task.supporting_facts, 1000, STORY_SEEDS[name])
        return datasets.Dataset.from_dict(rows), f"split {name!r} of alignattn's generated stories"

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with a bad text."""
        return text_problems(dataset, self.task.text_columns, may_be_empty=may_be_empty)

    def subset(self, dataset: datasets.Dataset) -> tuple[NDArray[np.int64], str] | None:
        """Return the third with the shortest or the longest texts in words; in a tie, earlier rows are shorter."""
        third = self.task.length_third
        if not third:
            return None
        texts = (dataset[column][:] for column in self.task.text_columns)
        words = np.sum([[len(text.split()) for text in column] for column in texts], axis=0)
        count = max(1, len(dataset) // 3)
        order = np.argsort(words, kind="stable")
        chosen = order[:count] if third == "shortest" else order[-count:]
        return np.sort(chosen), f"the {count} rows of {len(dataset)} with the {third} texts"

    def encode(
        self, dataset: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, options: TaskOptions
    ) -> datasets.Dataset:
        """Return the model's inputs, and `label`: an integer for a class, a float for a score."""
        return encode_texts(_labels_of, self.task, dataset, tokenizer, options)


def _labels_of(batch: Mapping[str, Any], task: TextClassification) -> list[Any]:
    label_type = float if task.is_regression else int
    return [label_type(label) for label in batch[task.label_column]]
