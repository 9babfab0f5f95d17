"""Activation checkpointing by the name that the installed transformers knows: `gradient_checkpointing` before 5.23."""

from transformers import TrainingArguments

IS_NEW = hasattr(TrainingArguments, "activation_checkpointing")
NAME = "activation_checkpointing" if IS_NEW else "gradient_checkpointing"


def checkpointing_arguments(*, use_reentrant):
    """Return the keyword arguments of `TrainingArguments` that switch it on."""
    return {NAME: True, f"{NAME}_kwargs": {"use_reentrant": use_reentrant}}


def enable_checkpointing(model, *, use_reentrant=False):
    """Switch it on in a model."""
    getattr(model, f"{NAME}_enable")({"use_reentrant": use_reentrant})
