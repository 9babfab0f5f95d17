"""The maximum number of tokens of pretrained models, against their own code."""

import re
from pathlib import Path

import pytest
import torch
import transformers
from conftest import TINY
from transformers import CONFIG_MAPPING, AutoModel
from transformers.models.auto.modeling_auto import MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES

from alignattn.models.lengths import POSITIONS_AFTER_PADDING, most_positions

MODELS_OF_LIBRARY = Path(transformers.__file__).parent / "models"
FIELDS = TINY | {"max_position_embeddings": 20, "pad_token_id": 1}
FIELDS_OF = {
    "layoutlmv3": {"coordinate_size": 4, "shape_size": 4, "visual_embed": False},
    "longformer": {"attention_window": 4},
    "luke": {"entity_vocab_size": 4, "entity_emb_size": 4},
    "xmod": {"default_language": "en_XX"},
}
COUNTS_AFTER_PADDING = re.compile(r"padding_idx \+ 1|create_position_ids_from_input_ids")


@pytest.mark.parametrize("model_type", sorted([*POSITIONS_AFTER_PADDING, "bert", "mpnet"]))
def test_a_model_accepts_as_many_tokens_as_it_has_positions(model_type):
    model = AutoModel.from_config(CONFIG_MAPPING[model_type](**FIELDS, **FIELDS_OF.get(model_type, {}))).eval()
    longest = most_positions(model.config)
    with torch.no_grad():
        model(torch.full((1, longest), 3))
        with pytest.raises((IndexError, RuntimeError)):
            model(torch.full((1, longest + 1), 3))


def test_every_type_that_counts_after_the_padding_token_is_named():
    # A type without a file of its own shares that of another type.
    code_of = {path.stem: path.read_text() for path in MODELS_OF_LIBRARY.glob("*/modeling_*.py")}
    types = {name: f"modeling_{name.replace('-', '_')}" for name in MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES}
    found = {name for name, file in types.items() if COUNTS_AFTER_PADDING.search(code_of.get(file, ""))}
    assert found == POSITIONS_AFTER_PADDING | {"mpnet"}
