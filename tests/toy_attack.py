"""A fast attack with random steps on a small BERT, and runs of the loop with it.

A module that imports this one is skipped if the resources of NLTK are absent.
"""

import os
import random
import signal
from pathlib import Path
from typing import Any

import numpy as np
import torch
from conftest import WORDS
from needs import skip_without
from robustness_helpers import NLTK_DATA, enlarge_weights, random_texts
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from alignattn.robustness.library import load_textattack
from alignattn.robustness.loop import AttackJob, AttackRow, attack_rows
from alignattn.robustness.models import wrap_model
from alignattn.robustness.records import AttackRun, AttackSettings, header_path

skip_without(NLTK_DATA)
textattack = load_textattack()

NUM_ROWS = 20
NUM_EXAMPLES = 8

SETTINGS = AttackSettings(
    run="toy",
    model="toy",
    task="sst2",
    split="validation",
    attention="soft",
    recipe="toy",
    attack_columns=("sentence",),
    max_length=64,
    seed=7,
    num_examples=NUM_EXAMPLES,
    precision="float32",
    resources={"words": "twenty"},
)


class RandomSwap(textattack.transformations.WordSwap):
    """Replaces a word by another of a list, sampled with each of the generators that the loop seeds."""

    deterministic = False
    calls = 0
    kill_at = -1

    def _get_replacement_words(self, word: str) -> list[str]:
        self.calls += 1
        if self.calls == self.kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        numbers = (random.randrange(len(WORDS)), np.random.randint(len(WORDS)), int(torch.randint(len(WORDS), ())))
        return [WORDS[number] for number in numbers] if word in WORDS else []


def toy_attack(folder: Path) -> Any:
    """Return a greedy attack on a small BERT with large random weights, in float64: no choice depends on the batch."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(0)
    model = BertForSequenceClassification(BertConfig.from_pretrained(folder, num_hidden_layers=1))
    enlarge_weights(model, 20)
    goal = textattack.goal_functions.UntargetedClassification(
        wrap_model(model.double(), tokenizer, max_length=64, batch_size=4, device="cpu")
    )
    constraints = [textattack.constraints.pre_transformation.RepeatModification()]
    constraints.append(textattack.constraints.pre_transformation.MaxModificationRate(0.25))
    return textattack.Attack(goal, constraints, RandomSwap(), textattack.search_methods.GreedySearch())


def toy_rows(attack: Any, columns: tuple[str, ...] = ("sentence",)) -> list[AttackRow]:
    """Return rows with the label that the model predicts; every fourth has the other label."""
    drawn = iter(random_texts(NUM_ROWS * len(columns), 4, 9, seed=1))
    texts = [{column: next(drawn) for column in columns} for _ in range(NUM_ROWS)]
    predictions = attack.goal_function.model([tuple(text.values()) for text in texts]).argmax(dim=1).tolist()
    return [
        AttackRow(index, text, 1 - label if index % 4 == 1 else label)
        for index, (text, label) in enumerate(zip(texts, predictions, strict=True))
    ]


def run(folder: Path, path: Path, settings: AttackSettings = SETTINGS, kill_at: int = -1) -> AttackRun:
    """Attack the toy rows on the checkpoint in `folder`; kill this process at swap `kill_at` (-1: never)."""
    attack = toy_attack(folder)
    attack.transformation.kill_at = kill_at
    return attack_rows(attack, AttackJob(toy_rows(attack), path, settings))


def run_bytes(path: Path) -> tuple[bytes, bytes]:
    """Return the content of the records and of their header."""
    return path.read_bytes(), header_path(path).read_bytes()


def copy_run(whole: AttackRun, folder: Path, records: bytes | None = None) -> Path:
    """Copy the header and the records of a run, or the header with other `records`; return the path."""
    path = folder / "copy.jsonl"
    content, header = run_bytes(whole.path)
    path.write_bytes(content if records is None else records)
    header_path(path).write_bytes(header)
    return path
