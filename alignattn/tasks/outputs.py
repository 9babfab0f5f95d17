"""What must hold of a model's outputs before anything is made of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from alignattn.utils.errors import AlignAttnError


def check_finite(outputs: NDArray[Any]) -> None:
    """Refuses NaN and infinity, of which argmax would make a class without a word."""
    if not np.isfinite(outputs).all():
        raise AlignAttnError(
            "the model's outputs hold NaN or infinity: the training diverged; lower the learning rate or the alignment "
            "weight"
        )
