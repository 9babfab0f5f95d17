"""Texts that may have several labels at once."""
