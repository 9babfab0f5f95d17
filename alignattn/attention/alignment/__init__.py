"""The alignment slot A(Q, K): distances between the distributions of keys and queries (Zhang et al. 2021)."""

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.ct import CTAlignment
from alignattn.attention.alignment.gan import GANAlignment
from alignattn.attention.alignment.ot import OTAlignment

ALIGNMENTS: dict[str, type[Alignment]] = {"gan": GANAlignment, "ot": OTAlignment, "ct": CTAlignment}
"""The choices of the slot by name."""

__all__ = ["ALIGNMENTS", "Alignment", "CTAlignment", "GANAlignment", "OTAlignment"]
