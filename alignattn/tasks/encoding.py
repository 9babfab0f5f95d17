"""Rows to token ids: what a data collator pads and a model reads."""

from typing import Any

import datasets
from transformers import PreTrainedTokenizerBase

from alignattn.errors import AlignAttnError
from alignattn.tasks.task import Task


def encode(
    dataset: datasets.Dataset,
    task: Task,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    num_proc: int | None = None,
) -> datasets.Dataset:
    """Tokenizes the texts of a task, one sequence a row.

    Nothing is padded: `transformers.DataCollatorWithPadding` pads each batch to its longest row.

    Args:
        dataset: Rows with the task's text columns and label column.
        task: Which columns are texts, and whether the label is a class.
        tokenizer: The model's tokenizer; a pair is joined as it joins pairs.
        max_length: The most tokens a row keeps, special tokens included; of a pair the longer is cut first.
        num_proc: How many processes tokenize; this one when None.

    Returns:
        `input_ids`, `attention_mask`, `token_type_ids` where the model has them, and `label`: an integer for
        a class, a float for a score.

    Raises:
        AlignAttnError: `max_length` leaves no room for a token of each text, or is more than the model takes.
    """
    _check_max_length(task, tokenizer, max_length)
    return dataset.map(
        _encode_batch,
        batched=True,
        fn_kwargs={"task": task, "tokenizer": tokenizer, "max_length": max_length},
        remove_columns=dataset.column_names,
        num_proc=num_proc,
        desc=f"tokenizing {task.name}",
    )


def _encode_batch(
    batch: dict[str, list[Any]], task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int
) -> dict[str, list[Any]]:
    texts = [batch[column] for column in task.text_columns]
    encoding = dict(tokenizer(*texts, truncation=True, max_length=max_length))
    kind = float if task.is_regression else int
    encoding["label"] = [kind(label) for label in batch[task.label_column]]
    return encoding


def _check_max_length(task: Task, tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    texts = len(task.text_columns)
    # Below this the tokenizer does not cut at all, and does not say so.
    smallest = tokenizer.num_special_tokens_to_add(pair=texts > 1) + texts
    if not smallest <= max_length <= tokenizer.model_max_length:
        raise AlignAttnError(
            f"max_length {max_length} is no good: task {task.name!r} needs at least {smallest} tokens a row, "
            f"and the model takes at most {tokenizer.model_max_length}"
        )
