"""A tag for each word."""
