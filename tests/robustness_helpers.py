"""The paths of the resources of attacks, and helpers that several tests of attacks need."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from conftest import WORDS
from needs import SHARED
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerBase

from alignattn.commands import get_command
from alignattn.robustness.loop import AttackRow

RESOURCES = SHARED / "resources"
NEIGHBORS = RESOURCES / "counterfitted_neighbors.parquet"
GLOVE = RESOURCES / "glove.6B.50d.first9163.npz"
NLTK_DATA = RESOURCES / "nltk_data"
SST2 = SHARED / "data" / "glue" / "sst2"
WEIGHTS = "model.safetensors"
TRAINING_ROWS = 4000


def random_texts(count: int, shortest: int = 1, longest: int = 20, seed: int = 0) -> list[str]:
    """Return texts of `shortest` to `longest` words that the tokenizer of `tiny_checkpoint` knows."""
    drawn = random.Random(seed)
    return [" ".join(drawn.choices(WORDS, k=drawn.randint(shortest, longest))) for _ in range(count)]


def run_robustness(*words: str) -> None:
    """Run `alignattn robustness`; user errors are raised, not printed."""
    command = get_command("robustness")
    command.execute(command.parse(words))


def sentence_rows(texts: Sequence[str], labels: Sequence[int]) -> list[AttackRow]:
    """Return numbered rows with the single column 'sentence'."""
    return [
        AttackRow(index, {"sentence": text}, label)
        for index, (text, label) in enumerate(zip(texts, labels, strict=True))
    ]


def drop_last_line(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def enlarge_weights(model: torch.nn.Module, factor: float) -> None:
    """Multiply every matrix of random weights, so that the scores of texts differ by more than rounding errors."""
    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.data.mul_(factor)


def watch_inputs(model: torch.nn.Module, measure: Callable[[torch.Tensor], Any]) -> list[Any]:
    """Return a list to which each later forward appends `measure` of its token ids, of shape (rows, tokens)."""
    seen: list[Any] = []
    model.register_forward_pre_hook(lambda _, args, kwargs: seen.append(measure(kwargs["input_ids"])), with_kwargs=True)
    return seen


def pickle_weights(folder: Path) -> None:
    """Replace the weights of a folder by a pickled file."""
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()


def random_masked_language_model(tokenizer: PreTrainedTokenizerBase) -> BertForMaskedLM:
    """Return a masked language model with random weights: it may propose any word."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    return BertForMaskedLM(config)


class BagOfWords:
    """A classifier of SST-2 as TextAttack queries it."""

    def __init__(self) -> None:
        from sklearn.feature_extraction.text import CountVectorizer
        from sklearn.linear_model import LogisticRegression
        from sklearn.pipeline import make_pipeline

        rows = pq.read_table(next(SST2.glob("train*.parquet"))).slice(0, TRAINING_ROWS)
        self.model = make_pipeline(CountVectorizer(), LogisticRegression())
        self.model.fit(rows["sentence"].to_pylist(), rows["label"].to_pylist())

    def __call__(self, texts: list[Any]) -> np.ndarray:
        return self.model.predict_proba([text if isinstance(text, str) else " ".join(text) for text in texts])


def constraints(attack: Any) -> dict[str, Any]:
    """Return the constraints of an attack by the names of their classes."""
    return {type(part).__name__: part for part in (*attack.constraints, *attack.pre_transformation_constraints)}
