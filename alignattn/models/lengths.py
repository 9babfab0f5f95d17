"""How many tokens a model takes, and how many of a row it is given; imports nothing heavy."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

NO_LIMIT = -1
"""What some configs say of positions that are not counted."""

MPNET_FIRST_POSITION = 2
"""Of MPNet, whatever its padding token."""


def most_positions(config: "PreTrainedConfig") -> int | None:
    """Return how many tokens a model of this config takes; None where it counts no positions."""
    positions: int = getattr(config, "max_position_embeddings", None) or NO_LIMIT
    # DeBERTa-v2 and v3 have that field, and need no positions of their own.
    if positions == NO_LIMIT or not getattr(config, "position_biased_input", True):
        return None
    if "roberta" in config.model_type:
        # Its positions are counted from the one after the padding token's.
        assert config.pad_token_id is not None
        positions -= config.pad_token_id + 1
    elif config.model_type == "mpnet":
        positions -= MPNET_FIRST_POSITION
    return positions


def most_tokens(model: "PreTrainedModel", tokenizer: "PreTrainedTokenizerBase") -> int:
    """Return how many tokens a model takes; transformers' very large number where neither names how many."""
    positions, most = most_positions(model.config), int(tokenizer.model_max_length)
    return most if positions is None else min(positions, most)


def row_length(asked: int | None, usual: int, most: int) -> int:
    """Return the most tokens of a row.

    Args:
        asked: what a user asks for; it is taken as it is, and refused later where the model does not take it.
        usual: what is taken where nobody asks.
        most: that the model takes, which is less where it takes no more.
    """
    return min(usual, most) if asked is None else asked
