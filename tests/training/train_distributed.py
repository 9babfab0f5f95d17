"""Train a tiny model by SGD in this process or, under torchrun, in several. Run by test_trainer."""

import os
import sys
from pathlib import Path

import torch
from conftest import tiny_model
from test_trainer import TinyRows, arguments, without_dropout

import alignattn
from alignattn.training import AlignmentTrainer

TOTAL_BATCH = 8

if __name__ == "__main__":
    variant, folder = sys.argv[1], Path(sys.argv[2])
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    model = alignattn.patch(without_dropout(tiny_model("bert")), variant, alignment_weight=0.3)
    args = arguments(folder, optim="sgd", max_grad_norm=0.0, per_device_train_batch_size=TOTAL_BATCH // world_size)
    trainer = AlignmentTrainer(model=model, args=args, train_dataset=TinyRows())
    assert trainer.accelerator.num_processes == world_size
    trainer.train()
    if trainer.is_world_process_zero():
        folder.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict() | {"world_size": torch.tensor(world_size)}, folder / "weights.pt")
    trainer.accelerator.wait_for_everyone()
    trainer.accelerator.state.destroy_process_group()
