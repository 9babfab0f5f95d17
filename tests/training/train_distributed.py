"""Train a tiny model of each kind by SGD in this process or as one of two. Run by test_accumulation."""

import json
import os
import sys
from functools import partial
from pathlib import Path

import torch
from accelerate.state import AcceleratorState, DistributedType
from conftest import BY_SAMPLE
from graphs import CLASSES, WIDTH, write_graph
from rows_of_kinds import MODELS, KindRows, kind_model
from sentence_transformers.sentence_transformer import losses
from test_sentence_transformers import SETTINGS, Arguments, Trainer, embedder, pairs
from test_trainer import arguments
from torch.distributed.tensor import DTensor
from torch.utils.data import IterableDataset

from alignattn.models.graphs import GatConfig, GatForNodeClassification
from alignattn.tasks.nodes.batches import ALL, NodeBatches
from alignattn.tasks.nodes.graph import read_graph
from alignattn.training.trainer import AlignmentTrainer
from alignattn.training.weights import weighted_loss

ROWS = 12
"""One step of 8, and a last one of 4."""

UNEVEN = {
    "last-batch": ("texts", 10, 3, 2),
    "labels": ("tags", 9, 3, 2),
    "last-step": ("tags", 11, 1, 4),
    "few-rows": ("texts", 2, 3, 1),
    "one-row": ("texts", 1, 3, 2),
}
"""A kind, a number of rows, a batch size and the batches of a step, of which two processes do not divide the rows."""

STREAMS = {
    "dispatched": (9, {}),
    "dispatched-to-one": (7, {}),
    "split": (9, {"split_batches": True}),
    "read-by-each": (7, {"dispatch_batches": False}),
    "read-by-each-in-part": (10, {"dispatch_batches": False}),
}
"""A number of rows that come one after another, and how accelerate splits them."""

WEIGHTS = torch.tensor([0.2, 1.0, 7.0], dtype=torch.float64)

CASES = [
    *((kind, "aa-ct") for kind in MODELS),
    *(("texts", variant) for variant in ("soft", *BY_SAMPLE) if variant != "aa-ct"),
    ("sequences", "soft"),
]

FSDP2_VARIANTS = ("aa-gan", "aa-ct+qvi")
"""Presets with networks of their own; an alignment without networks adds no parameters to shard."""

ADAM = {"optim": "adamw_torch", "adam_epsilon": 1e-3}
"""Adam has a state to save; this ε keeps it from making a step of rounding errors if the gradient is 0."""

FSDP2 = ADAM | {"fsdp": True, "fsdp_config": {"version": 2, "transformer_layer_cls_to_wrap": ["BertLayer"]}}


class Stream(IterableDataset):
    def __init__(self, kind, count):
        self.rows = KindRows(kind, count)

    def __iter__(self):
        return (self.rows[index] for index in range(len(self.rows)))


class OfTheWholeStep(AlignmentTrainer):
    """Divides by the number of labels of the step on all processes, and declares it."""

    loss_is_scaled_for_ga = True

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        logits = model(**inputs).logits.flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(logits, labels.flatten(), reduction="sum") / num_items_in_batch
        return loss * self.accelerator.num_processes


def train_kind(
    kind,
    variant,
    folder,
    batch_size,
    accumulation,
    trainer_class=AlignmentTrainer,
    resume=None,
    rows=ROWS,
    dataset=KindRows,
    **changes,
):
    settings = {
        "num_train_epochs": 1,
        "optim": "sgd",
        "learning_rate": 0.1,
        "alignment_learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "per_device_train_batch_size": batch_size,
        "gradient_accumulation_steps": accumulation,
    }
    args = arguments(folder, **(settings | changes))
    trainer = trainer_class(model=kind_model(kind, variant), args=args, train_dataset=dataset(kind, rows))
    trainer.train(resume_from_checkpoint=resume)
    return trainer


def weighted_trainer(label_smoothing=0.0, **kwargs):
    loss = partial(weighted_loss, weights=WEIGHTS, label_smoothing=label_smoothing)
    return AlignmentTrainer(compute_loss_func=loss, **kwargs)


def train_weighted(folder, batch_size, accumulation):
    return train_kind("tags", "aa-ct", folder, batch_size, accumulation, weighted_trainer)


