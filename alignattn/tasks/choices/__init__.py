"""The choice of the right ending among several."""
