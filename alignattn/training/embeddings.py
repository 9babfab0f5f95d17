"""The word embeddings of a model, to which an option adds noise."""

from typing import Any

from torch import nn

from alignattn.utils.errors import AlignAttnError


def embeddings_of(model: nn.Module, option: str) -> nn.Embedding:
    """Return the word embeddings of a model, which an option perturbs.

    Raises:
        AlignAttnError: if they are not a single `nn.Embedding`.
    """
    try:
        found: Any = model.get_input_embeddings()  # type: ignore[operator]
    except (AttributeError, NotImplementedError):
        found = None
    if not isinstance(found, nn.Embedding):
        raise AlignAttnError(
            f"{option} perturbs word embeddings, and {type(model).__name__} has no single table of them: leave it out"
        )
    return found
