"""The normalizer slot N(S): maps from attention scores to weights, each as a class and as a function."""

from alignattn.attention.normalizers.base import Normalizer
from alignattn.attention.normalizers.csoftmax import CSoftmax, csoftmax
from alignattn.attention.normalizers.fusedmax import Fusedmax, fusedmax
from alignattn.attention.normalizers.local import Local, local_monotonic, local_predictive
from alignattn.attention.normalizers.softmax import Hard, Softmax, hard, softmax
from alignattn.attention.normalizers.sparse import Entmax, Entmax15, Sparsemax, entmax, entmax15, sparsemax

__all__ = [
    "CSoftmax",
    "Entmax",
    "Entmax15",
    "Fusedmax",
    "Hard",
    "Local",
    "Normalizer",
    "Softmax",
    "Sparsemax",
    "csoftmax",
    "entmax",
    "entmax15",
    "fusedmax",
    "hard",
    "local_monotonic",
    "local_predictive",
    "softmax",
    "sparsemax",
]
