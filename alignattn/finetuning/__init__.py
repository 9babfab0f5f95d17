"""A fine-tuning run: its options, its rows and model, its training, and the files in its folder."""
