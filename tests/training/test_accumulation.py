"""A step's gradient does not depend on its split into batches and processes."""

import functools
import json
import socket

import pytest
import torch
from conftest import ROOT
from processes import Python
from rows_of_kinds import WITHOUT_LABELS, KindRows
from test_trainer import logged
from train_distributed import (
    ADAM,
    CASES,
    FSDP2_VARIANTS,
    ROWS,
    train_kind,
    train_nodes,
    train_sentences,
    train_weighted,
)

LOGGED = ("loss", "task_loss", "align_loss", "alignment_weight", "train_loss")
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
"""ModernBERT's loss is in single precision; the rest is in double."""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A function that returns a trainer whose steps take 8 rows at once, for a kind and an attention."""
    return functools.cache(lambda kind, variant: train_kind(kind, variant, tmp_path_factory.mktemp("whole"), 8, 1))


def assert_same_weights(weights, expected):
    assert weights.keys() == expected.keys()
    for name, tensor in expected.items():
        torch.testing.assert_close(weights[name], tensor, msg=name, **TOLERANCE)


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_batches_of_two_equal_one_of_eight(kind, variant, whole, tmp_path):
    trainer = train_kind(kind, variant, tmp_path, 2, 4)
    assert_same_weights(trainer.model.state_dict(), whole(kind, variant).model.state_dict())
    for name in LOGGED:
        assert logged(trainer, name) == pytest.approx(logged(whole(kind, variant), name), rel=1e-5), name


def test_a_batch_without_labels_adds_only_its_alignment(whole, tmp_path):
    labels = KindRows("tags", ROWS).batch["labels"]
    assert (labels[WITHOUT_LABELS] == -100).all()
    trainer = train_kind("tags", "aa-ct", tmp_path, 1, 8)
    assert_same_weights(trainer.model.state_dict(), whole("tags", "aa-ct").model.state_dict())


@pytest.fixture(scope="module")
def two_processes(tiny_checkpoint, made_once):
    """A folder with what two processes trained; in a step, each takes four rows one by one."""
    return made_once("two", functools.partial(train_by_two, tiny_checkpoint))


def train_by_two(checkpoint, folder):
    script = ROOT / "tests" / "training" / "train_distributed.py"
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free.getsockname()[1]), "WORLD_SIZE": "2"}
    both = [
        Python([script, checkpoint, folder, "1", "4"], environment=address | {"RANK": rank, "LOCAL_RANK": rank})
        for rank in "01"
    ]
    for process in both:
        done = process.finish()
        assert done.returncode == 0, done.stderr


def assert_same_training(folder, name, one):
    assert_same_weights(torch.load(folder / f"{name}.pt", weights_only=True), one.model.state_dict())
    history = json.loads((folder / f"{name}.json").read_text())
    for quantity in LOGGED:
        values = [entry[quantity] for entry in history if quantity in entry]
        assert values == pytest.approx(logged(one, quantity), rel=1e-5), quantity


@pytest.mark.parametrize(("kind", "variant"), CASES)
def test_two_processes_equal_one(kind, variant, whole, two_processes):
    assert_same_training(two_processes, f"{kind}-{variant}", whole(kind, variant))


@pytest.mark.parametrize("variant", FSDP2_VARIANTS)
def test_two_processes_that_shard_the_weights_equal_one(variant, two_processes, tmp_path):
    assert_same_training(two_processes, f"fsdp2-{variant}", train_kind("texts", variant, tmp_path, 8, 1, **ADAM))


def test_two_processes_with_weighted_classes_equal_one(two_processes, tmp_path):
    assert_same_training(two_processes, "weighted", train_weighted(tmp_path, 8, 1))


def test_two_processes_on_a_graph_equal_one(two_processes, tmp_path):
    one = train_nodes(tmp_path, 8, 1)
    weights = torch.load(two_processes / "nodes.pt", weights_only=True)
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, msg=name, rtol=0, atol=1e-6)


def test_two_processes_of_sentence_transformers_equal_one(tiny_checkpoint, two_processes, tmp_path):
    one = train_sentences(tiny_checkpoint, tmp_path, 8, 1)
    assert_same_training(two_processes, "sentences", one)
