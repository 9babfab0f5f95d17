"""The registry of choices: the module and the paper of each name."""

import pytest
from torch import nn

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS, AttentionConfig
from alignattn.utils.registry import references

CHOICES = [(slot, name) for slot, choices in SLOTS.items() for name in choices]


@pytest.mark.parametrize(("slot", "name"), CHOICES)
def test_each_choice_names_a_module_and_a_known_paper(slot, name):
    choice = SLOTS[slot][name]
    assert issubclass(SLOTS[slot].load(name), nn.Module)
    assert choice.description
    if choice.work is not None:
        assert choice.work in references()
        assert choice.citation.startswith(str(references()[choice.work]))


@pytest.mark.parametrize(("slot", "name"), CHOICES)
def test_the_name_of_a_config_resolves_to_it(slot, name):
    config = AttentionConfig(**{slot: name})
    assert AttentionConfig.resolve(config.name) == config
    assert AttentionConfig.resolve(name) == config


@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_has_references_if_it_fills_a_slot(preset):
    config = PRESETS[preset]
    assert bool(config.references) == bool(config.filled_slots)


def test_a_config_cites_each_paper_once():
    cited = AttentionConfig.resolve("aa-ct+entmax15+sum").references
    assert [str(reference).partition(",")[0] for reference in cited] == [
        "Peters et al. 2019",
        "Wu et al. 2020",
        "Zhang et al. 2021",
    ]
