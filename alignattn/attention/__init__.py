"""The attention slots in pure PyTorch: nothing below this package imports transformers."""
