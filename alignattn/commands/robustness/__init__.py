"""`alignattn robustness`."""
