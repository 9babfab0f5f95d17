"""Train a tiny model in FOLDER, resuming; kill this process at step KILL_AT (-1: never). Run by test_trainer."""

import os
import signal
import sys
from pathlib import Path

import torch
import transformers
from conftest import tiny_model
from test_trainer import TinyRows, arguments

import alignattn
from alignattn.training.checkpoints import last_whole_checkpoint
from alignattn.training.trainer import AlignmentTrainer


class KillAt(transformers.TrainerCallback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_begin(self, args, state, control, **kwargs):
        if state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def train_in(folder: Path, kill_at: int = -1) -> None:
    model = alignattn.patch(tiny_model("bert"), "aa-ct", alignment_weight=0.3)
    args = arguments(folder, num_train_epochs=4, save_strategy="steps", save_steps=3)
    trainer = AlignmentTrainer(model=model, args=args, train_dataset=TinyRows(), callbacks=[KillAt(kill_at)])
    checkpoint = last_whole_checkpoint(folder)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    torch.save(model.state_dict(), folder / "weights.pt")


if __name__ == "__main__":
    train_in(Path(sys.argv[1]), int(sys.argv[2]))
