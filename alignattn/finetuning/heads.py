"""Queries, keys and weights of the heads of a trained model, by token and as t-SNE."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import datasets
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.attention.basis import Moments, balancing_basis
from alignattn.attention.distance import equal_counts, measure_distances, sliced_wasserstein
from alignattn.finetuning.options import DataOptions
from alignattn.finetuning.rows import input_batches
from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
from alignattn.models.build import saved_class
from alignattn.models.lengths import most_tokens
from alignattn.models.vqa import REGIONS, WORDS, Sides
from alignattn.patching import collect, is_patched, patch, patch_of, unpatch
from alignattn.patching.balance import reason_unbalanced
from alignattn.patching.checkpoints import class_with_head, load_pretrained, loading, merge_adapters, read_config_fields
from alignattn.reports.plots import HeatMapPanel, PointPanel
from alignattn.tasks import Task
from alignattn.tasks.task import EncodedSplit
from alignattn.utils.errors import AlignAttnError

OTHER_INPUTS = {"pixel_values": "images", "input_values": "sound", "input_features": "sound"}
"""What transformers' models without texts read, by their main input."""

PERPLEXITY = 30.0
"""Perplexity of t-SNE (van der Maaten and Hinton 2008: 5 to 50); smaller for few points."""
POINTS_A_NEIGHBOUR = 3
"""t-SNE uses three times the perplexity as its number of neighbours."""


