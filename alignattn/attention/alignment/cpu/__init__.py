"""The alignment losses on a CPU: a few samples at a time, with their gradients written out, in memory that is kept."""
