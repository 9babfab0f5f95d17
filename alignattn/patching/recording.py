"""What `alignattn.collect` gives: a record of each attention call."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from alignattn.patching.projections import repeated


@dataclass(frozen=True)
class LayerRecord:
    """What one attention call produced.

    Attributes:
        loss: the alignment loss, a scalar; None without an alignment.
        diagnostics: detached scalars by name, such as the discriminator's accuracy.
        query: `[B, H, n, d]` as the attention received it.
        key: `[B, G, n, d]` of G heads of keys, H where heads share none; of other tokens than the queries
            `[B, G, m, d]`.
        weights: `[B, H, n, m]`, the attention weights; along the edges of a graph `[1, H, E]`.
        mask: `[B, n]` bool, True = a real token; None where nothing is padded. Of the queries, and of the keys where
            they are of the same tokens.
        key_mask: `[B, m]`, of the keys; the same tensor as `mask` where they are of the same tokens.
    """

    loss: Tensor | None = None
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    query: Tensor | None = None
    key: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None
    key_mask: Tensor | None = None

    @property
    def shared_key(self) -> Tensor | None:
        """The keys as each head of queries meets them, `[B, H, m, d]`: heads may share theirs."""
        if self.query is None or self.key is None:
            return self.key
        return repeated(self.key, self.query.shape[1], dim=1)

    def __repr__(self) -> str:
        """Return the shapes of what is there: the numbers of a step fill pages."""
        named = [*((name, getattr(self, name)) for name in _TENSORS), *self.diagnostics.items()]
        shapes = (f"{name}={list(value.shape)}" for name, value in named if value is not None)
        return f"{type(self).__name__}({', '.join(shapes)})"


_TENSORS = ("query", "key", "weights", "mask", "key_mask", "loss")


@dataclass
class Recording:
    """The records of the forwards under one `collect`, in the order of the attention calls.

    Attributes:
        layers: one record a call; a layer whose module several layers share (ALBERT) has one for each call.
        alignments: of the model, by the size of a head.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    alignments: nn.ModuleDict = field(default_factory=nn.ModuleDict)

    def __repr__(self) -> str:
        """Return a line a call."""
        records = "".join(f"\n  {index}: {record!r}" for index, record in enumerate(self.layers))
        return f"{type(self).__name__} of {len(self.layers)} attention calls{records}"

    def losses(self) -> list[Tensor]:
        """Return the alignment losses of the calls."""
        return [record.loss for record in self.layers if record.loss is not None]

    def mean_loss(self) -> Tensor | None:
        """Return the mean alignment loss over the calls, a scalar; None if no call reported one."""
        losses = self.losses()
        return torch.stack(losses).mean() if losses else None
