"""Alignment losses and attention as fused kernels in Triton, for a GPU; where they are asked for, one file each."""
