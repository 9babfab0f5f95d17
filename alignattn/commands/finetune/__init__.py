"""`alignattn finetune`."""
