"""Tags of words, such as those of named entities."""

from collections.abc import Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
from transformers import (
    AutoModelForTokenClassification,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)

from alignattn.tasks.processor import (
    EncodedSplit,
    Evaluation,
    TaskProcessor,
    check_max_length,
    name_classes,
    row_numbers,
)
from alignattn.tasks.tags.collator import TagCollator
from alignattn.tasks.tags.entities import TOKEN_ACCURACY, entity_scores
from alignattn.tasks.tags.tagging import (
    WORDS_READ,
    encode_tags,
    is_numbered,
    tag_names,
    tag_problem,
    word_tags,
    words_problem,
)
from alignattn.tasks.tags.task import TokenClassification
from alignattn.tasks.task import TaskOptions


class TokenClassificationProcessor(TaskProcessor[TokenClassification]):
    """One sequence a row; the first piece of a word carries its tag."""

    auto_class = AutoModelForTokenClassification
    # Byte-level tokenizers would read each word of a list as if nothing stood before it.
    tokenizer_options = MappingProxyType({"add_prefix_space": True})

    def columns(self, task: TokenClassification) -> list[str]:
        """Return the column of words and that of their tags."""
        return [task.tokens_column, task.tags_column]

    def normalise(self, task: TokenClassification, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with their tags as names: a class number has that of its feature, or is its own."""
        written, names = dataset[task.tags_column][:], _feature_names(dataset, task.tags_column)
        tags = [_named(row, names) for row in written]
        if tags == written:
            return dataset
        return dataset.remove_columns(task.tags_column).add_column(task.tags_column, tags)

    def resolve(self, task: TokenClassification, dataset: datasets.Dataset, origin: str) -> TokenClassification:
        """Return the task with the tags that its rows have."""
        if task.labels:
            return task
        feature_names = _feature_names(dataset, task.tags_column)
        tags = self.normalise(task, dataset)[task.tags_column][:]
        names = tag_names(tags, feature_names, origin)
        return replace(task, labels=names, metrics=(TOKEN_ACCURACY,) if is_numbered(names) else task.metrics)

    def problems(self, task: TokenClassification, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with more or fewer tags than words, an empty word, or a tag that the task does not have."""
        rows = zip(dataset[task.tokens_column][:], dataset[task.tags_column][:], strict=True)
        found = {index: tag_problem(tokens, tags, task.labels) for index, (tokens, tags) in enumerate(rows)}
        return {index: problem for index, problem in found.items() if problem is not None}

    def normalise_inputs(self, task: TokenClassification, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with texts cut into words at blanks: no CSV file holds lists."""
        values = dataset[task.tokens_column][:]
        if not any(isinstance(value, str) for value in values):
            return dataset
        words = [value.split() if isinstance(value, str) else value for value in values]
        return datasets.Dataset.from_dict({task.tokens_column: words}, on_mixed_types="use_json")

    def input_problems(
        self, task: TokenClassification, dataset: datasets.Dataset, *, may_be_empty: bool
    ) -> dict[int, str]:
        """Return the rows without words, or with an empty one."""
        found = {index: words_problem(tokens) for index, tokens in enumerate(dataset[task.tokens_column][:])}
        return {index: problem for index, problem in found.items() if problem is not None}

    def unlabelled(self, task: TokenClassification, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the first tag at every word."""
        tags = [[task.labels[0]] * len(tokens) for tokens in dataset[task.tokens_column][:]]
        return dataset.add_column(task.tags_column, tags)

    def configure(self, task: TokenClassification, config: PreTrainedConfig) -> None:
        """Set the names of the tags."""
        name_classes(config, task.labels)

    def encode(
        self,
        task: TokenClassification,
        dataset: datasets.Dataset,
        tokenizer: PreTrainedTokenizerBase,
        options: TaskOptions,
    ) -> datasets.Dataset:
        """Return the model's inputs, `labels`, and which words the model reads."""
        check_max_length(task, tokenizer, options.max_length, num_texts=1)
        return encode_tags(
            dataset,
            tokenizer,
            task.labels,
            tokens_column=task.tokens_column,
            tags_column=task.tags_column,
            max_length=options.max_length,
            num_proc=options.num_proc,
        )

    def collator(self, tokenizer: PreTrainedTokenizerBase) -> TagCollator:
        """Return what pads inputs and labels to the longest row of a batch."""
        return TagCollator(tokenizer)

    def answers(self, task: TokenClassification, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return a tag for each word; words that the model does not read are outside of all entities.

        Outputs of a model that chooses sequences of tags are two arrays, its logits and the tags' numbers.
        """
        logits, decoded = outputs if isinstance(outputs, tuple) else (outputs, None)
        tags = word_tags(np.asarray(logits), np.asarray(labels), task.labels, split.encoded[WORDS_READ][:], decoded)
        return pa.table({"prediction": pa.array(tags)})

    def constant_prediction(self, task: TokenClassification, predictions: pa.Table) -> str | None:
        """Return the one tag that every word is given."""
        tags = predictions["prediction"].combine_chunks().flatten().unique().to_pylist()
        return f"the tag {tags[0]!r}" if len(tags) == 1 and predictions.num_rows > 1 else None

    def evaluate(self, task: TokenClassification, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the entities of the predicted tags."""
        answers = self.answers(task, split, outputs, labels)["prediction"]
        predicted, gold = answers.to_pylist(), split.rows[task.tags_column][:]
        table = {"row": pa.array(row_numbers(split.rows)), "label": pa.array(gold), "prediction": answers}
        scores = entity_scores(predicted, gold)
        return Evaluation({name: scores[name] for name in task.metrics}, pa.table(table))


def _feature_names(dataset: datasets.Dataset, column: str) -> Sequence[str] | None:
    return getattr(getattr(dataset.features[column], "feature", None), "names", None)


def _named(tags: Any, names: Sequence[str] | None) -> Any:
    if not isinstance(tags, list):
        return tags
    is_number = [isinstance(tag, int) and not isinstance(tag, bool) for tag in tags]
    return [
        (names[tag] if names is not None and 0 <= tag < len(names) else str(tag)) if known else tag
        for tag, known in zip(tags, is_number, strict=True)
    ]
