"""What one head of a run's model makes of texts: queries, keys and weights, token by token, without padding."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from alignattn.commands.figure import FigureOptions
from alignattn.models.lengths import most_tokens
from alignattn.patching import patch_of
from alignattn.runs.folders import load_run_evaluation, read_run_options
from alignattn.runs.options import DataOptions
from alignattn.runs.recorded_model import RecordedModel, load_recorded_model
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import MultipleChoice, Task
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import max_samples
from alignattn.tasks.task import TaskOptions


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
    """

    name: str
    layer: int
    head: int
    texts: Sequence[SeenText]

    @property
    def title(self) -> str:
        """The run and the place of the head."""
        return f"{self.name}\nlayer {self.layer}, head {self.head}"


def choose_examples(folders: Sequence[Path], options: FigureOptions, num_rows: int) -> Examples:
    """Return the given text, or else the first evaluation rows of the first run, for all runs."""
    if options.text is not None:
        texts = options.text
        return Examples("the given text", lambda tokenizer: [dict(tokenizer(*texts))])
    runs = [read_run_options(folder) for folder in folders]
    sources = [_source(run.data) for run in runs]
    for folder, source in zip(folders, sources, strict=True):
        if source != sources[0]:
            raise AlignAttnError(
                f"--run: {folders[0]} is of {sources[0]} and {folder} of {source}: give runs of one task, or --text"
            )
    rows = load_run_evaluation(runs[0], options.data_dir)
    if isinstance(rows.task, MultipleChoice):
        raise AlignAttnError(f"task {rows.task.name!r} has several sequences a row: give --text")
    if not rows.evaluation:
        raise AlignAttnError(f"{folders[0]} has no evaluation rows: it was made without --validation_file; give --text")
    split, dataset = next(iter(rows.evaluation.items()))
    # A token is shown once: windows of a long context share none.
    task_options = replace(runs[0].data.task_options(rows.task), doc_stride=0)
    return _first_rows(rows.task, split, max_samples(dataset, num_rows), task_options)


def _first_rows(task: Task, split: str, rows: datasets.Dataset, options: TaskOptions) -> Examples:
    """One sequence a row; of question answering the windows of each."""
    kind = kind_of(task)

    def encode(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, list[int]]]:
        encoded = kind.encode(task, rows, tokenizer, options)
        return list(encoded.select_columns([name for name in tokenizer.model_input_names if name in encoded.features]))

    number = "the first row" if len(rows) == 1 else f"the first {len(rows)} rows"
    return Examples(f"{number} of {task.name} {split}", encode, kind.tokenizer_options)


def view_head(folder: Path, name: str, examples: Examples, options: FigureOptions) -> HeadView:
    """Return what the chosen head of the run in `folder`, which is called `name`, makes of the examples."""
    loaded = load_recorded_model(str(folder), examples.tokenizer_options)
    head = options.head
    place, layer = _find_layer(loaded, name, options.layer, head)
    encoded = examples.encode(loaded.tokenizer)
    _check_lengths(loaded, name, max(len(example["input_ids"]) for example in encoded))
    return HeadView(name, layer, head, [_see(loaded, example, place, head) for example in encoded])


def _source(data: DataOptions) -> str:
    """What tells the evaluation rows of one run from those of another."""
    return data.validation_file or data.task or "no evaluation rows"


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
