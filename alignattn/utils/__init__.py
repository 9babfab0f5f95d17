"""Shared utilities: errors, files, options, text tables."""
