"""What one head of a run's model makes of rows: queries, keys and weights, token by token, without padding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from alignattn.finetuning.data_options import DataOptions
from alignattn.finetuning.recorded_model import RecordedModel, load_recorded_model
from alignattn.finetuning.rows import input_batches
from alignattn.models.lengths import most_tokens
from alignattn.models.vqa import WORDS, Sides
from alignattn.patching import patch_of
from alignattn.patching.balance import balance_obstacle
from alignattn.reports.plots import TokenMapPanel
from alignattn.tasks import Task
from alignattn.tasks.processor import EncodedSplit, TaskProcessor
from alignattn.tasks.processors import processor_for
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Examples:
    """Texts, or texts with images, that every run is shown.

    Attributes:
        description: which they are, in words.
        kind: of the task that they are of.
        encode: returns what a model reads of each as a batch of one, given its tokenizer; nothing is padded.
    """

    description: str
    kind: TaskProcessor[Any]
    encode: Callable[[PreTrainedTokenizerBase], list[dict[str, Tensor]]]


def batch_of_one(example: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return what a tokenizer made of one text as a batch."""
    return {name: torch.tensor([values]) for name, values in example.items()}


def row_examples(task: Task, split: str, rows: datasets.Dataset, data: DataOptions) -> Examples:
    """Return rows as examples: one sequence a row, of question answering the windows of each.

    Args:
        task: that they are of.
        split: its name, for the description.
        rows: the first of it.
        data: the options of a run, which say how long a row may be.
    """
    kind = processor_for(task)

    def encode(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Tensor]]:
        # A token is shown once: windows of a long context share none.
        options = replace(data.task_options(task, tokenizer), doc_stride=0)
        split = EncodedSplit(rows, kind.encode(task, rows, tokenizer, options), options)
        return list(input_batches(task, split, tokenizer, range(len(split.encoded)), 1))

    number = "the first row" if len(rows) == 1 else f"the first {len(rows)} rows"
    return Examples(f"{number} of {task.name} {split}", kind, encode)


@dataclass(frozen=True)
class SeenText:
    """What a head made of one row: of the tokens of a text, or of an image's regions and a question's words.

    Attributes:
        tokens: of its texts, as the tokenizer names them.
        query: `[n, d]`.
        key: `[m, d]`.
        weights: `[n, m]`, a row a query.
    """

    tokens: Sequence[str]
    query: Tensor
    key: Tensor
    weights: Tensor


@dataclass(frozen=True)
class HeadView:
    """What a head of a run's model made of all texts.

    Attributes:
        name: of the run.
        layer: counted from 0.
        head: likewise.
        sides: what its queries and what its keys are of.
        texts: in order.
        obstacle: why queries and keys cannot be balanced, or None.
    """

    name: str
    layer: int
    head: int
    sides: Sides
    texts: Sequence[SeenText]
    obstacle: str | None

    @property
    def title(self) -> str:
        """The run and the place of the head."""
        of = "" if self.sides == (WORDS, WORDS) else f" ({' to '.join(dict.fromkeys(self.sides))})"
        return f"{self.name}\nlayer {self.layer}{of}, head {self.head}"

    def attention_panels(self) -> list[TokenMapPanel]:
        """Return the heat map of the attention in each text; raises `AlignAttnError` if not words attend to words."""
        if self.sides != (WORDS, WORDS):
            raise AlignAttnError(
                f"layer {self.layer} of {self.name} attends from {' to '.join(self.sides)}, which no map of words "
                "shows: give the --layer of words alone, or draw `alignattn figure question`"
            )
        return [TokenMapPanel(self.title, text.tokens, text.weights.double().tolist()) for text in self.texts]


def view_head(folder: Path, name: str, examples: Examples, layer: int | None, head: int) -> HeadView:
    """Return what a head of a run's model makes of examples.

    Args:
        folder: of the run.
        name: that it is called by.
        examples: that it is shown.
        layer: from 0; the last one where None.
        head: from 0.
    """
    loaded = load_recorded_model(str(folder), examples.kind.tokenizer_options)
    loaded.check_reads(examples.kind, examples.description)
    place, number = _find_layer(loaded, name, layer, head)
    encoded = examples.encode(loaded.tokenizer)
    _check_lengths(loaded, name, max(example["input_ids"].shape[1] for example in encoded))
    texts = [_see(loaded, example, place, head) for example in encoded]
    (sides,) = loaded.sides([number])
    return HeadView(name, number, head, sides, texts, balance_obstacle(loaded.model))


def _find_layer(loaded: RecordedModel, name: str, layer: int | None, head: int) -> tuple[int, int]:
    """The place of a layer among those that are recorded, and its number."""
    num_layers, num_heads = loaded.num_layers_and_heads()
    numbers = list(patch_of(loaded.model).config.layers or range(num_layers))
    if not 0 <= head < num_heads:
        raise AlignAttnError(f"--head {head}: {name} has heads 0 to {num_heads - 1}")
    if layer is None:
        return len(numbers) - 1, numbers[-1]
    if layer not in numbers:
        is_whole = numbers == list(range(num_layers))
        there = f"0 to {num_layers - 1}" if is_whole else f"{', '.join(map(str, numbers))}, which alone are patched"
        raise AlignAttnError(f"--layer {layer}: {name} has layers {there}")
    return numbers.index(layer), layer


def _check_lengths(loaded: RecordedModel, name: str, longest: int) -> None:
    most = most_tokens(loaded.model, loaded.tokenizer)
    if longest > most:
        raise AlignAttnError(f"the text has {longest} tokens, and {name} takes at most {most}: give a shorter one")


def _see(loaded: RecordedModel, example: Mapping[str, Tensor], place: int, head: int) -> SeenText:
    layer = loaded.record(example)[place]
    tokens = loaded.tokenizer.convert_ids_to_tokens(example["input_ids"][0].tolist())
    return SeenText(tokens, layer["query"][0, head], layer["key"][0, head], layer["weights"][0, head])
