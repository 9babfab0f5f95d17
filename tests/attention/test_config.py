import json

import pytest

from alignattn.attention.config import PRESETS, AttentionConfig
from alignattn.support.errors import AlignAttnError


@pytest.mark.parametrize("preset", PRESETS)
def test_survives_json(preset):
    config = AttentionConfig.resolve(preset, layers=[1, 0])
    assert AttentionConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert config.layers == (0, 1)


def test_overrides_replace_fields_of_presets_and_configs():
    expected = AttentionConfig(alignment="ct", alignment_weight=1.0)
    assert AttentionConfig.resolve("aa-ct", alignment_weight=1.0) == expected
    assert AttentionConfig.resolve(AttentionConfig(alignment="ot"), gradient_scope="all").alignment == "ot"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"alignment": "wgan"}, r"unknown alignment 'wgan'.*gan, ot, ct"),
        ({"alignment_weight": -1.0}, "alignment_weight=-1.0"),
        ({"alignment_weight": float("nan")}, "alignment_weight=nan"),
        ({"alignment": "ct", "gradient_scope": "some"}, "gradient_scope 'some'.*projections, all"),
        ({"alignment": "ct", "head_reduction": "max"}, "head_reduction 'max'.*sum, mean"),
        ({"alignment_options": {"epsilon": 1.0}}, "no alignment"),
        ({"alignment": "ct", "alignment_options": {"epsilon": 1.0}}, "option.*'epsilon'.*hidden_dim"),
        ({"alignment": "ot", "alignment_options": {"epsilon": -1.0}}, "epsilon"),
        ({"layers": ("0",)}, "layers="),
    ],
)
def test_refuses(fields, words):
    with pytest.raises(AlignAttnError, match=words):
        AttentionConfig(**fields)


def test_unknown_names_list_the_choices():
    with pytest.raises(AlignAttnError, match=r"'aa-wgan'.*soft, aa-gan, aa-ot, aa-ct"):
        AttentionConfig.resolve("aa-wgan")
    with pytest.raises(AlignAttnError, match=r"field.*'weight'.*alignment_weight"):
        AttentionConfig.resolve("aa-ct", weight=1)
