"""Pairs of sequences, of which the second is written."""
