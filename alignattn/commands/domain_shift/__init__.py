"""`alignattn domain-shift`."""
