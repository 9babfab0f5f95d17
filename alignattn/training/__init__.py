"""Training with an alignment loss: the mixin of trainers and ours, arguments, groups, sharding, resuming."""

from alignattn.training.arguments import AlignmentArguments, AlignmentTrainingArguments
from alignattn.training.checkpoints import last_whole_checkpoint, remove_checkpoints
from alignattn.training.early_stopping import EarlyStopping, JointBest
from alignattn.training.parameter_groups import parameter_groups
from alignattn.training.saving import remove_torn_weights
from alignattn.training.sharding import shard_slots
from alignattn.training.trainer import AlignmentMixin, AlignmentTrainer

__all__ = [
    "AlignmentArguments",
    "AlignmentMixin",
    "AlignmentTrainer",
    "AlignmentTrainingArguments",
    "EarlyStopping",
    "JointBest",
    "last_whole_checkpoint",
    "parameter_groups",
    "remove_checkpoints",
    "remove_torn_weights",
    "shard_slots",
]
