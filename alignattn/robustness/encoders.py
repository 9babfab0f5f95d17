"""Sentence vectors from a Hugging Face encoder, in batches, each sentence once."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.checkpoints import unloadable

BATCH_SIZE = 64
CACHE_SIZE = 2**14
"""Sentences whose vectors are kept; 24 MiB at 384 numbers each."""

LONGEST = 512
"""Most tokens that a model is given, where neither it nor its tokenizer names fewer."""


class CachedEncoder:
    """Encodes each sentence once.

    Args:
        encode: maps N distinct sentences to `[N, d]`.
    """

    def __init__(self, encode: Callable[[list[str]], Any]) -> None:
        from lru import LRU

        self._encode = encode
        self._cache: Any = LRU(CACHE_SIZE)

    def encode(self, sentences: Sequence[str]) -> Tensor:
        """Return the vectors of N sentences, `[N, d]`, which may repeat."""
        known = {sentence: self._cache[sentence] for sentence in sentences if sentence in self._cache}
        new = [sentence for sentence in dict.fromkeys(sentences) if sentence not in known]
        if new:
            known.update(zip(new, torch.as_tensor(self._encode(new)), strict=True))
            for sentence in new:
                self._cache[sentence] = known[sentence]
        return torch.stack([known[sentence] for sentence in sentences])

    def clear_cache(self) -> None:
        """Forget all vectors."""
        self._cache.clear()


class MeanPooling:
    """The mean of an encoder's last hidden states over the real tokens of a sentence, special ones included.

    Reimers & Gurevych 2019, Sentence-BERT, section 3. What is longer than the encoder takes is cut off.

    Args:
        model: an encoder of dimension d.
        tokenizer: its own.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.max_length = longest_input(model, tokenizer)

    @torch.inference_mode()
    def __call__(self, sentences: list[str]) -> Tensor:
        """Return the vectors of N sentences, `[N, d]` float32, on the CPU."""
        encoded = self.tokenizer(sentences, truncation=True, max_length=self.max_length, padding=False)
        inputs = [
            {name: values[row] for name, values in encoded.items() if name in self.tokenizer.model_input_names}
            for row in range(len(sentences))
        ]
        order = sorted(range(len(sentences)), key=lambda row: len(inputs[row]["input_ids"]))
        vectors: dict[int, Tensor] = {}
        for start in range(0, len(order), BATCH_SIZE):
            rows = order[start : start + BATCH_SIZE]
            vectors.update(zip(rows, self._pooled([inputs[row] for row in rows]), strict=True))
        return torch.stack([vectors[row] for row in range(len(sentences))])

    def _pooled(self, inputs: list[dict[str, list[int]]]) -> Tensor:
        batch = self.tokenizer.pad(inputs, padding=True, return_tensors="pt").to(self.model.device)
        states = self.model(**batch).last_hidden_state.float()
        is_real = batch["attention_mask"].unsqueeze(-1)
        return ((states * is_real).sum(1) / is_real.sum(1)).cpu()


def longest_input(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens a model takes."""
    positions = getattr(model.config, "max_position_embeddings", LONGEST)
    if "roberta" in model.config.model_type:
        # Its positions are counted from the one after the padding token's.
        positions -= model.config.pad_token_id + 1
    return min(LONGEST, positions, tokenizer.model_max_length)


@lru_cache
def load_sentence_encoder(folder: Path, device: str, dtype: torch.dtype) -> CachedEncoder:
    """Load the encoder of a folder.

    Args:
        folder: of a Hugging Face model, with safetensors.
        device: where it computes.
        dtype: in what it computes; the vectors are float32 in any case.

    Raises:
        AlignAttnError: there is no such model.
    """
    model, tokenizer = load_pretrained(AutoModel, str(folder), "the folder of an encoder")
    network: torch.nn.Module = model
    network.to(device=device, dtype=dtype)
    return CachedEncoder(MeanPooling(model, tokenizer))


def load_pretrained(auto_class: Any, name: str, choices: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model and its tokenizer; weights that would have to be unpickled are refused.

    Args:
        auto_class: an `AutoModel…` class.
        name: a folder, or a Hub id.
        choices: what a user may give instead.

    Raises:
        AlignAttnError: there is no such model.
    """
    try:
        return (
            auto_class.from_pretrained(name, use_safetensors=True, trust_remote_code=False),
            AutoTokenizer.from_pretrained(name, trust_remote_code=False),
        )
    except (OSError, ValueError) as error:
        raise unloadable(name, error, choices) from error
