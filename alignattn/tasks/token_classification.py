"""Tags of words, such as those of named entities."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self

from alignattn.tasks.labels import feature_names
from alignattn.tasks.metrics import class_scores
from alignattn.tasks.names import TAGS, TOKENS
from alignattn.tasks.task import (
    EncodedSplit,
    Evaluation,
    Task,
    TaskOptions,
    by_row,
    check_max_length,
    evaluation_table,
    name_classes,
)
from alignattn.utils.errors import shown

if TYPE_CHECKING:
    import datasets
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray
    from transformers import PreTrainedConfig


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
    can_weight_classes = True
    auto_class = "AutoModelForTokenClassification"
    # Without it, byte-level tokenizers read each word of a list as if it were the first of a text.
    tokenizer_options = MappingProxyType({"add_prefix_space": True})

    metrics: tuple[Literal["f1", "precision", "recall", "token_accuracy"], ...] = (
        "f1",
        "precision",
        "recall",
        "token_accuracy",
    )
    tokens_column: str = TOKENS
    tags_column: str = TAGS
    labels: tuple[str, ...] = ()

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The column of words."""
        return (self.tokens_column,)

    def row_of(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return the row with the words of a text, split at blanks."""
        return {self.tokens_column: texts[0].split()}

    def problem(self) -> str | None:
        """Return the problem of the columns or the tags, or that of `Task.problem`."""
        if self.tokens_column == self.tags_column or len({*self.labels, ""}) <= len(self.labels):
            return "tokens_column and tags_column must differ, and labels must not repeat or be empty text"
        return super().problem()

    def columns(self) -> list[str]:
        """Return the columns of words and tags."""
        return [self.tokens_column, self.tags_column]

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with tags as names; a class number without a name becomes text."""
        column = self.tags_column
        given, names = dataset[column][:], feature_names(dataset, column)
        of_number = dict(enumerate(names))
        tags = [
            [of_number.get(tag, str(tag)) if type(tag) is int else tag for tag in row] if isinstance(row, list) else row
            for row in given
        ]
        return dataset if tags == given else dataset.remove_columns(column).add_column(column, tags)

    def infer_labels(self, dataset: datasets.Dataset, origin: str) -> Self:
        """Return the task with the tags of its rows, and without scores of entities if the tags mark none."""
        from alignattn.tasks.tags.entities import TOKEN_ACCURACY, marks_entities
        from alignattn.tasks.tags.tagging import tag_names, tag_problem

        task: Self = self
        if not task.labels:
            named = feature_names(dataset, task.tags_column)
            rows = self.normalise(dataset)
            tags = rows[task.tags_column][:]
            labels = tag_names(tags, named, origin)
            # A row that will be left out defines no tag.
            pairs = zip(rows[task.tokens_column][:], tags, strict=True)
            good = [own for tokens, own in pairs if tag_problem(tokens, own, labels) is None]
            task = replace(task, labels=tag_names(good, named, origin) if good else labels)
        if marks_entities(task.labels) or task.metrics == (TOKEN_ACCURACY,):
            return task
        tag = next(name for name in task.labels if not marks_entities([name]))
        print(
            f"{origin}: the tag {shown(tag)} does not mark an entity as B-{tag} and I-{tag} would: the metric is token "
            "accuracy",
            file=sys.stderr,
        )
        return replace(task, metrics=(TOKEN_ACCURACY,))

    def row_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows with unequal numbers of words and tags, an empty word, or an unknown tag."""
        from alignattn.tasks.tags.tagging import tag_problem

        rows = zip(dataset[self.tokens_column][:], dataset[self.tags_column][:], strict=True)
        return by_row(tag_problem(tokens, tags, self.labels) for tokens, tags in rows)

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with texts split into words at blanks: a CSV file holds no lists.

        A list as JSON, which `alignattn predict` writes, is read; as Python prints it, it stays a text, a bad row.
        """
        from alignattn.tasks.reading import dataset_of

        def words_of(value: Any) -> Any:
            if not isinstance(value, str):
                return value
            if not value.startswith(('["', "['")):
                return value.split()
            with suppress(ValueError):
                return json.loads(value)
            return value

        values = dataset[self.tokens_column][:]
        if not any(isinstance(value, str) for value in values):
            return dataset
        return dataset_of({self.tokens_column: list(map(words_of, values))})

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without words, or with an empty one."""
        from alignattn.tasks.tags.tagging import words_problem

        return by_row(map(words_problem, dataset[self.tokens_column][:]))

    def add_dummy_labels(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with the first tag at every word."""
        tags = [[self.labels[0]] * len(tokens) for tokens in dataset[self.tokens_column][:]]
        return dataset.add_column(self.tags_column, tags)

    def configure(self, config: PreTrainedConfig) -> None:
        """Set the names of the tags; a model of scores, from which the training starts, leaves its problem type."""
        name_classes(config, self.labels)
        config.problem_type = None

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return the model's inputs, `labels`, and which words the model reads, by `encode_tags`."""
        from alignattn.tasks.tags.tagging import encode_tags

        check_max_length(self.name, tokenizer, options.max_length, num_texts=1)
        return encode_tags(
            dataset.select_columns(self.columns()),
            tokenizer,
            self.labels,
            max_length=options.max_length,
            num_proc=options.num_proc,
        )

    def class_counts(self, split: EncodedSplit) -> NDArray[np.int64]:
        """Return the number of words with each tag, among the words that the model reads."""
        import numpy as np

        from alignattn.tasks.tags.tagging import IGNORED

        tags = np.concatenate(split.encoded.with_format("numpy")["labels"][:])
        return np.bincount(tags[tags != IGNORED], minlength=len(self.labels))

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that pads inputs and labels to the longest row."""
        from alignattn.tasks.tags.tagging import TagCollator

        return TagCollator(tokenizer)

    def predictions(self, split: EncodedSplit, outputs: Any, labels: Any) -> pa.Table:
        """Return one tag per word, `O` for words that the model does not read.

        A model that decodes sequences of tags outputs two arrays, the logits and the numbers of the tags.
        """
        import numpy as np
        import pyarrow as pa

        from alignattn.tasks.tags.tagging import WORDS_READ, word_tags

        logits, decoded = outputs if isinstance(outputs, tuple) else (outputs, None)
        words_read = split.encoded[WORDS_READ][:]
        tags = word_tags(np.asarray(logits), np.asarray(labels), self.labels, words_read, decoded)
        return pa.table({"prediction": pa.array(tags)})

    def constant_prediction(self, predictions: pa.Table) -> str | None:
        """Return the predicted tag in words, if all words have the same one."""
        tags = predictions["prediction"].combine_chunks().flatten().unique().to_pylist()
        return f"the tag {tags[0]!r}" if len(tags) == 1 and predictions.num_rows > 1 else None

    def evaluate(self, split: EncodedSplit, outputs: Any, labels: Any) -> Evaluation:
        """Score the entities of the predicted tags, or each tag by words if they mark no entities."""
        import numpy as np
        import pyarrow as pa

        from alignattn.tasks.tags.entities import TOKEN_ACCURACY, entity_scores, entity_type_scores

        predictions = self.predictions(split, outputs, labels)
        tags = predictions["prediction"].to_pylist()
        gold = split.rows[self.tags_column][:]
        scores = entity_scores(tags, gold)
        table = evaluation_table(split.rows, {"label": pa.array(gold)}, predictions)
        if self.metrics == (TOKEN_ACCURACY,):
            numbers = {name: number for number, name in enumerate(self.labels)}
            # A word that the model does not read is predicted `O`, which may be none of the tags.
            right, found = (
                np.array([numbers.get(tag, len(numbers)) for tag in chain.from_iterable(rows)]) for rows in (gold, tags)
            )
            classes = class_scores(right, found, self.labels)
        else:
            classes = entity_type_scores(tags, gold)
        return Evaluation({name: scores[name] for name in self.metrics}, table, classes=classes)
