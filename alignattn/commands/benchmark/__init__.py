"""`alignattn benchmark`."""
