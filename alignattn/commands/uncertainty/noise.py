"""Gaussian noise on a model's inputs, scaled by the standard deviation of each feature."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from alignattn.tasks.processor import TaskProcessor
from alignattn.tasks.vqa.images import PICTURE_DIMS
from alignattn.training.embeddings import embeddings_of

Change = Callable[[Tensor, Tensor | None], Tensor]
"""Maps inputs `[…, features]` and the mask of real ones, `[…]` bool or None for all, to noisy inputs."""


class InputNoise:
    """Adds noise to the continuous inputs of a model's forward passes: x + a σ ⊙ ε, with ε of mean 0 and variance 1.

    σ is the standard deviation of each feature over all measured inputs: a = 1 is noise of variance 1 on inputs
    standardised per feature. The inputs are the continuous input of the task, or the word embeddings of a text model,
    without padding.

    Args:
        model: the model whose inputs get noise.
        processor: the class of the task.
        amount: the factor a.
        seed: the seed of the noise, which is the same in every context of `added` with the same inputs.

    Raises:
        AlignAttnError: if a text model has no word embeddings.
    """

    def __init__(self, model: nn.Module, processor: type[TaskProcessor[Any]], *, amount: float, seed: int) -> None:
        self.model = model
        self.name = processor.continuous_input
        self.amount = amount
        self.seed = seed
        self._embeddings = embeddings_of(model, "--noise") if self.name is None else None
        self._sums: list[Tensor] = []

    def measured(self) -> AbstractContextManager[None]:
        """Return a context whose forward passes measure σ."""
        return self._hooked(self._measure)

    @contextmanager
    def added(self) -> Iterator[None]:
        """Add noise to the inputs of the forwards in the context."""
        count, total, squares = self._sums
        deviation = (squares / count - (total / count).square()).clamp(min=0).sqrt()
        generator = torch.Generator().manual_seed(self.seed)

        def add(inputs: Tensor, is_real: Tensor | None) -> Tensor:
            noise = torch.randn(inputs.shape, generator=generator).to(inputs.device) * deviation.to(inputs.device)
            if is_real is not None:
                noise = noise * is_real[..., None]
            return inputs + (self.amount * noise).to(inputs.dtype)

        with self._hooked(add):
            yield

    def _measure(self, inputs: Tensor, is_real: Tensor | None) -> Tensor:
        rows = (inputs.flatten(0, -2) if is_real is None else inputs[is_real]).double()
        sums = [rows.new_tensor(len(rows)), rows.sum(dim=0), rows.square().sum(dim=0)]
        self._sums = sums if not self._sums else [old + new for old, new in zip(self._sums, sums, strict=True)]
        return inputs

    @contextmanager
    def _hooked(self, change: Change) -> Iterator[None]:
        def of_embeddings(module: nn.Module, args: tuple[Tensor, ...], embedded: Tensor) -> Tensor:
            padding = self._embeddings.padding_idx if self._embeddings is not None else None
            return change(embedded, None if padding is None else args[0].ne(padding))

        def of_batch(module: nn.Module, args: tuple[Any, ...], batch: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
            assert self.name is not None
            inputs = batch[self.name]
            # Noise makes every feature nonzero, so sparse inputs become dense.
            dense = inputs if inputs.layout == torch.strided else inputs.to_dense()
            # Each feature has its own scale; those of an image are its colour channels.
            along = 1 if dense.dim() == PICTURE_DIMS else -1
            mask = batch.get(f"{self.name}_mask")
            changed = change(dense.movedim(along, -1), None if mask is None else mask.bool()).movedim(-1, along)
            return args, batch | {self.name: changed}

        if self._embeddings is not None:
            handle = self._embeddings.register_forward_hook(of_embeddings)
        else:
            handle = self.model.register_forward_pre_hook(of_batch, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()