@dataclass(frozen=True)
class RecordedModel:
    """A patched model in evaluation mode and its tokenizer.

    Attributes:
        name: the name that the user gave.
        model: the patched model, which records its attention under `collect`.
        tokenizer: the model's tokenizer.
        reads_texts_alone: whether it attends only to tokens of texts, and not to regions of images.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reads_texts_alone: bool = True

    def record(self, batch: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        """Return `query` `[B, H, n, d]`, `key` `[B, H, m, d]` and `weights` `[B, H, n, m]` of each attention call."""
        with torch.no_grad(), collect(self.model) as seen:
            self.model(**batch)
        return [{"query": layer.query, "key": layer.shared_key, "weights": layer.weights} for layer in seen.layers]

    def sides(self, layers: Sequence[int]) -> list[Sides]:
        """Return the modalities of the queries and keys of attention calls, given their numbers from 0."""
        return [(WORDS, WORDS) if self.reads_texts_alone else self.declared_sides[layer] for layer in layers]

    def check_reads(self, task_type: type[Task], of: str) -> None:
        """Refuse rows that the model does not read; `of` describes them in the message."""
        if task_type.reads_only_texts and not self.reads_texts_alone:
            raise AlignAttnError(f"{self.name!r} reads images with its texts, which {of} lacks: give rows of its task")
        if self.reads_texts_alone:
            check_only_texts(self.name, task_type, of)

    @property
    def declared_sides(self) -> tuple[Sides, ...]:
        """The modalities of the queries and keys of each attention call, as the model declares them."""
        model: Any = self.model
        sides: tuple[Sides, ...] = model.attention_sides
        return sides


def check_only_texts(name: str, task_type: type[Task], of: str) -> None:
    """Refuse rows that a model of texts alone does not read.

    Args:
        name: the model.
        task_type: the task type of the rows.
        of: describes the rows in the message.
    """
    if not task_type.reads_only_texts:
        more = "has no texts" if not task_type.reads_texts else "has more"
        more = "generates sequences" if task_type.is_generative else more
        raise AlignAttnError(f"{name!r} reads only texts, and {of} {more}: give other rows")


def check_reads_tokens(name: str, fields: Mapping[str, Any]) -> None:
    """Refuse a checkpoint of images or sound; `fields` are those of its config."""
    what = OTHER_INPUTS.get(getattr(class_with_head(fields), "main_input_name", ""))
    if what is not None:
        raise AlignAttnError(f"{name!r} reads {what}, and this command measures only the tokens of texts")


def load_recorded_model(name: str, tokenizer_options: Mapping[str, Any] = MappingProxyType({})) -> RecordedModel:
    """Load an encoder, without its head, in float32, with the attention it was trained with.

    If the patch does not change the function, all layers are recorded, not only those that the model was trained on.

    Args:
        name: a folder, a Hub id or a packaged model.
        tokenizer_options: as `Task.tokenizer_options`.
    """
    with loading(name):
        fields = read_config_fields(name)
        own_class = saved_class(fields)
    capabilities = capabilities_of(str(fields.get("model_type")).removeprefix(MODEL_TYPE_PREFIX))
    if capabilities.attends_edges:
        raise AlignAttnError(f"{name!r} attends along the edges of a graph, and this command measures texts")
    if not capabilities.reads_texts_alone and not hasattr(own_class, "attention_sides"):
        raise AlignAttnError(
            f"{name!r} generates sequences, and this command measures only attention among the tokens of texts"
        )
    check_reads_tokens(name, fields)
    if not capabilities.has_attention:
        raise AlignAttnError(f"{name!r} has no attention heads: it is a trained model of type {fields['model_type']}")
    if not capabilities.has_heads:
        raise AlignAttnError(f"{name!r} pools words by a learned query and has no heads with queries")
    model, tokenizer = load_pretrained(
        name,
        own_class or AutoModel,
        tokenizer_options=tokenizer_options,
        dtype=torch.float32,
        reads_pooler=False,
    )
    model = merge_adapters(model)
    model = recording_all_layers(model).eval()
    return RecordedModel(name, model, tokenizer, capabilities.reads_texts_alone)


def recording_all_layers(model: Any) -> Any:
    """Return the model with a patch under which `collect` records all layers, if that leaves its function as it is.

    Only layers with slots are recorded. A patch of some layers that changes the function stays.
    """
    if is_patched(model) and not patch_of(model).config.changes_function:
        unpatch(model)
    return model if is_patched(model) else patch(model, "soft")


@dataclass(frozen=True)
class Examples:
    """Texts, or texts with images, that every run reads.

    Attributes:
        description: a description for messages and titles.
        task_type: the type of their task.
        encode: returns the model inputs of each example as a batch of one without padding, given the model's tokenizer.
    """

    description: str
    task_type: type[Task]
    encode: Callable[[PreTrainedTokenizerBase], list[dict[str, Tensor]]]


def row_examples(task: Task, split: str, rows: datasets.Dataset, data: DataOptions) -> Examples:
    """Return rows as examples: one sequence per row, or the windows of each row in question answering.

    Args:
        task: the task of the rows.
        split: the name of their split, for the description.
        rows: the first rows of the split.
        data: the options of a run, which set the maximum length of a row.
    """

    def encode(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, Tensor]]:
        # Show each token once: windows of a long context must not overlap.
        options = replace(data.task_options(task, tokenizer), doc_stride=0)
        split = EncodedSplit(rows, task.encode(rows, tokenizer, options), options)
        return list(input_batches(task, split, tokenizer, range(len(split.encoded)), 1))

    number = "the first row" if len(rows) == 1 else f"the first {len(rows)} rows"
    return Examples(f"{number} of {task.name} {split}", type(task), encode)


@dataclass(frozen=True)
class SeenText:
    """A head's queries, keys and weights for one row: a text, or an image's regions and a question's words.

    Attributes:
        tokens: the tokens of its texts, as the tokenizer names them.
        query: `[n, d]`.
        key: `[m, d]`.
        weights: `[n, m]`, a row per query.
    """

    tokens: Sequence[str]
    query: Tensor
    key: Tensor
    weights: Tensor


@dataclass(frozen=True)
class HeadView:
    """Queries, keys and weights of one head for all texts.

    Attributes:
        name: the name of the run.
        layer: counted from 0.
        head: likewise.
        sides: the modalities of its queries and of its keys.
        texts: the texts in order.
        reason_unbalanced: why queries and keys cannot be balanced, or None.
    """

    name: str
    layer: int
    head: int
    sides: Sides
    texts: Sequence[SeenText]
    reason_unbalanced: str | None

    @property
    def title(self) -> str:
        """The run, the layer and the head."""
        of = "" if self.sides == (WORDS, WORDS) else f" ({' to '.join(dict.fromkeys(self.sides))})"
        return f"{self.name}\nlayer {self.layer}{of}, head {self.head}"

    def attention_panels(self) -> list[HeatMapPanel]:
        """Return the heat map of the attention in each text."""
        panels = []
        for text in self.texts:
            rows, columns = (
                text.tokens if side == WORDS else region_names(count)
                for side, count in zip(self.sides, text.weights.shape, strict=True)
            )
            panels.append(HeatMapPanel(self.title, rows, columns, text.weights.double().tolist()))
        return panels


def region_names(count: int) -> list[str]:
    """Return the names of the regions of a picture: their numbers, row by row from the upper left."""
    return [str(number) for number in range(count)]


def view_head(folder: Path, name: str, examples: Examples, layer: int | None, head: int) -> HeadView:
    """Return the queries, keys and weights of a head for examples.

    Args:
        folder: the folder of the run.
        name: the name of the run.
        examples: the examples that the model reads.
        layer: the number of the layer from 0; None = the last one.
        head: the number of the head from 0.
    """
    loaded = load_recorded_model(str(folder), examples.task_type.tokenizer_options)
    loaded.check_reads(examples.task_type, examples.description)
    # The layer's number, and its position among the recorded layers.
    patched = patch_of(loaded.model).config.layers
    if loaded.reads_texts_alone:
        recorded = loaded.record({"input_ids": torch.tensor([loaded.tokenizer.all_special_ids[:1]])})
        num_layers, num_heads = len(recorded), recorded[0]["weights"].shape[1]
    else:
        # A forward also needs an image, and there is none yet.
        num_layers, num_heads = len(patched or loaded.declared_sides), loaded.model.config.num_attention_heads
    layers = list(patched or range(num_layers))
    if not 0 <= head < num_heads:
        raise AlignAttnError(f"--head {head}: {name} has heads 0 to {num_heads - 1}")
    if layer is not None and layer not in layers:
        is_whole = layers == list(range(num_layers))
        available = f"0 to {num_layers - 1}" if is_whole else f"{', '.join(map(str, layers))}, the patched ones"
        raise AlignAttnError(f"--layer {layer}: {name} has layers {available}")
    layer_id = layers[-1] if layer is None else layer
    position = layers.index(layer_id)

    encoded = examples.encode(loaded.tokenizer)
    longest, max_tokens = (
        max(example["input_ids"].shape[1] for example in encoded),
        most_tokens(loaded.model, loaded.tokenizer),
    )
    if longest > max_tokens:
        raise AlignAttnError(
            f"the text has {longest} tokens, more than the maximum of {name}, {max_tokens}: give a shorter one"
        )
    texts = []
    for example in encoded:
        tokens = loaded.tokenizer.convert_ids_to_tokens(example["input_ids"][0].tolist())
        texts.append(
            SeenText(tokens, **{role: of_role[0, head] for role, of_role in loaded.record(example)[position].items()})
        )
    (sides,) = loaded.sides([layer_id])
    return HeadView(name, layer_id, head, sides, texts, reason_unbalanced(loaded.model))


def in_plane(points: NDArray[Any], seed: int) -> list[tuple[float, float]]:
    """Return the coordinates x and y of points `[N, d]` placed in the plane by t-SNE (van der Maaten & Hinton 2008)."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / POINTS_A_NEIGHBOUR)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return [(float(x), float(y)) for x, y in placed]


