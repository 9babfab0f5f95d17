"""`alignattn inspect`."""
