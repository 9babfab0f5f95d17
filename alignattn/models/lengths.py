"""How many tokens a model takes."""

from transformers import PreTrainedModel, PreTrainedTokenizerBase

NO_LIMIT = -1
"""What some configs say of positions that are not counted."""


def most_tokens(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> int:
    """Return how many tokens a model takes; transformers' very large number where neither names how many."""
    positions: int = getattr(model.config, "max_position_embeddings", None) or NO_LIMIT
    # DeBERTa-v2 and v3 have that field, and need no positions of their own.
    if positions == NO_LIMIT or not getattr(model.config, "position_biased_input", True):
        return int(tokenizer.model_max_length)
    if "roberta" in model.config.model_type:
        # Its positions are counted from the one after the padding token's.
        positions -= model.config.pad_token_id + 1
    return min(positions, int(tokenizer.model_max_length))
