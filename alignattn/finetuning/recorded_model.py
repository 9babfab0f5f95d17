"""A trained model whose queries, keys and attention weights are recorded, for commands that study heads."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
from alignattn.models.build import saved_class
from alignattn.models.vqa import WORDS, Sides
from alignattn.patching import collect, is_patched, patch, patch_of, unpatch
from alignattn.patching.adapter_files import merge_adapters
from alignattn.patching.checkpoints import load_pretrained, loading, read_config_fields
from alignattn.tasks.processor import TaskProcessor
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class RecordedModel:
    """A patched model in evaluation mode and its tokenizer.

    Attributes:
        name: as the user gave it.
        model: records its attention under `collect`.
        tokenizer: its own.
        reads_texts_alone: whether all that it attends to are tokens of texts, and no regions of images.
    """

    name: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    reads_texts_alone: bool = True

    def record(self, batch: Mapping[str, Tensor]) -> list[dict[str, Tensor]]:
        """Return `query` `[B, H, n, d]`, `key` `[B, H, m, d]` and `weights` `[B, H, n, m]` of each attention call."""
        with torch.no_grad(), collect(self.model) as seen:
            self.model(**batch)
        return [{name: getattr(layer, name) for name in ("query", "key", "weights")} for layer in seen.layers]

    def num_layers_and_heads(self) -> tuple[int, int]:
        """Return how many attention calls of a forward are recorded, and the heads of each."""
        if not self.reads_texts_alone:
            # A forward takes an image, too, of which there is none yet.
            calls = patch_of(self.model).config.layers or self._declared_sides
            return len(calls), self.model.config.num_attention_heads
        layers = self.record({"input_ids": torch.tensor([self.tokenizer.all_special_ids[:1]])})
        return len(layers), layers[0]["weights"].shape[1]

    def sides(self, layers: Sequence[int]) -> list[Sides]:
        """Return what attends what in attention calls, given by their numbers from 0."""
        return [(WORDS, WORDS) if self.reads_texts_alone else self._declared_sides[layer] for layer in layers]

    def check_reads(self, kind: TaskProcessor[Any], of: str) -> None:
        """Refuse rows that the model does not read; `of` says which they are."""
        if kind.reads_texts_alone and not self.reads_texts_alone:
            raise AlignAttnError(f"{self.name!r} reads images beside texts, which {of} lacks: give rows of its task")
        if self.reads_texts_alone and not kind.reads_texts_alone:
            raise AlignAttnError(f"{self.name!r} reads texts alone, and {of} has more than texts: give other rows")

    @property
    def _declared_sides(self) -> tuple[Sides, ...]:
        model: Any = self.model
        sides: tuple[Sides, ...] = model.attention_sides
        return sides


def load_recorded_model(name: str, tokenizer_options: Mapping[str, Any] = MappingProxyType({})) -> RecordedModel:
    """Load a model, an encoder with or without a head, in float32, with the attention it was trained with.

    Where a patch leaves the function as it is, all layers are recorded, whichever it was trained on.

    Args:
        name: a folder, a Hub id or a packaged model.
        tokenizer_options: as `TaskProcessor.tokenizer_options`.
    """
    with loading(name):
        fields = read_config_fields(name)
        own_class = saved_class(fields)
    traits = capabilities_of(str(fields.get("model_type")).removeprefix(MODEL_TYPE_PREFIX))
    if traits.attends_edges:
        raise AlignAttnError(
            f"{name!r} attends along the edges of a graph: its heads have no tokens to study: name the graph by --task"
        )
    if not traits.reads_texts_alone and not hasattr(own_class, "attention_sides"):
        raise AlignAttnError(f"{name!r} attends to what it wrote beside texts, and tokens of texts are studied")
    if not traits.has_attention:
        raise AlignAttnError(f"{name!r} has no attention heads: it is a trained model of {fields['model_type']}")
    if not traits.has_heads:
        raise AlignAttnError(
            f"{name!r} pools words by a learned query, and has no heads whose queries could be studied"
        )
    model, tokenizer = load_pretrained(
        name, own_class or AutoModel, tokenizer_options=tokenizer_options, dtype=torch.float32, reads_pooler=False
    )
    model = merge_adapters(model)
    if is_patched(model) and not patch_of(model).config.changes_function:
        unpatch(model)
    model = (model if is_patched(model) else patch(model, "soft")).eval()
    return RecordedModel(name, model, tokenizer, traits.reads_texts_alone)
