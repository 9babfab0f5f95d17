"""Models that write sequences: what they share, how they write, and each of them."""
