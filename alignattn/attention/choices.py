"""The registry of the choices of each slot; a class is imported when a layer is built with it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from alignattn.utils.options import Option
from alignattn.utils.registry import Entry, Registry

HeadReduction = Literal["sum", "mean"]
"""The reduction of an alignment loss over the heads of a layer."""

PREDICTIVE = "predictive"
"""The kind of local attention that predicts the centre of its window."""

FERTILITY = "fertility"
"""The option of `csoftmax` that gives each key a budget over the queries."""


@dataclass(frozen=True, kw_only=True)
class Choice(Entry):
    """The registry entry of a choice of a slot.

    Attributes:
        is_learned: whether it has parameters.
        supports_windows: of a score: whether it skips the pairs outside a sliding window.
        has_edge_form: of a normalizer: whether it works along the edges of a graph.
        counts_positions: of a normalizer: whether the keys that a query attends to depend on its position.
        has_budget: of a normalizer: whether a key has a budget of weight over successive queries.
        reads_raw_queries: of a score or value: whether it uses the queries without the factor 1/sqrt(d). A model that
            scales its queries itself does not support it.
        reads_all_queries: of a value: whether it depends on all queries. A token of a decoder would see later tokens.
        reads_beyond_products: why attention depends on more than the products of queries and keys, in words that follow
            the choice's name, such as "reads the queries"; empty if it does not. Balancing queries and keys would then
            change the function.
        averages_samples: of an alignment: whether its loss is a mean over samples, so that the mean over a random part
            of them estimates it without bias.
        points_on_graph: of an alignment of all pairs: the default maximum number of a graph's nodes that it compares,
            drawn anew at each step; None = all.
        exports: whether ONNX can express it: "yes"; "float32", not in int8; "no".
        options_from_scratch: default options in a model that is trained from scratch.
        with_option: an option, its value (None = any), and the attributes that it changes.
    """

    is_learned: bool = False
    has_edge_form: bool = False
    supports_windows: bool = True
    reads_raw_queries: bool = False
    counts_positions: bool = False
    has_budget: bool = False
    reads_all_queries: bool = False
    reads_beyond_products: str = ""
    averages_samples: bool = False
    points_on_graph: int | None = None
    exports: Literal["yes", "float32", "no"] = "yes"
    options_from_scratch: Mapping[str, Any] = field(default_factory=dict)
    with_option: tuple[str, Any, Mapping[str, Any]] | None = None

    def given(self, options: Mapping[str, Any]) -> "Choice":
        """Return the choice with its options applied."""
        if self.with_option is None:
            return self
        name, value, attributes = self.with_option
        setting = options.get(name)
        return replace(self, **attributes) if setting is not None and value in (None, setting) else self


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


_NO_PRODUCT: Mapping[str, Any] = {"reads_beyond_products": "is not a dot product of queries and keys"}
_INTERACTS: Mapping[str, Any] = {
    "is_learned": True,
    "reads_raw_queries": True,
    "reads_all_queries": True,
    "reads_beyond_products": "reads the queries",
}
_FROM_RANDOM: Mapping[str, Any] = {**_INTERACTS, "options_from_scratch": {"init": "paper"}}
"""In a model that is trained from scratch, a value starts as in its paper."""
_PREDICTS: Mapping[str, Any] = {
    "counts_positions": False,
    "is_learned": True,
    "reads_beyond_products": "predicts its window from the query",
}

_VASWANI, _LUONG, _WU, _ZHANG = "vaswani2017attention", "luong2015effective", "wu2020improving", "zhang2021alignment"

SCORES = Registry(
    "score",
    {
        "scaled_dot": Choice(".scores:ScaledDot", "q · k / √d", _VASWANI, "eq. 1"),
        "dot": Choice(".scores:Dot", "q · k", _LUONG, "eq. 8", reads_raw_queries=True),
        "bilinear": Choice(
            ".scores:Bilinear", "q W k / √d, one W per head", _LUONG, "eq. 8", is_learned=True, **_NO_PRODUCT
        ),
        "additive": Choice(
            ".scores:Additive",
            "v · tanh(W₁ k + W₂ q)",
            "bahdanau2015neural",
            "appendix A.1.2",
            is_learned=True,
            supports_windows=False,
            **_NO_PRODUCT,
            exports="no",
        ),
        "gat": Choice(
            ".scores:GAT",
            "LeakyReLU(Σ q + Σ k); q and k include a",
            "velickovic2018graph",
            "eq. 3",
            _SLOPE,
            **_NO_PRODUCT,
        ),
        "gatv2": Choice(
            ".scores:GATv2",
            "a · LeakyReLU(q + k)",
            "brody2022attentive",
            "eq. 7",
            _SLOPE,
            is_learned=True,
            **_NO_PRODUCT,
        ),
    },
    package=__package__,
)
"""S: how well a query matches a key."""

NORMALIZERS = Registry(
    "normalizer",
    {
        "softmax": Choice(".normalizers.softmax:Softmax", "exp(s) / Σ exp(s)", _VASWANI, "eq. 1", has_edge_form=True),
        "sparsemax": Choice(
            ".normalizers.sparse:Sparsemax",
            "Euclidean projection onto the simplex",
            "martins2016softmax",
            "eq. 2",
            has_edge_form=True,
            exports="no",
        ),
        "entmax15": Choice(
            ".normalizers.sparse:Entmax15",
            "entmax with α = 1.5, by sorting",
            "peters2019sparse",
            has_edge_form=True,
            exports="no",
        ),
        "entmax": Choice(
            ".normalizers.sparse:Entmax",
            "entmax, α fixed or learned per head",
            "correia2019adaptively",
            options=_ENTMAX,
            with_option=("learned", True, {"is_learned": True}),
            exports="no",
        ),
        "fusedmax": Choice(
            ".normalizers.fusedmax:Fusedmax",
            "sparse, constant in segments",
            "niculae2017regularized",
            options=_WEIGHT,
            exports="no",
        ),
        "csoftmax": Choice(
            ".normalizers.csoftmax:CSoftmax",
            "softmax with an upper bound per weight",
            "malaviya2018sparse",
            options=_BUDGET,
            with_option=(FERTILITY, None, {"has_budget": True}),
        ),
        "local": Choice(
            ".normalizers.local:Local",
            "softmax within a window",
            _LUONG,
            "section 4.1",
            _LOCAL,
            counts_positions=True,
            with_option=("kind", PREDICTIVE, _PREDICTS),
        ),
        "hard": Choice(".normalizers.softmax:Hard", "weight 1 for the largest score", "xu2015show", "section 4.1"),
    },
    package=__package__,
)
"""N: scores to weights."""

VALUES = Registry(
    "value",
    {
        "identity": Choice(".values:Identity", "V", _VASWANI, "eq. 1"),
        "interaction": Choice(".values:Interaction", "(attended Q) ∗ W V", _WU, "eq. 8", **_INTERACTS),
        "sum": Choice(".values:Sum", "(attended Q) ∗ W V + V", _WU, "eq. 8", _INIT, **_FROM_RANDOM),
        "qvi": Choice(
            ".values:QVI",
            "β V + (1 - β) (attended Q) ∗ W V",
            _WU,
            "eqs. 4 to 10",
            _INIT,
            exports="float32",
            **_FROM_RANDOM,
        ),
    },
    package=__package__,
)
"""g: what is averaged."""

# With ct on 256 of Cora's 2,708 nodes, an epoch takes 1.5 times as long as without; on 512, twice; on all, 20 times.
ALIGNMENTS = Registry(
    "alignment",
    {
        "gan": Choice(
            ".alignment.gan:GANAlignment",
            "discriminator between q and k",
            _ZHANG,
            "eq. 2",
            _GAN,
            is_learned=True,
            averages_samples=True,
        ),
        "ot": Choice(
            ".alignment.ot:OTAlignment",
            "optimal transport from q to k",
            _ZHANG,
            "eq. 3",
            _OT,
            averages_samples=True,
            points_on_graph=1024,
        ),
        "ct": Choice(
            ".alignment.ct:CTAlignment",
            "bidirectional conditional transport",
            _ZHANG,
            "eq. 4",
            _CT,
            is_learned=True,
            averages_samples=True,
            points_on_graph=256,
        ),
        "moments": Choice(
            ".alignment.moments:MomentsAlignment",
            "squared Wasserstein distance of Gaussians with their means and covariances",
            "dowson1982frechet",
            "eq. 16",
        ),
        "means": Choice(
            ".alignment.means:MeansAlignment",
            "squared distance of the means of q and k",
            "dowson1982frechet",
            "first term of eq. 16",
        ),
    },
    package=__package__,
)
"""A: the distance between the key and query distributions."""

SLOTS: Mapping[str, Registry[Choice]] = {slots.kind: slots for slots in (SCORES, NORMALIZERS, VALUES, ALIGNMENTS)}
"""The choices of each slot by name; no name occurs in two slots."""


def choices_with(slot: str, capability: str) -> Sequence[str]:
    """Return the names of a slot's choices with a capability, an attribute of `Choice`."""
    return [name for name, choice in SLOTS[slot].items() if getattr(choice, capability)]
