"""`alignattn demo`."""
