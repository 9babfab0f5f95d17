"""Answers to questions about an image."""
