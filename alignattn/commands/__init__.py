"""A room a command: its options, its `main`, the work that only it does, and what it writes."""
