"""Apply the head of a masked-language model to the masked tokens alone.

At 15 % masked tokens and a vocabulary of tens of thousands, a small encoder spends most of a step on logits that the
loss ignores; BAE needs those of one token per text. The head sees each token by itself, so it can be applied to the
masked ones alone: with MiniLM a step of a plain `transformers.Trainer` then takes less than half the time.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from transformers import BatchEncoding, PreTrainedModel

from alignattn.training.weights import IGNORED_LABEL


def masked_positions(batch: BatchEncoding | Mapping[str, Tensor]) -> Tensor:
    """Return which tokens of a batch are masked, bool `[B, n]`."""
    is_masked: Tensor = batch["labels"] != IGNORED_LABEL
    return is_masked


@contextmanager
def masked_tokens_alone(model: PreTrainedModel) -> Iterator[None]:
    """Within this context, apply a model's head only to the tokens with a label.

    The logits of a batch with M such tokens are `[1, M, vocabulary]`, in their order; the loss is the model's own, and
    0 without such tokens. A batch without labels is unchanged.
    """
    network: Any = model
    is_masked: Tensor | None = None

    def take_labels(_module: Any, args: Any, inputs: dict[str, Any]) -> Any:
        nonlocal is_masked
        is_masked = masked_positions(inputs) if inputs.get("labels") is not None else None
        return args, inputs if is_masked is None else inputs | {"labels": inputs["labels"][is_masked][None]}

    def select(_module: Any, _args: Any, output: Any) -> Any:
        if is_masked is not None:
            output.last_hidden_state = output.last_hidden_state[is_masked][None]
        return output

    def zero_loss(_module: Any, _args: Any, output: Any) -> Any:
        if is_masked is not None and not is_masked.any():
            output.loss = output.logits.sum()
        return output

    hooks = [
        network.register_forward_pre_hook(take_labels, with_kwargs=True),
        network.base_model.register_forward_hook(select),
        network.register_forward_hook(zero_loss),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
