"""Graph attention networks: GAT (Veličković et al. 2018) and GATv2 (Brody et al. 2022)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import SequenceClassifierOutput

from alignattn.attention.attend import attend
from alignattn.attention.masks import Edges
from alignattn.attention.scores import GAT, NEGATIVE_SLOPE, GATv2
from alignattn.models import MODEL_TYPE_PREFIX
from alignattn.models.build import BuildContext, BuiltModel, build_model, checked_fields
from alignattn.tasks import NodeClassification
from alignattn.tasks.nodes.graph import graph_of
from alignattn.utils.errors import AlignAttnError


class GraphLayer(nn.Module, ABC):
    """A layer of graph attention: O_i = Σ_j softmax_j(S(q_i, k_j)) v_j over the neighbours j of each node i.

    Args:
        in_features: number of features of a node.
        head_dim: size d of a head's query, key and value.
        num_heads: number of heads H.
        joins_heads: whether to concatenate the heads, `[n, H · d]`, instead of averaging them, `[n, d]`.
        dropout: dropout of the attention weights.
    """

    def __init__(self, in_features: int, head_dim: int, num_heads: int, *, joins_heads: bool, dropout: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.joins_heads = joins_heads
        self.dropout = dropout
        self.bias = nn.Parameter(torch.zeros(num_heads * head_dim if joins_heads else head_dim))

    def forward(self, states: Tensor, edges: Edges) -> Tensor:
        """Return `[n, H · d]` or `[n, d]` of nodes `[n, in_features]`."""
        query, key, value = (
            part.unflatten(-1, (self.num_heads, -1)).transpose(0, 1)[None] for part in self.projected(states)
        )
        attended = attend(self, query, key, value, edges, dropout=self.dropout)[0].transpose(0, 1)
        return (attended.flatten(1) if self.joins_heads else attended.mean(dim=1)) + self.bias

    @abstractmethod
    def projected(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, each `[n, H · d]`, of nodes `[n, in_features]`."""

    @property
    @abstractmethod
    def vectors(self) -> Sequence[Tensor]:
        """The parameters of the score, `[H, d]` each."""


