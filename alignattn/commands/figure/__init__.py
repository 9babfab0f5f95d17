"""`alignattn figure`."""
