"""The Triton of the kernels' tests, which may lie apart from the environment's packages."""

import os
import sys
from pathlib import Path

APART = Path(sys.prefix) / "kernels"
"""Where `make` lays AdaSplash, and Triton where torch has brought none."""


def environment_of_triton(**more: str) -> dict[str, str]:
    """Return the environment of a process that imports Triton, and more."""
    path = os.pathsep.join([str(APART), *filter(None, [os.environ.get("PYTHONPATH")])])
    return os.environ | more | {"PYTHONPATH": path}
