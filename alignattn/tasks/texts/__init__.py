"""One text or a pair of texts, with a class or a score."""
