"""The head of a masked-language model on the masked tokens alone.

At 15 % masked tokens and a vocabulary of tens of thousands, a small encoder spends most of a step on logits that the
loss passes over; BAE asks for those of one token a text. The head sees each token by itself, so it may as well be shown
those that are to be guessed.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import BatchEncoding, PreTrainedModel, Trainer

IGNORED_LABEL = -100
"""What `DataCollatorForLanguageModeling` gives tokens that are not to be guessed."""


class MaskedLanguageTrainer(Trainer):
    """Trains a masked-language model by the loss that it computes itself, at a fraction of the cost."""

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: Mapping[str, Tensor],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return the mean cross-entropy over the masked tokens, 0 where there is none; and the logits if asked for."""
        logits = masked_logits(model, inputs, self.accelerator.unwrap_model(model))
        labels = inputs["labels"][masked_positions(inputs)]
        loss = F.cross_entropy(logits.float(), labels, reduction="sum") / max(len(labels), 1)
        return (loss, {"loss": loss, "logits": logits}) if return_outputs else loss


def masked_logits(
    model: torch.nn.Module, inputs: Mapping[str, Tensor], unwrapped: PreTrainedModel | None = None
) -> Tensor:
    """Return the logits of the masked tokens, `[M, vocabulary]`, in their order.

    Args:
        model: with a masked-language head.
        inputs: `input_ids`, `attention_mask` and `labels`, `[B, n]`, on the model's device.
        unwrapped: the model within, where `model` is wrapped as for several processes.
    """
    features = {name: values for name, values in inputs.items() if name != "labels"}
    return logits_at(model, features, masked_positions(inputs), unwrapped)


def logits_at(
    model: torch.nn.Module,
    features: Mapping[str, Tensor],
    positions: Tensor,
    unwrapped: PreTrainedModel | None = None,
) -> Tensor:
    """Return the logits of some tokens, `[M, vocabulary]`, in their order.

    Args:
        model: with a masked-language head.
        features: what it reads, `[B, n]` each, on its device.
        positions: which tokens, bool `[B, n]`, M of them.
        unwrapped: the model within, where `model` is wrapped as for several processes.
    """
    with _hidden_states_at(unwrapped or model, positions):
        logits: Tensor = model(**features).logits[0]
    return logits


def masked_positions(batch: BatchEncoding | Mapping[str, Tensor]) -> Tensor:
    """Return which tokens of a batch are to be guessed, bool `[B, n]`."""
    is_masked: Tensor = batch["labels"] != IGNORED_LABEL
    return is_masked


@contextmanager
def _hidden_states_at(model: Any, positions: Tensor) -> Iterator[None]:
    """Let the encoder of a model hand its head the tokens at some positions alone, as one row."""

    def select(_module: Any, _arguments: Any, output: Any) -> Any:
        output.last_hidden_state = output.last_hidden_state[positions][None]
        return output

    hook = model.base_model.register_forward_hook(select)
    try:
        yield
    finally:
        hook.remove()
