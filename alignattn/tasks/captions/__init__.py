"""Captions that are written for pictures."""
