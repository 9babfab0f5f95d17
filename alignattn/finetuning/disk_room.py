"""Whether the disk takes what a training will write: a rough look before hours are spent."""

import math
from pathlib import Path
from typing import Any

from transformers.trainer_utils import SaveStrategy

from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.errors import AlignAttnError, free_space, in_megabytes


def check_disk_room(trainer: AlignmentTrainer) -> None:
    """Refuse a training from its start whose checkpoints and weights the disk cannot take.

    What is asked for is less than is written: a disk that passes may still become full.

    Args:
        trainer: of the training.

    Raises:
        AlignAttnError: if so.
    """
    folder = Path(str(trainer.args.output_dir))
    count, free = _checkpoints_at_once(trainer), free_space(folder)
    needed = count * trainer.checkpoint_bytes() + trainer.model_bytes()
    if needed > free:
        raise AlignAttnError(
            f"{folder}: the run writes at least {in_megabytes(needed)} ({count} checkpoint(s) of "
            f"{in_megabytes(trainer.checkpoint_bytes())} at once, and the model), and {in_megabytes(free)} are free: "
            "make room, give --save_strategy no or --save_only_model true, or another --output_dir"
        )


def _checkpoints_at_once(trainer: AlignmentTrainer) -> int:
    """How many checkpoints lie in the folder at once, at least: the next is written before the oldest is removed."""
    args = trainer.args
    if args.save_strategy == SaveStrategy.NO:
        return 0
    saves = 1
    if args.save_strategy == SaveStrategy.EPOCH and args.max_steps <= 0:
        saves = math.ceil(args.num_train_epochs)
    if args.save_strategy == SaveStrategy.STEPS:
        saves = math.floor(_steps(trainer) / args.save_steps) if args.save_steps >= 1 else 1
    limit = args.save_total_limit
    return min(saves, limit + 1) if limit else saves


def _steps(trainer: AlignmentTrainer) -> int:
    args = trainer.args
    if args.max_steps > 0:
        return args.max_steps
    rows_a_step = args.train_batch_size * args.world_size * args.gradient_accumulation_steps
    rows: Any = trainer.train_dataset
    return math.floor(len(rows) / rows_a_step * args.num_train_epochs)