def train_nodes(folder, batch_size, accumulation):
    """Train with all neighbours of a batch's nodes: sampled ones would depend on the split of a step into batches."""
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


def train_stream(name, folder, batch_size=3, accumulation=2):
    """Train one step on rows that come one after another."""
    rows, options = STREAMS[name]
    if options.get("split_batches"):
        batch_size *= 2
    changes = {"max_steps": 1, "accelerator_config": options, "rows": rows, "dataset": Stream}
    return train_kind("tags", "aa-ct", folder, batch_size, accumulation, **changes)


def train_sentences(checkpoint, folder, batch_size, accumulation):
    """Train with a loss that is a mean over pairs, and a pooler that no loss reaches."""
    model = embedder(checkpoint)
    settings = {"per_device_train_batch_size": batch_size, "gradient_accumulation_steps": accumulation}
    trainer = Trainer(
        model=model,
        args=Arguments(str(folder), **(SETTINGS | {"learning_rate": 0.1} | settings)),
        train_dataset=pairs(3).add_column("label", [row / ROWS for row in range(ROWS)]),
        loss=losses.CosineSimilarityLoss(model),
    )
    trainer.train()
    # DistributedDataParallel searches for unused parameters; the hook that shows it the alignment's goes at the end.
    assert not model._forward_hooks
    return trainer


def let_a_cpu_shard():
    """Make accelerate use FSDP2 on a CPU if it is requested: it would silently wrap in DDP."""
    without = AcceleratorState.__init__

    def initialize(state, *args, fsdp_plugin=None, **options):
        without(state, *args, fsdp_plugin=fsdp_plugin, **options)
        if fsdp_plugin is not None:
            state.fsdp_plugin = fsdp_plugin
        if vars(state).get("fsdp_plugin") is not None:
            state.distributed_type = DistributedType.FSDP

    AcceleratorState.__init__ = initialize


def train_sharded(variant, folder, batch_size, accumulation):
    """Train with FSDP2; a second trainer makes the second step, from a checkpoint of the first."""
    folder = folder / variant
    changes = FSDP2 | {"save_strategy": "steps", "save_steps": 1}
    train_kind("texts", variant, folder, batch_size, accumulation, **changes)
    resume = str(folder / "checkpoint-1")
    trainer = train_kind("texts", variant, folder, batch_size, accumulation, resume=resume, **changes)
    assert all(isinstance(parameter, DTensor) for parameter in trainer.model.parameters())
    return trainer


def whole_state(model):
    state = model.state_dict().items()
    return {name: value.full_tensor() if isinstance(value, DTensor) else value for name, value in state}


if __name__ == "__main__":
    let_a_cpu_shard()
    checkpoint, folder, batch_size, accumulation = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    trainers = {
        f"{kind}-{variant}": partial(train_kind, kind, variant, folder, batch_size, accumulation)
        for kind, variant in CASES
    }
    for name, (kind, rows, size, batches) in UNEVEN.items():
        trainers[f"uneven-{name}"] = partial(train_kind, kind, "aa-ct", folder, size, batches, rows=rows)
    trainers["uneven-whole-step"] = partial(train_kind, "tags", "aa-ct", folder, 3, 2, OfTheWholeStep, rows=9)
    trainers |= {f"stream-{name}": partial(train_stream, name, folder) for name in STREAMS}
    trainers["weighted"] = partial(train_weighted, folder, batch_size, accumulation)
    trainers["nodes"] = partial(train_nodes, folder, batch_size, accumulation)
    trainers["sentences"] = partial(train_sentences, checkpoint, folder, batch_size, accumulation)
    # They come last, because all later trainers would shard the weights, too.
    trainers |= {
        f"fsdp2-{variant}": partial(train_sharded, variant, folder, batch_size, accumulation)
        for variant in FSDP2_VARIANTS
    }
    for name, train in trainers.items():
        trainer = train()
        assert trainer.accelerator.num_processes == int(os.environ["WORLD_SIZE"]) == 2
        state = whole_state(trainer.model)
        if trainer.is_world_process_zero():
            torch.save(state, folder / f"{name}.pt")
            (folder / f"{name}.json").write_text(json.dumps(trainer.state.log_history))
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.state.destroy_process_group()
