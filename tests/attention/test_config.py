import json

import numpy as np
import pytest

from alignattn.attention.config import PRESETS, AttentionConfig
from alignattn.utils.errors import AlignAttnError


@pytest.mark.parametrize("preset", PRESETS)
def test_a_config_survives_json(preset):
    config = AttentionConfig.resolve(preset, layers=[1, 0])
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.layers == (0, 1)


def test_overrides_replace_fields_of_presets_and_configs():
    expected = AttentionConfig(alignment="ct", alignment_weight=1.0)
    assert AttentionConfig.resolve("aa-ct", alignment_weight=1.0) == expected
    assert AttentionConfig.resolve(AttentionConfig(alignment="ot"), gradient_scope="all").alignment == "ot"


@pytest.mark.parametrize(
    ("fields", "culprit"),
    [
        ({"alignment": "wgan"}, r"alignment 'wgan'.*gan, ot, ct"),
        ({"alignment": ["ct"]}, r"alignment \['ct'\]"),
        ({"score": None}, "score None"),
        ({"alignment": "ct", "normalizer": "entmax15", "cross_attention": True}, "cross_attention"),
        ({"alignment_weight": -1.0}, "alignment_weight=-1.0"),
        ({"alignment_weight": float("nan")}, "alignment_weight=nan"),
        ({"alignment_weight": True}, "alignment_weight=True"),
        ({"alignment": "ct", "gradient_scope": "some"}, "gradient_scope 'some'"),
        ({"alignment": "ct", "head_reduction": "max"}, "head_reduction 'max'"),
        ({"layers": ("0",)}, "layers="),
        ({"layers": 3}, "layers=3"),
        ({"layers": ()}, "layers="),
        ({"alignment_options": {"epsilon": 1.0}}, "need an alignment"),
        ({"normalizer_options": None}, "normalizer_options=None"),
        ({"alignment": "ct", "alignment_options": {"epsilon": 1.0}}, "option.*'epsilon'.*hidden_dim"),
        ({"alignment": "ot", "alignment_options": [("epsilon", 1)]}, "alignment_options="),
        ({"alignment": "ot", "alignment_options": {"epsilon": "0.1"}}, "alignment 'ot': epsilon='0.1'"),
        ({"alignment": "ot", "alignment_options": {"epsilon": float("inf")}}, "epsilon.*inf"),
        ({"alignment": "ot", "alignment_options": {"epsilon": True}}, "epsilon.*True"),
        ({"alignment": "ot", "alignment_options": {"iterations": 2.5}}, "iterations.*2.5"),
        ({"alignment": "ot", "alignment_options": {"cost": ["cosine"]}}, "cost"),
        ({"normalizer": "entmax", "normalizer_options": {"learned": "yes"}}, "learned='yes'"),
        ({"value": "qvi", "value_options": {"init": None}}, "init"),
        ({"value": "qvi", "value_options": {"init": "zero"}}, "value.*init.*'zero'.*pretrained, paper"),
        ({"value_options": {"init": "paper"}}, "value 'identity' takes no options: drop 'init'"),
        ({"normalizer": "entmax", "normalizer_options": {"alpha": 1.0}}, "normalizer.*alpha.*1"),
        ({"normalizer": "csoftmax", "normalizer_options": {"bound": 0.0}}, "normalizer.*bound"),
        ({"normalizer": "local", "normalizer_options": {"window": 0}}, "normalizer.*window"),
    ],
)
def test_invalid_fields_are_refused(fields, culprit):
    with pytest.raises(AlignAttnError, match=culprit):
        AttentionConfig(**fields)


@pytest.mark.parametrize(("alignment", "weight"), [("moments", 0.001), ("ct", 0.01), (None, 0.01)])
def test_an_alignment_has_its_own_weight_by_default(alignment, weight):
    config = AttentionConfig(alignment=alignment)
    assert config.alignment_weight == AttentionConfig.resolve(config.name).alignment_weight == weight
    assert AttentionConfig.resolve(config.name, alignment_weight=0.5).alignment_weight == 0.5


@pytest.mark.parametrize(
    ("attention", "alignment", "weight"),
    [
        ("aa-moments", "ct", 0.01),
        ("aa-ct", "moments", 0.001),
        ("aa-moments", None, 0.01),
        (AttentionConfig(), "moments", 0.001),
        (AttentionConfig(value="qvi"), "moments", 0.001),
        (AttentionConfig(alignment="ct"), "moments", 0.001),
        (AttentionConfig(alignment="moments"), "ct", 0.01),
        (AttentionConfig(alignment="moments", alignment_weight=0.01), "ct", 0.01),
        (AttentionConfig(alignment="ct", alignment_weight=0.5), "moments", 0.5),
    ],
)
def test_another_alignment_has_its_own_weight_unless_one_was_given(attention, alignment, weight):
    assert AttentionConfig.resolve(attention, alignment=alignment).alignment_weight == weight
    assert AttentionConfig.resolve(attention, alignment=alignment, alignment_weight=0.3).alignment_weight == 0.3


def test_numpy_numbers_equal_plain_ones():
    odd = {"alignment_options": {"epsilon": np.float32(0.5), "iterations": np.int64(3)}, "layers": list(np.arange(2))}
    plain = {"alignment_options": {"epsilon": 0.5, "iterations": 3}, "layers": (0, 1)}
    config = AttentionConfig.resolve("aa-ot", alignment_weight=np.float32(0.25), **odd)
    assert config == AttentionConfig.resolve("aa-ot", alignment_weight=0.25, **plain)
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_an_attention_is_a_name_or_a_config():
    for odd in (3, None, {"alignment": "ct"}):
        with pytest.raises(AlignAttnError, match="must be a name, such as 'aa-ct'"):
            AttentionConfig.resolve(odd)


def test_unknown_names_list_the_choices():
    with pytest.raises(AlignAttnError, match=r"'aa-wgan'.*soft, aa-gan, aa-ot, aa-ct"):
        AttentionConfig.resolve("aa-wgan")
    with pytest.raises(AlignAttnError, match="fills the slot 'alignment' twice"):
        AttentionConfig.resolve("aa-ct+aa-gan")
    with pytest.raises(AlignAttnError, match=r"field.*'weight'.*did you mean 'alignment_weight'"):
        AttentionConfig.resolve("aa-ct", weight=1)
