"""Find out at a patch what a model gives its attention: small forwards in evaluation mode say it of any family."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from alignattn.support.errors import AlignAttnError

PROBED_TOKENS = 6
"""Of a sequence: enough for a first token that a last one may reach or not."""


def check_bidirectional(model: PreTrainedModel) -> None:
    """Refuse a model that attends causally.

    A model that takes more than ids of tokens cannot be asked so, nor one without weights: it is judged by its calls.

    Args:
        model: not patched: slots, as a narrow window, may keep the first token from the last of any model.

    Raises:
        AlignAttnError: if it does.
    """
    ids = _probing_ids(model)
    hidden = None if ids is None else _last_hidden_state(model, ids)
    if hidden is not None and torch.equal(hidden[0, 0], hidden[1, 0]) and not torch.equal(hidden[0, -1], hidden[1, -1]):
        raise AlignAttnError(
            f"{type(model).__name__} attends causally, no token attends a later one: alignment attention is for "
            "bidirectional encoders"
        )


def check_calls(model: PreTrainedModel) -> None:
    """Have the slots of a patched model refuse its calls of attention, if they cannot serve them.

    Args:
        model: which is asked as `check_bidirectional` asks.

    Raises:
        AlignAttnError: of a slot.
    """
    ids = _probing_ids(model)
    if ids is None:
        return
    _last_hidden_state(model, ids)
    # With padding: a mask that is made of it is given to the attention.
    mask = torch.ones_like(ids)
    mask[1, -1] = 0
    _last_hidden_state(model, ids, mask)


def _probing_ids(model: PreTrainedModel) -> Tensor | None:
    """Return two sequences that differ in their last token; None if the model cannot be asked."""
    vocabulary = getattr(model.config, "vocab_size", 0)
    device = next(model.parameters()).device
    if device.type == "meta" or not isinstance(vocabulary, int) or vocabulary < 2:
        return None
    pad = getattr(model.config, "pad_token_id", None)
    first, second = [token for token in range(vocabulary) if token != pad][-2:]
    ids = torch.full((2, PROBED_TOKENS), second, device=device)
    ids[1, -1] = first
    return ids


def _last_hidden_state(model: PreTrainedModel, ids: Tensor, mask: Tensor | None = None) -> Tensor | None:
    encoder: Any = model.base_model
    with evaluating(model), torch.no_grad():
        try:
            outputs = encoder(input_ids=ids, attention_mask=torch.ones_like(ids) if mask is None else mask)
        except AlignAttnError:
            raise
        except Exception:
            # It takes something else, as pixels beside text: whatever it raises says nothing of its attention.
            return None
    hidden = getattr(outputs, "last_hidden_state", None)
    return hidden if isinstance(hidden, Tensor) and hidden.shape[:2] == ids.shape else None


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode, and give each of its modules its own mode back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
