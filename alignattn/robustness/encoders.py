"""Cached sentence vectors from a Hugging Face encoder."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.models.lengths import most_tokens, row_length
from alignattn.patching.checkpoints import load_pretrained
from alignattn.robustness.batches import ModelInputs, OutputCache
from alignattn.robustness.recipe_names import LONGEST

VECTORS_KEPT = 2**14
"""Size of the cache: 24 MiB at 384 numbers per vector."""

CHECKPOINT = "a folder with weights as safetensors, or a Hub id that is cached or reachable"
"""Accepted values of a model option; other weights would need unpickling."""


class CachedEncoder:
    """Caches `encode`, which maps N distinct sentences to `[N, d]`."""

    def __init__(self, encode: Callable[[list[str]], Any]) -> None:
        self._encode = encode
        self._cache = OutputCache(VECTORS_KEPT)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Return the vectors of N sentences, `[N, d]`, which may repeat."""
        return self._cache.outputs(
            sentences, lambda rows: torch.as_tensor(self._encode([sentences[row] for row in rows]))
        )

    def clear_cache(self) -> None:
        """Remove all vectors."""
        self._cache.clear()


class MeanPooling:
    """The mean of an encoder's last hidden states over the real tokens of a sentence, special ones included.

    Reimers & Gurevych 2019, Sentence-BERT, section 3. Long sentences are truncated. Sentences with the same input have
    the same vector.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_length = longest_input(model, tokenizer)
        self._cache = OutputCache(VECTORS_KEPT)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Return the vectors of N sentences, `[N, d]` float32, on the CPU."""
        inputs = ModelInputs.of(self.tokenizer, [sentences], self.max_length)
        return self._cache.outputs(inputs.keys(), partial(inputs.outputs, self._pooled, self.model.device))

    def clear_cache(self) -> None:
        """Remove all vectors."""
        self._cache.clear()

    @torch.inference_mode()
    def _pooled(self, batch: dict[str, Tensor]) -> Tensor:
        inputs = {name: values for name, values in batch.items() if name in self.tokenizer.model_input_names}
        states = self.model(**inputs).last_hidden_state.float()
        is_real = batch["attention_mask"].unsqueeze(-1)
        return (states * is_real).sum(1) / is_real.sum(1)


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return the maximum number of tokens for a model."""
    return row_length(None, LONGEST, most_tokens(model, tokenizer))


def load_sentence_encoder(folder: Path, device: str, dtype: torch.dtype) -> MeanPooling:
    """Load the encoder of a folder.

    Args:
        folder: the folder of a Hugging Face model, with safetensors.
        device: the device of the computation.
        dtype: the dtype of the computation; the vectors are always float32.
    """
    choices = "the folder of an encoder"
    lacking = f"complete encoder: give {choices}"
    model, tokenizer = load_pretrained(
        str(folder), AutoModel, lacking=lacking, choices=choices, reads_pooler=False, use_safetensors=True
    )
    network: torch.nn.Module = model
    network.to(device=device, dtype=dtype)
    return MeanPooling(model, tokenizer)
