"""Models that generate sequences."""
