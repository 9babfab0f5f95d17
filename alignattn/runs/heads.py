"""What one head of a run's model makes of texts: queries, keys and weights, token by token, without padding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from alignattn.models.lengths import most_tokens
from alignattn.patching import patch_of
from alignattn.patching.balance import balance_obstacle
from alignattn.plots import TokenMapPanel
from alignattn.runs.data_options import DataOptions
from alignattn.runs.recorded_model import RecordedModel, load_recorded_model
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import Task
from alignattn.tasks.kinds import kind_of


@dataclass(frozen=True)
class Examples:
    """Texts that every run is shown.

    Attributes:
        description: which they are, in words.
        encode: returns what a model reads of each, given its tokenizer; nothing is padded.
        tokenizer_options: how the tokenizer must be loaded.
    """

    description: str
    encode: Callable[[PreTrainedTokenizerBase], list[dict[str, list[int]]]]
    tokenizer_options: Mapping[str, Any] = field(default_factory=dict)


def row_examples(task: Task, split: str, rows: datasets.Dataset, data: DataOptions) -> Examples:
    """Return rows as examples: one sequence a row, of question answering the windows of each.

    Args:
        task: that they are of.
        split: its name, for the description.
        rows: the first of it.
        data: the options of a run, which say how long a row may be.
    """
    kind = kind_of(task)

    def encode(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, list[int]]]:
        # A token is shown once: windows of a long context share none.
        encoded = kind.encode(task, rows, tokenizer, replace(data.task_options(task, tokenizer), doc_stride=0))
        return list(encoded.select_columns([name for name in tokenizer.model_input_names if name in encoded.features]))

    number = "the first row" if len(rows) == 1 else f"the first {len(rows)} rows"
    return Examples(f"{number} of {task.name} {split}", encode, kind.tokenizer_options)


@dataclass(frozen=True)
class SeenText:
    """What a head made of one text of n tokens.

    Attributes:
        tokens: as the tokenizer names them.
        query: `[n, d]`.
        key: `[n, d]`.
        weights: `[n, n]`, a row a query.
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
        texts: in order.
        obstacle: why queries and keys cannot be balanced, or None.
    """

    name: str
    layer: int
    head: int
    texts: Sequence[SeenText]
    obstacle: str | None

    @property
    def title(self) -> str:
        """The run and the place of the head."""
        return f"{self.name}\nlayer {self.layer}, head {self.head}"

    def attention_panels(self) -> list[TokenMapPanel]:
        """Return the heat map of the attention in each text."""
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
    loaded = load_recorded_model(str(folder), examples.tokenizer_options)
    place, number = _find_layer(loaded, name, layer, head)
    encoded = examples.encode(loaded.tokenizer)
    _check_lengths(loaded, name, max(len(example["input_ids"]) for example in encoded))
    texts = [_see(loaded, example, place, head) for example in encoded]
    return HeadView(name, number, head, texts, balance_obstacle(loaded.model))


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


def _see(loaded: RecordedModel, example: Mapping[str, Sequence[int]], place: int, head: int) -> SeenText:
    layer = loaded.record({name: torch.tensor([values]) for name, values in example.items()})[place]
    tokens = loaded.tokenizer.convert_ids_to_tokens(list(example["input_ids"]))
    return SeenText(tokens, layer["query"][0, head], layer["key"][0, head], layer["weights"][0, head])
