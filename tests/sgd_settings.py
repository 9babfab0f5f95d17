"""Arguments of a Trainer whose steps a plain loop can repeat: plain gradient descent, one epoch, no clipping."""

import torch

SGD_SETTINGS = {
    "num_train_epochs": 1,
    "optim": "sgd",
    "lr_scheduler_type": "constant",
    "max_grad_norm": 0.0,
    "logging_steps": 1,
    "save_strategy": "no",
    "disable_tqdm": True,
    "report_to": "none",
    "use_cpu": True,
}


def stacked(rows):
    """Collate rows of tensors of one shape."""
    return {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
