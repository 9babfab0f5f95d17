"""The span of a context that answers a question."""
