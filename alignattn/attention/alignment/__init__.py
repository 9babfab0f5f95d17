"""The alignment slot A(Q, K): distances between the distributions of keys and queries (Zhang et al. 2021)."""

from alignattn.attention.alignment.base import Alignment
from alignattn.attention.alignment.ct import CTAlignment
from alignattn.attention.alignment.gan import GANAlignment
from alignattn.attention.alignment.means import MeansAlignment
from alignattn.attention.alignment.moments import MomentsAlignment
from alignattn.attention.alignment.ot import OTAlignment

__all__ = [
    "Alignment",
    "CTAlignment",
    "GANAlignment",
    "MeansAlignment",
    "MomentsAlignment",
    "OTAlignment",
]
