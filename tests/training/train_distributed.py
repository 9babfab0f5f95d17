"""Train a tiny model of each kind by SGD in this process or as one of two. Run by test_accumulation."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from conftest import BY_SAMPLE
from graphs import CLASSES, WIDTH, write_graph
from rows_of_kinds import MODELS, KindRows, kind_model
from sentence_transformers.sentence_transformer import losses
from test_sentence_transformers import SETTINGS, Arguments, Trainer, embedder, pairs
from test_trainer import arguments

from alignattn.models.graph_attention import GatConfig, GatForNodeClassification
from alignattn.tasks.nodes.batches import ALL, NodeBatches
from alignattn.tasks.nodes.graph import read_graph
from alignattn.training import AlignmentTrainer

ROWS = 12
"""Two steps of 8: the last is but half as large."""

CASES = [(kind, "aa-ct") for kind in MODELS] + [
    ("texts", variant) for variant in ("soft", *BY_SAMPLE) if variant != "aa-ct"
]


def train_kind(kind, variant, folder, batch_size, accumulation, trainer_class=AlignmentTrainer, **changes):
    args = arguments(
        folder,
        num_train_epochs=1,
        optim="sgd",
        learning_rate=0.1,
        alignment_learning_rate=0.1,
        max_grad_norm=0.0,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        **changes,
    )
    trainer = trainer_class(model=kind_model(kind, variant), args=args, train_dataset=KindRows(kind, ROWS))
    trainer.train()
    return trainer


def train_nodes(folder, batch_size, accumulation):
    """By what is drawn around a batch's nodes, all of their neighbours: what is drawn at random is none of one step."""
    folder = Path(folder)
    graph = read_graph(write_graph(folder / f"{os.getpid()}.npz"))
    torch.manual_seed(0)
    sizes = {"num_features": WIDTH, "num_labels": CLASSES, "hidden_dim": 4, "num_attention_heads": 2, "dropout": 0.0}
    nodes = graph.splits["train"]
    args = arguments(
        folder,
        num_train_epochs=1,
        optim="sgd",
        learning_rate=0.1,
        max_grad_norm=0.0,
        per_device_train_batch_size=batch_size,
        gradient_accumulation_steps=accumulation,
        remove_unused_columns=False,
    )
    trainer = AlignmentTrainer(
        model=GatForNodeClassification(GatConfig(**sizes)),
        args=args,
        train_dataset=[{"node": int(node), "label": int(graph.labels[node])} for node in nodes],
        data_collator=NodeBatches(graph, (ALL, ALL)),
    )
    trainer.train()
    return trainer


def train_sentences(checkpoint, folder, batch_size, accumulation):
    """By a loss that is a mean over pairs, with a pooler that no loss reaches."""
    model = embedder(checkpoint)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = Trainer(
        model=model,
        args=Arguments(str(folder), **(SETTINGS | {"learning_rate": 0.1} | settings)),
        train_dataset=pairs(3).add_column("label", [row / ROWS for row in range(ROWS)]),
        loss=losses.CosineSimilarityLoss(model),
    )
    trainer.train()
    return trainer


if __name__ == "__main__":
    checkpoint, folder, batch_size, accumulation = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    trainers = {
        f"{kind}-{variant}": partial(train_kind, kind, variant, folder, batch_size, accumulation)
        for kind, variant in CASES
    }
    trainers["nodes"] = partial(train_nodes, folder, batch_size, accumulation)
    trainers["sentences"] = partial(train_sentences, checkpoint, folder, batch_size, accumulation)
    for name, train in trainers.items():
        trainer = train()
        assert trainer.accelerator.num_processes == int(os.environ["WORLD_SIZE"]) == 2
        if trainer.is_world_process_zero():
            torch.save(trainer.model.state_dict(), folder / f"{name}.pt")
            (folder / f"{name}.json").write_text(json.dumps(trainer.state.log_history))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.state.destroy_process_group()
