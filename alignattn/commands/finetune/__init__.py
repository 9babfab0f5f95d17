"""`alignattn finetune`: a pretrained encoder on a task, with or without alignment attention."""
