"""The registry of the slots' choices: a line each, and its class is imported when a layer is built with it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from alignattn.attention.references import references
from alignattn.support.registry import Entry, Registry

HeadReduction = Literal["sum", "mean"]
"""What an alignment loss does over the heads of a layer."""


@dataclass(frozen=True)
class Choice(Entry):
    """A choice of a slot.

    Attributes:
        work: the paper it is of, by its key in `references.bib`.
        place: where in the paper it stands, such as `eq. 2`.
    """

    work: str | None = None
    place: str | None = None

    @property
    def citation(self) -> str:
        """The paper and the place in it, on one line; empty for a choice of no paper."""
        parts = (references()[self.work] if self.work else None, self.place)
        return ", ".join(str(part) for part in parts if part)


def _slot(name: str, choices: Mapping[str, Choice]) -> Registry[Choice]:
    return Registry(name, choices, package=__package__)


SCORES = _slot(
    "score",
    {
        "scaled_dot": Choice(".scores:ScaledDot", "q · k / √d", "vaswani2017attention", "eq. 1"),
        "dot": Choice(".scores:Dot", "q · k", "luong2015effective", "eq. 8"),
        "bilinear": Choice(".scores:Bilinear", "q W k / √d, a W for each head", "luong2015effective", "eq. 8"),
        "additive": Choice(".scores:Additive", "v · tanh(W₁ k + W₂ q)", "bahdanau2015neural", "appendix A.1.2"),
    },
)
"""S: how a query meets a key."""

NORMALIZERS = _slot(
    "normalizer",
    {
        "softmax": Choice(".normalizers.softmax:Softmax", "exp(s) over its sum", "vaswani2017attention", "eq. 1"),
        "sparsemax": Choice(
            ".normalizers.sparse:Sparsemax", "projection to the simplex", "martins2016softmax", "eq. 2"
        ),
        "entmax15": Choice(".normalizers.sparse:Entmax15", "entmax, α = 1.5, by sorting", "peters2019sparse"),
        "entmax": Choice(".normalizers.sparse:Entmax", "entmax, α given or learned a head", "correia2019adaptively"),
        "fusedmax": Choice(".normalizers.fusedmax:Fusedmax", "sparse, equal in segments", "niculae2017regularized"),
        "csoftmax": Choice(".normalizers.csoftmax:CSoftmax", "softmax, bounded above", "malaviya2018sparse"),
        "local": Choice(".normalizers.local:Local", "softmax in a window", "luong2015effective", "section 4.1"),
        "hard": Choice(".normalizers.softmax:Hard", "weight 1 at one largest score", "xu2015show", "section 4.1"),
    },
)
"""N: scores to weights."""

VALUES = _slot(
    "value",
    {
        "identity": Choice(".values:Identity", "V", "vaswani2017attention", "eq. 1"),
        "interaction": Choice(".values:Interaction", "Q̂ ∗ W V", "wu2020improving", "eq. 8"),
        "sum": Choice(".values:Sum", "Q̂ ∗ W V + V", "wu2020improving", "eq. 8"),
        "qvi": Choice(".values:QVI", "β V + (1 - β) Q̂ ∗ W V", "wu2020improving", "eqs. 7 to 10"),
    },
)
"""g: what is averaged."""

ALIGNMENTS = _slot(
    "alignment",
    {
        "gan": Choice(".alignment.gan:GANAlignment", "an adversary tells q from k", "zhang2021alignment", "eq. 2"),
        "ot": Choice(".alignment.ot:OTAlignment", "optimal transport of q to k", "zhang2021alignment", "eq. 3"),
        "ct": Choice(".alignment.ct:CTAlignment", "conditional transport, both ways", "zhang2021alignment", "eq. 4"),
    },
)
"""A: the distance between the key and query distributions."""

SLOTS: Mapping[str, Registry[Choice]] = {slots.kind: slots for slots in (SCORES, NORMALIZERS, VALUES, ALIGNMENTS)}
"""The choices of each slot by name; no name stands in two slots."""
