"""The registry of the slots' choices: a line each, and its class is imported when a layer is built with it."""

from collections.abc import Mapping
from typing import Literal

from alignattn.support.registry import Entry, Registry

HeadReduction = Literal["sum", "mean"]
"""What an alignment loss does over the heads of a layer."""


def _slot(name: str, choices: Mapping[str, Entry]) -> Registry:
    return Registry(name, choices, package=__package__)


SCORES = _slot(
    "score",
    {
        "scaled_dot": Entry(".scores:ScaledDot", "q · k / √d", "vaswani2017attention", "eq. 1"),
        "dot": Entry(".scores:Dot", "q · k", "luong2015effective", "eq. 8"),
        "bilinear": Entry(".scores:Bilinear", "q W k / √d, a W for each head", "luong2015effective", "eq. 8"),
        "additive": Entry(".scores:Additive", "v · tanh(W₁ k + W₂ q)", "bahdanau2015neural", "appendix A.1.2"),
    },
)
"""S: how a query meets a key."""

NORMALIZERS = _slot(
    "normalizer",
    {
        "softmax": Entry(".normalizers.softmax:Softmax", "exp(s) over its sum", "vaswani2017attention", "eq. 1"),
        "sparsemax": Entry(".normalizers.sparse:Sparsemax", "projection to the simplex", "martins2016softmax", "eq. 2"),
        "entmax15": Entry(".normalizers.sparse:Entmax15", "entmax, α = 1.5, by sorting", "peters2019sparse"),
        "entmax": Entry(".normalizers.sparse:Entmax", "entmax, α given or learned a head", "correia2019adaptively"),
        "fusedmax": Entry(".normalizers.fusedmax:Fusedmax", "sparse, equal in segments", "niculae2017regularized"),
        "csoftmax": Entry(".normalizers.csoftmax:CSoftmax", "softmax, bounded above", "malaviya2018sparse"),
        "local": Entry(".normalizers.local:Local", "softmax in a window", "luong2015effective", "section 4.1"),
        "hard": Entry(".normalizers.softmax:Hard", "weight 1 at one largest score", "xu2015show", "section 4.1"),
    },
)
"""N: scores to weights."""

VALUES = _slot(
    "value",
    {
        "identity": Entry(".values:Identity", "V", "vaswani2017attention", "eq. 1"),
        "interaction": Entry(".values:Interaction", "(attended Q) ∗ W V", "wu2020improving", "eq. 8"),
        "sum": Entry(".values:Sum", "(attended Q) ∗ W V + V", "wu2020improving", "eq. 8"),
        "qvi": Entry(".values:QVI", "β V + (1 - β) (attended Q) ∗ W V", "wu2020improving", "eqs. 7 to 10"),
    },
)
"""g: what is averaged."""

ALIGNMENTS = _slot(
    "alignment",
    {
        "gan": Entry(".alignment.gan:GANAlignment", "an adversary tells q from k", "zhang2021alignment", "eq. 2"),
        "ot": Entry(".alignment.ot:OTAlignment", "optimal transport of q to k", "zhang2021alignment", "eq. 3"),
        "ct": Entry(".alignment.ct:CTAlignment", "conditional transport, both ways", "zhang2021alignment", "eq. 4"),
    },
)
"""A: the distance between the key and query distributions."""

SLOTS: Mapping[str, Registry] = {slots.kind: slots for slots in (SCORES, NORMALIZERS, VALUES, ALIGNMENTS)}
"""The choices of each slot by name; no name stands in two slots."""
