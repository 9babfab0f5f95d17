"""The alignment losses as fused kernels in Triton, for a GPU; taken where they are asked for, one file each."""
