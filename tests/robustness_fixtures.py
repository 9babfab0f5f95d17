"""Fixtures that several test modules of attacks share, built once per session.

A test module names this plugin in `pytest_plugins`: an imported fixture would be built once per module.
"""

from pathlib import Path

import pytest
from robustness_helpers import NEIGHBORS, NLTK_DATA, BagOfWords, random_masked_language_model
from transformers import AutoTokenizer

from alignattn.robustness.library import load_textattack
from alignattn.robustness.records import AttackRun
from alignattn.robustness.resources import Resources, prepare_nltk


@pytest.fixture(scope="session")
def wrapper() -> BagOfWords:
    return BagOfWords()


@pytest.fixture(scope="session")
def mlm(minilm: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a masked language model with random weights."""
    folder = tmp_path_factory.mktemp("mlm")
    tokenizer = AutoTokenizer.from_pretrained(minilm)
    random_masked_language_model(tokenizer).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def resources(minilm: str, mlm: Path) -> Resources:
    """Local resources for every recipe."""
    load_textattack()
    prepare_nltk(NLTK_DATA, ())
    return Resources(neighbors=NEIGHBORS, sentence_encoder=Path(minilm), mlm=mlm, nltk_data=NLTK_DATA)


@pytest.fixture(scope="session")
def whole(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> AttackRun:
    """An uninterrupted toy run."""
    from toy_attack import run

    return run(tiny_checkpoint, tmp_path_factory.mktemp("whole") / "toy.jsonl")