def tsne_panel(view: HeadView, *, max_tokens: int, seed: int, balanced: bool = False) -> PointPanel:
    """Return one run's queries and keys in the plane; the title has their distances before the projection.

    Args:
        view: the queries and keys of a head.
        max_tokens: the maximum number of tokens to show.
        seed: the seed of t-SNE, and of the sample of tokens if there are more.
        balanced: whether to show them in the basis that makes their moments equal, which does not change the attention.
    """
    query, key = (torch.cat([getattr(text, role) for text in view.texts]) for role in ("query", "key"))
    spread = measure_distances(*equal_counts(query[None], key[None]))
    over_spread = {"as is": spread.as_is, "balanced": spread.balanced, "floor": spread.floor}
    if view.reason_unbalanced is not None:
        del over_spread["balanced"]
    if balanced:
        basis = balancing_basis(Moments.of(query[None]), Moments.of(key[None]))
        query, key = basis.of_queries(query[None])[0].float(), basis.of_keys(key[None])[0].float()
    distance = float(sliced_wasserstein(*(points[None] for points in equal_counts(query[None], key[None]))))
    # Each token of a text has a query and a key: sample the same tokens for both.
    shown, counts = [], []
    names = view.sides if REGIONS in view.sides else ("tokens", "tokens")
    for points, name in zip((query, key), names, strict=True):
        count, drawn = len(points), np.random.default_rng(seed)
        shown.append(points[np.sort(drawn.choice(count, min(count, max_tokens), replace=False))])
        counts.append(f"{count} {name}" if count <= max_tokens else f"{max_tokens} of {count} {name}")
    placed = in_plane(torch.cat(shown).numpy(), seed)
    # Two modalities need more words than fit in one line.
    separator = "\n" if REGIONS in view.sides else ", "
    title = (
        f"{view.title}{separator}{', '.join(dict.fromkeys(counts))}\nquery-key distance {distance:.3f}\nover spread: "
    )
    title += ", ".join(f"{name} {float(value):.3f}" for name, value in over_spread.items())
    return PointPanel(title, {"queries": placed[: len(shown[0])], "keys": placed[len(shown[0]) :]})
