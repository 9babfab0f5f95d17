"""Activation checkpointing, by its name in the installed transformers: `gradient_checkpointing` before 5.23."""

from transformers import TrainingArguments

IS_NEW = hasattr(TrainingArguments, "activation_checkpointing")
NAME = "activation_checkpointing" if IS_NEW else "gradient_checkpointing"


def checkpointing_arguments(*, use_reentrant):
    """Return the keyword arguments of `TrainingArguments` that enable it."""
    return {NAME: True, f"{NAME}_kwargs": {"use_reentrant": use_reentrant}}


def enable_checkpointing(model, *, use_reentrant=False):
    """Enable it in a model."""
    getattr(model, f"{NAME}_enable")({"use_reentrant": use_reentrant})
