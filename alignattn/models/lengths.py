"""How many tokens a model accepts; imports nothing heavy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

ROTARY = "rotary"
"""Value of ESM's `position_embedding_type` for positions without a table."""

NO_LIMIT = -1
"""Value of some configs for unlimited positions."""

POSITIONS_AFTER_PADDING = frozenset(
    (
        "camembert",
        "data2vec-text",
        "esm",
        "ibert",
        "layoutlmv3",
        "lilt",
        "longformer",
        "luke",
        "markuplm",
        "roberta",
        "roberta-prelayernorm",
        "xlm-roberta",
        "xlm-roberta-xl",
        "xmod",
    )
)
"""Types of models whose positions count from the one after the padding token."""

MPNET_FIRST_POSITION = 2
"""First position of MPNet, whatever its padding token."""


def most_positions(config: "PreTrainedConfig") -> int | None:
    """Return the maximum number of tokens of a model with this config; None if it has no absolute positions."""
    positions: int = getattr(config, "max_position_embeddings", None) or NO_LIMIT
    # DeBERTa-v2 and v3 have the field, but no absolute positions.
    if positions == NO_LIMIT or not getattr(config, "position_biased_input", True):
        return None
    if config.model_type in POSITIONS_AFTER_PADDING and getattr(config, "position_embedding_type", None) != ROTARY:
        assert config.pad_token_id is not None
        positions -= config.pad_token_id + 1
    elif config.model_type == "mpnet":
        positions -= MPNET_FIRST_POSITION
    return positions


def most_tokens(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return the maximum number of tokens of a model; transformers' very large number if there is no maximum."""
    positions, most = most_positions(model.config), int(tokenizer.model_max_length)
    return most if positions is None else min(positions, most)


def row_length(asked: int | None, usual: int, most: int) -> int:
    """Return the maximum number of tokens per row.

    Args:
        asked: the user's maximum; a later check refuses it if the model does not support it.
        usual: the default.
        most: the model's maximum, which limits the default.
    """
    return min(usual, most) if asked is None else asked
