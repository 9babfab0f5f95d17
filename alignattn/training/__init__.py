"""Training with an alignment loss: the Trainer, its arguments, and resuming."""

from alignattn.training.trainer import AlignmentTrainer, AlignmentTrainingArguments, last_whole_checkpoint

__all__ = ["AlignmentTrainer", "AlignmentTrainingArguments", "last_whole_checkpoint"]
