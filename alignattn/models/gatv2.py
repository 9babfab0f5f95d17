"""A graph attention network: GATv2 (Brody, Alon & Yahav 2022)."""

from collections.abc import Sequence
from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from alignattn.attention.graph_scores import NEGATIVE_SLOPE, GATv2
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.gat import GatConfig, GatForNodeClassification, GraphLayer


class GATv2Layer(GraphLayer):
    """A layer of GATv2, whose score is a · LeakyReLU(W_q h_i + W_k h_j) and whose values are its keys.

    Eq. 7; arguments as of `GATLayer`.
    """

    def __init__(self, *sizes: int, negative_slope: float = NEGATIVE_SLOPE, **options: Any) -> None:
        super().__init__(*sizes, **options)
        in_features, head_dim, num_heads = sizes
        self.query_projection = nn.Linear(in_features, num_heads * head_dim)
        self.key_projection = nn.Linear(in_features, num_heads * head_dim)
        self.own_score = GATv2(head_dim, num_heads, negative_slope=negative_slope)

    def projected(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, as `GraphLayer.projected`."""
        key = self.key_projection(states)
        return self.query_projection(states), key, key

    @property
    def vectors(self) -> Sequence[Tensor]:
        """The score's a."""
        return (self.own_score.vector,)


@strict
class Gatv2Config(GatConfig):
    """The same sizes."""

    model_type = MODEL_TYPE_PREFIX + "gatv2"


class Gatv2ForNodeClassification(GatForNodeClassification):
    """The same with layers of GATv2."""

    config_class = Gatv2Config
    layer_class = GATv2Layer
