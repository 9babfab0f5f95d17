"""Taggers trained from scratch, and the CRF that any tagger can have."""
