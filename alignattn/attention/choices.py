"""The registry of the slots' choices: a line each, and its class is imported when a layer is built with it."""

from collections.abc import Mapping
from typing import Any, Literal

from alignattn.utils.option import Option
from alignattn.utils.registry import Entry, Registry

HeadReduction = Literal["sum", "mean"]
"""What an alignment loss does over the heads of a layer."""

LOCAL, PREDICTIVE = "local", "predictive"
"""Attention in a window, and that which predicts its centre."""

CSOFTMAX, FERTILITY = "csoftmax", "fertility"
"""Attention that is bounded, and by what instead of a number: a budget of each key."""


def _option(name: str, kind: type[Any], **limits: Any) -> Option:
    return Option(name=name, types=(kind,), positional=True, metavar=name, **limits)


_INIT = (_option("init", str, choices=("pretrained", "paper")),)
_BUDGET = (_option("bound", float, above=0, high=1), _option(FERTILITY, float, above=0))
_SLOPE = (_option("negative_slope", float, low=0, below=1),)
_WEIGHT = (_option("weight", float, above=0),)
_ENTMAX = (_option("alpha", float, above=1), _option("learned", bool))
_LOCAL = (_option("kind", str, choices=("monotonic", PREDICTIVE)), _option("window", int, low=1))
_DRAWN = (_option("points", int, low=1),)
_GAN = (_option("hidden_dim", int, low=1), *_DRAWN)
_CT = (*_GAN, _option("feature_dim", int, low=1))
_OT = (
    _option("cost", str, choices=("cosine", "squared_euclidean")),
    _option("epsilon", float, above=0),
    _option("iterations", int, low=1),
    _option("anneal_from", float, above=0),
    *_DRAWN,
)
_POINTS = (_option("points", int, low=2),)
_SLICED = (*_POINTS, _option("directions", int, low=1))


def _slot(name: str, choices: Mapping[str, Entry]) -> Registry:
    return Registry(name, choices, package=__package__)


SCORES = _slot(
    "score",
    {
        "scaled_dot": Entry(".scores:ScaledDot", "q · k / √d", "vaswani2017attention", "eq. 1"),
        "dot": Entry(".scores:Dot", "q · k", "luong2015effective", "eq. 8"),
        "bilinear": Entry(".scores:Bilinear", "q W k / √d, a W for each head", "luong2015effective", "eq. 8"),
        "additive": Entry(".scores:Additive", "v · tanh(W₁ k + W₂ q)", "bahdanau2015neural", "appendix A.1.2"),
        "gat": Entry(
            ".graph_scores:GAT", "LeakyReLU(1 · q + 1 · k), a's halves in q, k", "velickovic2018graph", "eq. 3", _SLOPE
        ),
        "gatv2": Entry(".graph_scores:GATv2", "a · LeakyReLU(q + k)", "brody2022attentive", "eq. 7", _SLOPE),
    },
)
"""S: how a query meets a key."""

NORMALIZERS = _slot(
    "normalizer",
    {
        "softmax": Entry(".normalizers.softmax:Softmax", "exp(s) over its sum", "vaswani2017attention", "eq. 1"),
        "sparsemax": Entry(".normalizers.sparse:Sparsemax", "projection to the simplex", "martins2016softmax", "eq. 2"),
        "entmax15": Entry(".normalizers.sparse:Entmax15", "entmax, α = 1.5, by sorting", "peters2019sparse"),
        "entmax": Entry(
            ".normalizers.sparse:Entmax", "entmax, α given or learned a head", "correia2019adaptively", options=_ENTMAX
        ),
        "fusedmax": Entry(
            ".normalizers.fusedmax:Fusedmax", "sparse, equal in segments", "niculae2017regularized", options=_WEIGHT
        ),
        CSOFTMAX: Entry(
            ".normalizers.csoftmax:CSoftmax", "softmax, bounded above", "malaviya2018sparse", options=_BUDGET
        ),
        LOCAL: Entry(".normalizers.local:Local", "softmax in a window", "luong2015effective", "section 4.1", _LOCAL),
        "hard": Entry(".normalizers.softmax:Hard", "weight 1 at one largest score", "xu2015show", "section 4.1"),
    },
)
"""N: scores to weights."""

VALUES = _slot(
    "value",
    {
        "identity": Entry(".values:Identity", "V", "vaswani2017attention", "eq. 1"),
        "interaction": Entry(".values:Interaction", "(attended Q) ∗ W V", "wu2020improving", "eq. 8"),
        "sum": Entry(".values:Sum", "(attended Q) ∗ W V + V", "wu2020improving", "eq. 8", _INIT),
        "qvi": Entry(".values:QVI", "β V + (1 - β) (attended Q) ∗ W V", "wu2020improving", "eqs. 4 to 10", _INIT),
    },
)
"""g: what is averaged."""

ALIGNMENTS = _slot(
    "alignment",
    {
        "gan": Entry(".alignment.gan:GANAlignment", "an adversary tells q from k", "zhang2021alignment", "eq. 2", _GAN),
        "ot": Entry(".alignment.ot:OTAlignment", "optimal transport of q to k", "zhang2021alignment", "eq. 3", _OT),
        "ct": Entry(
            ".alignment.ct:CTAlignment", "conditional transport, both ways", "zhang2021alignment", "eq. 4", _CT
        ),
        "moments": Entry(
            ".alignment.moments:MomentsAlignment",
            "means and covariances, as of Gaussians",
            "dowson1982frechet",
            "eq. 16",
        ),
        "mmd": Entry(
            ".alignment.mmd:MMDAlignment",
            "energy distance of the clouds",
            "sejdinovic2013equivalence",
            "theorem 22",
            _POINTS,
        ),
        "sliced": Entry(
            ".alignment.sliced:SlicedAlignment", "Wasserstein along directions", "bonneel2015sliced", "eq. 8", _SLICED
        ),
    },
)
"""A: the distance between the key and query distributions."""

OF_EDGES = ("softmax", "sparsemax", "entmax15")
"""The normalizers that have a form for the edges of a graph."""

LEARNED = frozenset({"bilinear", "additive", "gatv2", "interaction", "sum", "qvi", "gan", "ct"})
"""Choices with parameters of their own; beside them `entmax` has some, where its α is learned."""

SLOTS: Mapping[str, Registry] = {slots.kind: slots for slots in (SCORES, NORMALIZERS, VALUES, ALIGNMENTS)}
"""The choices of each slot by name; no name stands in two slots."""
