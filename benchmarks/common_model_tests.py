"""transformers' common tests of models, for small encoders with random weights.

    PYTHONPATH=benchmarks:TRANSFORMERS pytest -p patch_every_model benchmarks/common_model_tests.py

`TRANSFORMERS` is a folder with the `tests` of the installed version, for example from its source distribution on PyPI.
That distribution lacks the tests of export and generation, which are left out here.
"""

import sys
import types
import unittest
from typing import Any

import torch
from transformers import CONFIG_MAPPING, MODEL_MAPPING, PreTrainedConfig
from transformers.models.auto import modeling_auto

TYPES = ("bert", "roberta", "distilbert", "albert", "electra", "deberta-v2", "mpnet", "modernbert")
BATCH, LENGTH, VOCABULARY = 3, 7, 99
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "embedding_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 37,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 37}
OF_TYPE: dict[str, dict[str, Any]] = {
    "distilbert": DISTILBERT,
    "deberta-v2": {"relative_attention": True, "position_biased_input": True, "pos_att_type": ["p2c", "c2p"]},
    "modernbert": {
        "bos_token_id": 1,
        "eos_token_id": 2,
        "cls_token_id": 1,
        "sep_token_id": 2,
    },
}
HEADS = ("SEQUENCE_CLASSIFICATION", "TOKEN_CLASSIFICATION", "QUESTION_ANSWERING", "MULTIPLE_CHOICE", "MASKED_LM")


def _stand_in(name: str, **content: Any) -> None:
    """Replace a module of the tests that is missing."""
    try:
        __import__(name)
    except ImportError:
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module


_stand_in("tests.exporters", __path__=[])
_stand_in("tests.exporters.test_export", ExportTesterMixin=object)
_stand_in("tests.generation", __path__=[])
_stand_in("tests.generation.test_utils", GenerationTesterMixin=object)

from tests.test_modeling_common import ModelTesterMixin  # noqa: E402


class SmallModels:
    """The config and inputs that the common tests need for a type.

    Args:
        model_type: a model type of transformers.
    """

    batch_size, seq_length, is_training = BATCH, LENGTH, True
    num_hidden_layers, num_attention_heads, hidden_size, num_choices = 2, 4, 32, 2

    def __init__(self, model_type: str) -> None:
        self.model_type = model_type

    def get_config(self) -> PreTrainedConfig:
        """Return the config of a small model."""
        return CONFIG_MAPPING[self.model_type](**SIZES, **OF_TYPE.get(self.model_type, {}))

    def prepare_config_and_inputs_for_common(self) -> tuple[PreTrainedConfig, dict[str, torch.Tensor]]:
        """Return a config, and inputs whose last row is padded."""
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        mask[-1, -2:] = 0
        return self.get_config(), {"input_ids": torch.randint(3, VOCABULARY, (BATCH, LENGTH)), "attention_mask": mask}


def _classes(config: type[PreTrainedConfig]) -> tuple[type, ...]:
    mappings = [MODEL_MAPPING, *(getattr(modeling_auto, f"MODEL_FOR_{head}_MAPPING") for head in HEADS)]
    return tuple(mapping[config] for mapping in mappings if config in mapping)


def _tests_of(model_type: str) -> type:
    def set_up(self: Any) -> None:
        self.model_tester = SmallModels(model_type)

    name = f"Test{model_type.title().replace('-', '')}"
    content = {"all_model_classes": _classes(CONFIG_MAPPING[model_type]), "setUp": set_up, "__module__": __name__}
    return type(name, (ModelTesterMixin, unittest.TestCase), content)


for _type in TYPES:
    _tests = _tests_of(_type)
    globals()[_tests.__name__] = _tests
del _tests  # pytest would collect it a second time
