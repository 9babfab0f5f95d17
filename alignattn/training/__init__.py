"""Training with an alignment loss: the mixin of trainers and ours, arguments, groups, sharding, resuming."""
