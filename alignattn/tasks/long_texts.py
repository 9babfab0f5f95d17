"""Texts as token ids: truncated, or as overlapping windows whose logits are pooled into one prediction per row.

A split of windows has one item per window, with the number of its row. Evaluation and prediction process the windows in
batches of any size and pool the logits of each row at the end: this is exact and needs the memory of one batch.
Training iterates over rows: `WindowedRows` returns at most `MAX_TRAIN_WINDOWS` windows of each row, and `WindowPooling`
computes the loss of the pooled logits. Its gradient is that of the loss over the sampled windows.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import tokenizers
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import BatchEncoding, DataCollatorWithPadding, PreTrainedTokenizerBase
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.tasks.names import IS_TRUNCATED, WINDOW_COUNTS, WINDOW_OF
from alignattn.tasks.task import TaskOptions, check_max_length, map_rows
from alignattn.utils.errors import AlignAttnError

MAX_TRAIN_WINDOWS = 8
"""Maximum windows per row in a training step, which bounds its memory."""

TEXTS_AT_ONCE = 16
"""Number of long texts to tokenize at a time: meanwhile each token takes some hundred bytes."""

NEW_TOKENS_SHARE = 2
# The text that every window repeats gets at most one in this many of the tokens that special tokens and the overlap
# leave: windows that advance by a token or two would be hundreds per text.


def encode_texts(
    task: Any,
    label_columns: Sequence[str],
    label_type: Callable[[Any], int | float],
    dataset: datasets.Dataset,
    tokenizer: PreTrainedTokenizerBase,
    options: TaskOptions,
) -> datasets.Dataset:
    """Return the model's inputs for rows of one or two texts, and `label`; nothing is padded.

    Truncation shortens the longer text of a pair first. Windows split the longer text and repeat the other, which is
    truncated to half of the tokens that special tokens and the overlap leave.

    Args:
        task: the task of the rows, which has `text_columns`.
        label_columns: the column of the label; several columns become a list.
        label_type: the type of a label.
        dataset: the rows.
        tokenizer: the model's tokenizer.
        options: the encoding options, such as `max_length`.
    """
    num_texts = len(task.text_columns)
    check_max_length(task.name, tokenizer, options.max_length, num_texts)
    repeated = 0
    if options.has_windows:
        repeated = fixed_tokens(tokenizer, options.max_length, options.doc_stride, num_texts)
        if not tokenizer.is_fast:
            raise AlignAttnError(
                f"--long_texts windows needs a fast tokenizer, and {type(tokenizer).__name__} is slow: leave it out, "
                "or choose another model"
            )
    return map_rows(
        dataset,
        _encode_batch,
        fn_kwargs={
            "text_columns": task.text_columns,
            "label_columns": label_columns,
            "label_type": label_type,
            "tokenizer": tokenizer,
            "options": options,
            "fixed_tokens": repeated,
        },
        with_indices=True,
        remove_columns=dataset.column_names,
        num_proc=options.num_proc,
        desc=f"tokenizing {task.name}",
        batch_size=TEXTS_AT_ONCE if options.has_windows else 1000,
    )


def fixed_tokens(tokenizer: PreTrainedTokenizerBase, max_length: int, doc_stride: int, num_texts: int) -> int:
    """Return the maximum number of tokens of the text that all windows repeat; 0 for a single text.

    Raises:
        AlignAttnError: if windows of that length have no room for the texts and the overlap.
    """
    special = tokenizer.num_special_tokens_to_add(pair=num_texts > 1)
    smallest = special + doc_stride + (NEW_TOKENS_SHARE if num_texts > 1 else 1)
    if max_length < smallest:
        raise AlignAttnError(
            f"--max_length {max_length} leaves no room for a window of a text, with --doc_stride {doc_stride} shared "
            f"tokens and {special} special ones: give --max_length {smallest} or more, or a smaller --doc_stride"
        )
    return (max_length - special - doc_stride) // NEW_TOKENS_SHARE if num_texts > 1 else 0


def truncated_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, limit: int) -> list[str]:
    """Return the texts, each truncated to at most `limit` tokens, without special tokens."""
    truncated = []
    for text, tokens in zip(texts, plain_tokens(texts, tokenizer), strict=True):
        # The shortened text may be split into other, more tokens than within the whole: there may still be too many.
        while len(tokens) > limit:
            text = text[: min(tokens.offsets[limit][0], len(text) - 1)]
            (tokens,) = plain_tokens([text], tokenizer)
        truncated.append(text)
    return truncated


def plain_tokens(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase) -> Any:
    """Return a `tokenizers.Encoding` of each text, without special tokens."""
    return tokenizer(list(texts), add_special_tokens=False, truncation=False, padding=False, verbose=False).encodings


def _encode_batch(
    batch: dict[str, list[Any]],
    indices: list[int],
    text_columns: Sequence[str],
    label_columns: Sequence[str],
    label_type: Callable[[Any], int | float],
    tokenizer: PreTrainedTokenizerBase,
    options: TaskOptions,
    fixed_tokens: int,
) -> dict[str, list[Any]]:
    columns_of_labels = [list(map(label_type, batch[column])) for column in label_columns]
    labels = columns_of_labels[0] if len(label_columns) == 1 else list(map(list, zip(*columns_of_labels, strict=True)))
    texts = [list(batch[column]) for column in text_columns]
    if not options.has_windows:
        return {**tokenizer(*texts, truncation=True, max_length=options.max_length), "label": labels}

    is_truncated = [False] * len(indices)
    # Keyed by the text that is split, the first or the second.
    rows: dict[str, list[int]] = {"only_first": list(range(len(indices)))}
    if len(texts) > 1:
        lengths = [[len(tokens) for tokens in plain_tokens(text, tokenizer)] for text in texts]
        rows = {"only_first": [], "only_second": []}
        special = tokenizer.num_special_tokens_to_add(pair=True)
        for row, (first, second) in enumerate(zip(*lengths, strict=True)):
            rows["only_first" if first > second else "only_second"].append(row)
            fixed = min(first, second)
            if fixed > fixed_tokens and first + second + special > options.max_length:
                kept = texts[first > second]
                (kept[row],) = truncated_texts([kept[row]], tokenizer, fixed_tokens)
                is_truncated[row] = True
    columns: dict[str, list[Any]] = {}
    owners: list[int] = []
    for side, chosen in rows.items():
        if not chosen:
            continue
        encoding = dict(
            window_encodings(
                tokenizer,
                *([text[row] for row in chosen] for text in texts),
                truncation=side,
                max_length=options.max_length,
                doc_stride=options.doc_stride,
            )
        )
        owners += [chosen[sample] for sample in encoding.pop("overflow_to_sample_mapping")]
        for name, values in encoding.items():
            columns.setdefault(name, []).extend(values)
    order = sorted(range(len(owners)), key=owners.__getitem__)
    owners = [owners[window] for window in order]
    return {
        **{name: [values[window] for window in order] for name, values in columns.items()},
        "label": [labels[row] for row in owners],
        WINDOW_OF: [indices[row] for row in owners],
        IS_TRUNCATED: [is_truncated[row] for row in owners],
    }


def window_encodings(
    tokenizer: PreTrainedTokenizerBase, *texts: list[str], truncation: str, max_length: int, doc_stride: int
) -> BatchEncoding:
    """Return the encodings of all windows, without padding, and their rows in `overflow_to_sample_mapping`.

    Args:
        tokenizer: the tokenizer.
        texts: the texts of each row, or the first and the second texts of pairs.
        truncation: the text that is split: `only_first` or `only_second`.
        max_length: tokens of a window.
        doc_stride: tokens that neighbouring windows share.

    Raises:
        AlignAttnError: if the installed tokenizers loses windows.
    """
    if not _keeps_windows():
        raise AlignAttnError(
            f"tokenizers {tokenizers.__version__} loses the end of a text that does not fit into one window: "
            "pip install 'tokenizers!=0.23.1,!=0.23.2'"
        )
    return tokenizer(
        *texts,
        truncation=truncation,
        max_length=max_length,
        stride=doc_stride,
        return_overflowing_tokens=True,
        padding=False,
    )


@functools.cache
def _keeps_windows() -> bool:
    """Return whether the installed tokenizers returns all windows of a text (huggingface/tokenizers#2091)."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"word": 0}, unk_token="word"))  # noqa: S106 - no password
    words.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    words.enable_truncation(1)
    return len(words.encode("word word").overflowing) == 1


def pool_windows(logits: Tensor, counts: Tensor) -> Tensor:
    """Return the maximum logit of each class over the windows of a row, `[N, C]`; for scores, `[N, 1]`, the mean.

    The maximum finds what only one of many windows contains; a mean would dilute it.

    Args:
        logits: `[W, C]`, the windows of a row one after another.
        counts: the number of windows of each row, `[N]`, 1 or more.
    """
    rows = torch.arange(len(counts), device=counts.device).repeat_interleave(counts, output_size=len(logits))
    if logits.shape[1] == 1:
        return logits.new_zeros(len(counts), 1).index_add(0, rows, logits) / counts[:, None]
    # Not with `include_self=False`, whose gradient is wrong if a logit equals the excluded value.
    lowest = logits.new_full((len(counts), logits.shape[1]), -torch.inf)
    return lowest.scatter_reduce(0, rows[:, None].expand_as(logits), logits, "amax")


def pooled_outputs(windows: datasets.Dataset, outputs: Any, labels: Any = None) -> tuple[Any, Any]:
    """Return the logits and labels of the rows of an encoded split; both are unchanged if its items are not windows.

    Args:
        windows: the encoded split.
        outputs: logits of its items, `[W, C]`.
        labels: labels of its items, `[W]` or `[W, C]`, if any.
    """
    if WINDOW_OF not in windows.column_names:
        return outputs, labels
    counts = window_counts(windows)
    pooled = pool_windows(torch.as_tensor(outputs), torch.as_tensor(counts)).numpy()
    return pooled, None if labels is None else labels[counts.cumsum() - counts]


def window_counts(windows: datasets.Dataset) -> NDArray[np.int64]:
    """Return the number of windows of each row of an encoded split, `[N]`."""
    return np.bincount(windows.with_format("numpy")[:][WINDOW_OF])


class WindowedRows(torch.utils.data.Dataset[dict[str, Any]]):
    """The training rows of an encoded split, each with at most `MAX_TRAIN_WINDOWS` windows, resampled in each epoch.

    A sample depends only on the seed, the epoch and the row, so that a resumed run reads the same windows.

    Args:
        windows: the encoded split.
        seed: the seed of the samples.
    """

    def __init__(self, windows: datasets.Dataset, seed: int) -> None:
        self.counts = window_counts(windows)
        self.windows = windows.remove_columns([WINDOW_OF, IS_TRUNCATED])
        self.starts = self.counts.cumsum() - self.counts
        self.seed = seed
        # Shared, because data loader workers may outlive an epoch.
        self.epoch = torch.zeros((), dtype=torch.int64).share_memory_()

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch whose windows to sample."""
        self.epoch.fill_(epoch)

    def __len__(self) -> int:
        return len(self.counts)

    def __getitem__(self, row: int) -> dict[str, Any]:
        """Return the columns of a row's windows, a list each, and its `label`."""
        chosen = np.arange(self.counts[row])
        if len(chosen) > MAX_TRAIN_WINDOWS:
            generator = np.random.default_rng((self.seed, int(self.epoch), row))
            chosen = np.sort(generator.choice(chosen, MAX_TRAIN_WINDOWS, replace=False))
        columns: dict[str, Any] = self.windows[(self.starts[row] + chosen).tolist()]
        return columns | {"label": columns["label"][0]}


class WindowCollator:
    """Puts the windows of several rows of `WindowedRows` into one batch, padded to the longest."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.pad = DataCollatorWithPadding(tokenizer)

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the model's inputs `[W, n]` of all windows, `labels` of the rows and `window_counts` `[B]`."""
        inputs = [{name: values for name, values in row.items() if name != "label"} for row in rows]
        windows = [dict(zip(row, values, strict=True)) for row in inputs for values in zip(*row.values(), strict=True)]
        counts = torch.tensor([len(next(iter(row.values()))) for row in inputs])
        # First, because transformers takes the size of a batch from its first tensor.
        return {"labels": torch.tensor([row["label"] for row in rows]), WINDOW_COUNTS: counts, **self.pad(windows)}


class WindowPooling:
    """Hooks by which a classifier returns the pooled logits of a batch of `WindowCollator`, and their loss.

    The outputs for other batches do not change.
    """

    def __init__(self, model: nn.Module) -> None:
        self._counts: Tensor | None = None
        self._labels: Tensor | None = None
        model.register_forward_pre_hook(self._before, with_kwargs=True)
        model.register_forward_hook(self._after)

    def _before(self, model: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        kwargs = dict(kwargs)
        self._counts = kwargs.pop(WINDOW_COUNTS, None)
        self._labels = None if self._counts is None else kwargs.pop("labels", None)
        return args, kwargs

    def _after(self, model: Any, args: Any, outputs: Any) -> Any:
        if self._counts is None:
            return outputs
        logits = pool_windows(outputs["logits"], self._counts)
        loss = None
        if self._labels is not None:
            loss = model.loss_function(labels=self._labels, pooled_logits=logits, config=model.config)
        return SequenceClassifierOutput(loss=loss, logits=logits)
