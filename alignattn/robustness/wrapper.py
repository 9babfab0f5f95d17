"""A fine-tuned classifier as TextAttack queries it: dynamic padding, large batches, each input scored once."""

import inspect
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from alignattn.models.lengths import most_tokens
from alignattn.robustness.batches import ModelInputs, OutputCache
from alignattn.tasks.task import MAX_TEXTS
from alignattn.utils.errors import AlignAttnError

SCORES_KEPT = 2**16
"""Inputs whose scores are kept; at 1,000 bytes an input, 64 MiB."""

MIN_CLASSES = 2

Texts = tuple[str, ...]
"""The one or two texts of a row."""


class TaskModelWrapper:
    """What TextAttack's classification goals need of a model wrapper: a call that scores texts, and `model`.

    TextAttack asks no more of it than that, so no class of TextAttack is inherited and none is imported.

    Attributes:
        model: the classifier, in evaluation mode.
        tokenizer: its own.
        num_classes: how many classes it tells apart, C.
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
        # A tokenizer may give what its model does not take (the token types of a DistilBERT); Trainer drops it, too.
        self._inputs = frozenset(inspect.signature(model.forward).parameters)
        self._cache = OutputCache(cache_size)

    def __call__(self, text_input_list: Sequence[str | Texts]) -> Tensor:
        """Return the probabilities of the classes, `[N, C]` float64 on the CPU.

        Float64, for TextAttack applies a softmax of its own to a batch in which the sum of any row is further than 1e-6
        from 1: logits mostly, but float32 probabilities of many classes, too.

        Args:
            text_input_list: N texts, or N pairs.
        """
        texts = [(text,) if isinstance(text, str) else tuple(text) for text in text_input_list]
        if not texts:
            return torch.empty(0, self.num_classes).double()
        inputs = ModelInputs.of(self.tokenizer, list(zip(*texts, strict=True)), self._max_length)
        return self._cache.outputs(inputs.keys(), partial(self._score, inputs))

    def clear_cache(self) -> None:
        """Forget all scores."""
        self._cache.clear()

    @torch.inference_mode()
    def _score(self, inputs: ModelInputs, rows: list[int]) -> Tensor:
        """Probabilities `[M, C]` of inputs that are not known yet."""
        logits = inputs.outputs(self._logits, self.model.device, rows, self._batch_size).double()
        if not logits.isfinite().all():
            raise AlignAttnError("the model's scores are not finite: attack a model that is, or without half precision")
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
    cache_size: int = SCORES_KEPT,
    device: torch.device | str | None = None,
    half_precision: bool = False,
) -> TaskModelWrapper:
    """Return a wrapper of `model`, which is put in evaluation mode, moved and, in half precision, cast.

    Args:
        model: a classifier: of transformers, patched or not, or a baseline.
        tokenizer: its own.
        max_length: the most tokens of a row, special tokens included; longer texts are cut.
        batch_size: the most rows of one forward, at least 1; what suits the device when None.
        cache_size: inputs whose scores are kept, the last used ones; 0 keeps none.
        device: where to compute; a GPU if there is one when None.
        half_precision: compute in float16, on a GPU only: elsewhere float32 is faster. Not bfloat16, whose 8 bits would
            hide what a single word does to a score.
    """
    if int(model.config.num_labels or 0) < MIN_CLASSES:
        raise AlignAttnError("the model has one output: attacks are on classifiers, choose a task with classes")
    target = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if (batch_size is not None and batch_size < 1) or cache_size < 0:
        raise AlignAttnError(f"batch size {batch_size} must be at least 1, cache size {cache_size} at least 0")
    # Below the special tokens and a token of each text the tokenizer does not cut at all, and does not say so.
    smallest = tokenizer.num_special_tokens_to_add(pair=True) + MAX_TEXTS
    if max_length < smallest:
        raise AlignAttnError(f"--max_length {max_length} must be at least {smallest} tokens")
    longest = most_tokens(model, tokenizer)
    if max_length > longest:
        raise AlignAttnError(f"--max_length {max_length}: the model takes at most {longest} tokens")
    model.eval().to(target)
    if half_precision and target.type == "cuda":
        model.half()
    return TaskModelWrapper(model, tokenizer, max_length=max_length, batch_size=batch_size, cache_size=cache_size)