class GATLayer(GraphLayer):
    """A layer of GAT, whose score is LeakyReLU(a · [W h_i ‖ W h_j]) (Veličković et al. 2018, eqs. 1 to 6).

    With a_l and a_r for the halves of a, queries are a_l ⊙ W h and keys a_r ⊙ W h: their features sum to the two terms
    of the score, and an alignment matches their distributions. (With W h for both, there would be one distribution.)

    Args:
        *sizes: as for `GraphLayer`.
        negative_slope: slope of the LeakyReLU below 0.
        **options: as for `GraphLayer`.
    """

    def __init__(self, *sizes: int, negative_slope: float = NEGATIVE_SLOPE, **options: Any) -> None:
        super().__init__(*sizes, **options)
        in_features, head_dim, num_heads = sizes
        self.shared_projection = nn.Linear(in_features, num_heads * head_dim, bias=False)
        self.query_vector = nn.Parameter(torch.empty(num_heads, head_dim))
        self.key_vector = nn.Parameter(torch.empty(num_heads, head_dim))
        self.own_score = GAT(head_dim, num_heads, negative_slope=negative_slope)

    def queries_and_keys(self, projected: Tensor) -> tuple[Tensor, Tensor]:
        """Return a_l ⊙ W h and a_r ⊙ W h for W h, all `[n, H · d]`."""
        return projected * self.query_vector.flatten(), projected * self.key_vector.flatten()

    def projected(self, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values, as `GraphLayer.projected`."""
        projected = self.shared_projection(states)
        return *self.queries_and_keys(projected), projected

    @property
    def vectors(self) -> Sequence[Tensor]:
        """The halves of a."""
        return self.query_vector, self.key_vector


@strict
class GatConfig(PreTrainedConfig):
    """The sizes of Veličković et al. 2018, §3.3, for Cora and Citeseer; PubMed has 8 `num_output_heads`."""

    model_type = MODEL_TYPE_PREFIX + "gat"

    num_features: int = 1
    hidden_dim: int = 8
    num_attention_heads: int = 8
    num_output_heads: int = 1
    num_hidden_layers: int = 2
    dropout: float = 0.6
    negative_slope: float = NEGATIVE_SLOPE


class GatForNodeClassification(PreTrainedModel):
    """Layers of graph attention, with dropout before each and an ELU between them (Veličković et al. 2018, §3.3)."""

    config_class = GatConfig
    auto_class = AutoModel
    main_input_name = "node"
    layer_class: ClassVar[type[GraphLayer]] = GATLayer

    def __init__(self, config: GatConfig) -> None:
        super().__init__(config)
        assert config.num_labels is not None
        width = config.hidden_dim * config.num_attention_heads
        shared: dict[str, Any] = {"dropout": config.dropout, "negative_slope": config.negative_slope}
        sizes = [config.num_features, *[width] * (config.num_hidden_layers - 1)]
        hidden = [
            self.layer_class(size, config.hidden_dim, config.num_attention_heads, joins_heads=True, **shared)
            for size in sizes[:-1]
        ]
        output = self.layer_class(sizes[-1], config.num_labels, config.num_output_heads, joins_heads=False, **shared)
        self.layers = nn.ModuleList([*hidden, output])
        self.post_init()  # type: ignore[no-untyped-call]

    @classmethod
    def build(cls, context: BuildContext) -> BuiltModel:
        """Return an untrained model for the features of the rows' graph."""
        task, fields = context.task, checked_fields(context.config_fields, cls.config_class)
        assert isinstance(task, NodeClassification)
        of_data = {"num_features": graph_of(context.rows).num_features, "num_labels": task.num_labels}
        return BuiltModel(build_model(cls, fields | of_data, context.seed), None)

    # No **kwargs: otherwise the Trainer would not divide the loss by the accumulation steps.
    def forward(
        self, node: Tensor, features: Tensor, edges: Tensor, labels: Tensor | None = None
    ) -> SequenceClassifierOutput:
        """Classify nodes of a graph.

        Args:
            node: `[B]`, numbers of nodes.
            features: `[n, num_features]`, dense or CSR.
            edges: `[2, E]`: the attending nodes and the attended nodes.
            labels: `[B]`, integers.

        Returns:
            `logits` `[B, num_labels]`, and `loss`, the cross entropy, if there are labels.

        Raises:
            AlignAttnError: if the number of features differs from the model's.
        """
        if features.shape[1] != self.config.num_features:
            raise AlignAttnError(
                f"the graph has {features.shape[1]} features per node, and the model expects "
                f"{self.config.num_features}: give a graph with the features of the training graph"
            )
        states, neighbours = features, Edges(edges[0], edges[1], len(features))
        for layer in self.layers:
            states = F.elu(states) if layer is not self.layers[0] else states
            states = self._dropped(states)
            # CPUs have no sparse product in half precision.
            with torch.autocast(states.device.type, enabled=False) if _is_sparse(states) else nullcontext():
                states = layer(states, neighbours)
        logits = states.index_select(0, node)
        loss = None if labels is None else F.cross_entropy(logits, labels)
        return SequenceClassifierOutput(loss=loss, logits=logits)

    def _dropped(self, states: Tensor) -> Tensor:
        """Apply dropout; for sparse features, only to the nonzero ones."""
        rate = self.config.dropout
        if not (_is_sparse(states) and self.training):
            return F.dropout(states, rate, self.training)
        values = F.dropout(states.values(), rate)
        return torch.sparse_csr_tensor(
            states.crow_indices(), states.col_indices(), values, states.shape, check_invariants=False
        )

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        elif isinstance(module, GraphLayer):
            init.zeros_(module.bias)
            for vector in module.vectors:
                init.xavier_uniform_(vector)


def _is_sparse(states: Tensor) -> bool:
    return states.layout != torch.strided


class GATv2Layer(GraphLayer):
    """A layer of GATv2, whose score is a · LeakyReLU(W_q h_i + W_k h_j) and whose values are its keys.

    Eq. 7; arguments as for `GATLayer`.
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
    """The sizes of `GatConfig`."""

    model_type = MODEL_TYPE_PREFIX + "gatv2"


class Gatv2ForNodeClassification(GatForNodeClassification):
    """`GatForNodeClassification` with layers of GATv2."""

    config_class = Gatv2Config
    layer_class = GATv2Layer
