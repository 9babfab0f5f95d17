"""The CPU backend of the alignment losses: blocks of samples, explicit gradients and reused memory."""
