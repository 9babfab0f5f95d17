"""The config fields of models from scratch, over the registry: their values have ranges."""

import dataclasses

import pytest
from transformers import PreTrainedConfig

from alignattn.models import MODELS
from alignattn.models.build import FIELDS_OF_THE_DATA, OF_HARD_ATTENTION, checked_fields
from alignattn.models.text_classifiers import TransformerConfig, TransformerForSequenceClassification
from alignattn.utils.errors import AlignAttnError

INHERITED = {one.name for one in dataclasses.fields(PreTrainedConfig)}


def refusal(name, **fields):
    with pytest.raises(AlignAttnError) as caught:
        checked_fields(fields, MODELS.load(name).config_class)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_every_count_of_a_config_is_at_least_one():
    for name in MODELS:
        config = MODELS.load(name).config_class()
        own = {one.name for one in dataclasses.fields(config)} - INHERITED
        counts = [field for field in own - {*FIELDS_OF_THE_DATA} if type(getattr(config, field)) is int]
        assert "hidden_dim" in counts or name == "memn2n"
        for field in counts:
            for value in (0, -1, None, True, 1.5, "many"):
                assert refusal(name, **{field: value}).startswith(f"{field} is {value!r} and must be a")
            checked_fields({field: getattr(config, field)}, type(config))
        for field in own & {*FIELDS_OF_THE_DATA}:
            assert refusal(name, **{field: getattr(config, field)}) == f"the data determine {field}: leave it out"


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("cnn", {"filter_width": 4}, "filter_width is 4 and must be an odd number from 1: correct it"),
        ("captioner", {"conv_channels": [8, 0]}, "conv_channels is [8, 0] and must be a list of whole numbers from 1"),
        ("gat", {"dropout": 1}, "dropout is 1 and must be a number from 0, below 1"),
        ("lstm", {"dropout": float("nan")}, "dropout is nan and must be a number from 0, below 1"),
        ("gat", {"negative_slope": float("inf")}, "negative_slope is inf and must be a finite number: correct it"),
        ("memn2n", {"memroy_size": 3}, "MemN2NConfig has no field 'memroy_size' (did you mean 'memory_size'?)"),
        ("memn2n", {"train_embeddings": False}, "MemN2NConfig has no field 'train_embeddings'"),
        # It would replace the method that saves the model.
        ("cnn", {"save_pretrained": 3}, "CnnConfig has no field 'save_pretrained'"),
        ("seq2seq-lstm", {"input_feeding": "perhaps"}, "Field 'input_feeding' expected bool, got str"),
    ],
)
def test_an_invalid_value_is_refused_by_the_name_of_its_field(name, fields, message):
    assert message in refusal(name, **fields)


def test_a_whole_number_is_a_number():
    for name in MODELS:
        config = MODELS.load(name).config_class()
        own = {one.name for one in dataclasses.fields(config)} - INHERITED
        numbers = [field for field in own if type(getattr(config, field)) is float]
        assert numbers or name == "memn2n"
        fields = checked_fields(dict.fromkeys(numbers, 0), type(config))
        assert fields == dict.fromkeys(numbers, 0.0)
        assert all(type(value) is float for value in fields.values())


def test_given_fields_are_not_modified():
    given = {"dropout": 0}
    checked_fields(given, TransformerConfig)
    assert type(given["dropout"]) is int


@pytest.mark.parametrize("name", ["seq2seq-lstm", "captioner"])
@pytest.mark.parametrize("field", OF_HARD_ATTENTION)
def test_weights_of_hard_attention_are_finite(name, field):
    config_class = MODELS.load(name).config_class
    for value in (float("nan"), float("inf"), -float("inf"), -0.5, -1, 10**400, None, True, "much"):
        said = refusal(name, **{field: value}, hard_attention=True)
        assert said.startswith(f"{field} is ")
        assert said.endswith(" and must be a finite number from 0: correct it")
    for value in (0, 2, 0.5):
        assert checked_fields({field: value, "hard_attention": True}, config_class)[field] == value


def test_states_must_divide_into_heads():
    config = TransformerConfig(hidden_dim=6, num_attention_heads=4)
    with pytest.raises(ValueError, match="hidden_dim 6 is not divisible by num_heads 4"):
        TransformerForSequenceClassification(config)
