"""The models that an attack queries: the attacked classifier and the sentence encoder, in batches and with a cache.

Two texts may be the same input, such as words with letters that the tokenizer does not know. Computed separately they
would differ in their last bits, and the rest of the batch would decide between two such candidates of an attack. So
outputs are cached by token ids: candidates with the same input have the same score, and the first wins.
"""

import inspect
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.models.lengths import batches_of_rows, most_tokens, row_length
from alignattn.patching.checkpoints import load_pretrained
from alignattn.robustness import LONGEST
from alignattn.tasks.names import MAX_TEXTS
from alignattn.utils.errors import AlignAttnError

VECTORS_KEPT = 2**14
"""Size of the cache: 24 MiB at 384 numbers per vector."""

CHECKPOINT = "a folder with weights as safetensors, or a Hub id that is cached or reachable"
"""Accepted values of a model option; other weights would need unpickling."""


@dataclass(frozen=True)
class ModelInputs:
    """Encoded texts.

    Attributes:
        tensors: the inputs of N texts or pairs, `[N, n]` each on the CPU, padded to the longest.
        padding_side: "right" or "left".
    """

    tensors: Mapping[str, Tensor]
    padding_side: str

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase, columns: Sequence[Sequence[str]], max_length: int) -> Self:
        """Return the inputs of texts.

        Args:
            tokenizer: the model's.
            columns: N texts, or N first and N second ones; in a long pair the longer text is truncated first.
            max_length: the maximum of tokens per row, special tokens included.
        """
        # Padded once by the tokenizer and then sliced: padding each batch in Python costs more than it saves.
        encoded: Any = tokenizer(
            *map(list, columns),
            truncation=True,
            max_length=max_length,
            padding=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        return cls(dict(encoded), tokenizer.padding_side)

    def keys(self) -> list[Hashable]:
        """Return the identity of each of N inputs: token ids and other tensors, without padding."""
        is_real = self.tensors["attention_mask"].bool().numpy()
        arrays = [values.numpy() for values in self.tensors.values()]
        return [tuple(values[row, real].tobytes() for values in arrays) for row, real in enumerate(is_real)]

    def batches(
        self, device: torch.device, rows: Iterable[int] | None = None, batch_size: int | None = None
    ) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
        """Yield batches padded to their own longest row, the longest rows first: memory runs out at once or never.

        Args:
            device: the device of the batches.
            rows: distinct numbers of rows; all if None.
            batch_size: `rows_at_once` if None.

        Yields:
            The numbers of the rows, `[B]` on the CPU, and their tensors, `[B, n]` each.
        """
        lengths = self.tensors["attention_mask"].sum(dim=1).tolist()
        for members in batches_of_rows(range(len(lengths)) if rows is None else rows, lengths, device, batch_size):
            longest = lengths[members[0]]
            tokens = slice(longest) if self.padding_side == "right" else slice(-longest, None)
            batch = {name: values[members, tokens].to(device) for name, values in self.tensors.items()}
            yield torch.tensor(members), batch

    def outputs(
        self,
        forward: Callable[[dict[str, Tensor]], Tensor],
        device: torch.device,
        rows: Sequence[int],
        batch_size: int | None = None,
    ) -> Tensor:
        """Return the outputs of rows, `[M, d]` on the CPU.

        Args:
            forward: maps the tensors of B inputs, `[B, n]` each, to `[B, d]`.
            device: the device of the computation.
            rows: M numbers, ascending.
            batch_size: as for `batches`.
        """
        pairs = [(members, forward(batch)) for members, batch in self.batches(device, rows, batch_size)]
        order, outputs = (torch.cat(parts) for parts in zip(*pairs, strict=True))
        return outputs.cpu()[order.argsort()]


class OutputCache:
    """The outputs of the `size` inputs used last."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._outputs: OrderedDict[Hashable, Tensor] = OrderedDict()

    def outputs(self, keys: Sequence[Hashable], compute: Callable[[list[int]], Tensor]) -> Tensor:
        """Return the outputs of N inputs, `[N, d]`.

        Args:
            keys: the identity of each; they may repeat.
            compute: maps the numbers of M unknown inputs, ascending, to their outputs, `[M, d]`.
        """
        found = {key: self._outputs[key] for key in keys if key in self._outputs}
        first: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            if key not in found:
                first.setdefault(key, row)
        if first:
            found.update(zip(first, compute(list(first.values())), strict=True))
        for key, output in found.items():
            self._outputs[key] = output
            self._outputs.move_to_end(key)
        while len(self._outputs) > self._size:
            self._outputs.popitem(last=False)
        return torch.stack([found[key] for key in keys])

    def clear(self) -> None:
        """Remove all outputs."""
        self._outputs.clear()


class TaskModelWrapper:
    """The model wrapper of TextAttack's classification goals: a call that scores texts, and `model`.

    It does not inherit from TextAttack's class, so that TextAttack need not be imported.

    Attributes:
        model: the classifier, in evaluation mode.
        tokenizer: the model's tokenizer.
        num_classes: number of classes C.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        max_length: int,
        batch_size: int | None,
        cache_size: int,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.num_classes = int(model.config.num_labels or 0)
        self._max_length = max_length
        self._batch_size = batch_size
        # A tokenizer may return what its model does not accept (token types for DistilBERT); the Trainer drops it, too.
        self._inputs = frozenset(inspect.signature(model.forward).parameters)
        self._cache = OutputCache(cache_size)

    def __call__(self, text_input_list: Sequence[str | tuple[str, ...]]) -> Tensor:
        """Return the probabilities of the classes, `[N, C]` float64 on the CPU.

        Float64, because TextAttack applies a softmax to a batch in which the sum of any row is further than 1e-6 from
        1, as that of float32 probabilities of many classes may be.

        Args:
            text_input_list: N texts, or N pairs.
        """
        texts = [(text,) if isinstance(text, str) else tuple(text) for text in text_input_list]
        if not texts:
            return torch.empty(0, self.num_classes).double()
        inputs = ModelInputs.of(self.tokenizer, list(zip(*texts, strict=True)), self._max_length)
        return self._cache.outputs(inputs.keys(), partial(self._score, inputs))

    def clear_cache(self) -> None:
        """Remove all scores."""
        self._cache.clear()

    @torch.inference_mode()
    def _score(self, inputs: ModelInputs, rows: list[int]) -> Tensor:
        """Return the probabilities of inputs, `[M, C]`."""
        logits = inputs.outputs(self._logits, self.model.device, rows, self._batch_size).double()
        if not logits.isfinite().all():
            raise AlignAttnError("the model's scores are not finite: give another model, or leave half precision out")
        return logits.softmax(dim=-1)

    def _logits(self, batch: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.model(**{name: values for name, values in batch.items() if name in self._inputs}).logits
        return logits


def wrap_model(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_length: int,
    batch_size: int | None = None,
    cache_size: int = 2**16,
    device: torch.device | str | None = None,
    half_precision: bool = False,
) -> TaskModelWrapper:
    """Return a wrapper of `model`, which is set to evaluation mode, moved and, for half precision, cast.

    Args:
        model: a classifier of transformers, patched or not, or a baseline.
        tokenizer: the model's tokenizer.
        max_length: the maximum of tokens per row, special tokens included; longer texts are truncated.
        batch_size: the maximum of rows per forward, at least 1; None = chosen for the device.
        cache_size: number of cached inputs; 0 for none. The default takes 64 MiB at 1,000 bytes per input.
        device: the device of the computation; None = a GPU if there is one, else the CPU.
        half_precision: use float16, on a GPU only: elsewhere float32 is faster. Not bfloat16, whose 8 bits would hide
            the effect of a single word on a score.
    """
    if int(model.config.num_labels or 0) < 2:
        raise AlignAttnError("the model has one output, and attacks need a classifier: choose a task with classes")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if (batch_size is not None and batch_size < 1) or cache_size < 0:
        raise AlignAttnError(f"batch size {batch_size} must be at least 1, cache size {cache_size} at least 0")
    # Below the smallest length the tokenizer silently does not truncate at all.
    smallest = tokenizer.num_special_tokens_to_add(pair=True) + MAX_TEXTS
    if max_length < smallest:
        raise AlignAttnError(f"--max_length {max_length} must be at least {smallest} tokens")
    longest = most_tokens(model, tokenizer)
    if max_length > longest:
        raise AlignAttnError(f"--max_length {max_length} exceeds the model's maximum of {longest} tokens")
    model.eval().to(target)
    if half_precision and target.type == "cuda":
        model.half()
    return TaskModelWrapper(model, tokenizer, max_length=max_length, batch_size=batch_size, cache_size=cache_size)


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
