"""Training with an alignment loss: trainers, their arguments, training methods, parameter groups, checkpoints."""
