"""A run: its options, its rows and model, its training, and what it leaves in its folder."""
