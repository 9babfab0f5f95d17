"""A fine-tuned classifier for TextAttack: dynamic padding, large batches, cached scores."""

import inspect
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from alignattn.models.lengths import most_tokens
from alignattn.robustness.batches import ModelInputs, OutputCache
from alignattn.tasks.names import MAX_TEXTS
from alignattn.utils.errors import AlignAttnError


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
