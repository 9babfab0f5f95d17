"""The result of `alignattn.collect`: a record of each attention call."""

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
        key: `[B, G, n, d]` for G heads of keys, G = H unless heads share keys; `[B, G, m, d]` for tokens other than the
            queries'.
        weights: `[B, H, n, m]`, the attention weights; along the edges of a graph `[1, H, E]`.
        mask: `[B, n]` bool, of the queries, True = a real token; None without padding.
        key_mask: `[B, m]` bool, of the keys; the same tensor as `mask` if they are the queries' tokens.
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
        """The keys of each head of queries, `[B, H, m, d]`; shared keys are repeated."""
        if self.query is None or self.key is None:
            return self.key
        return repeated(self.key, self.query.shape[1], dim=1)

    def __repr__(self) -> str:
        """Return the shapes of the tensors, because their values would fill pages."""
        tensors = ("query", "key", "weights", "mask", "key_mask", "loss")
        named = [*((name, getattr(self, name)) for name in tensors), *self.diagnostics.items()]
        shapes = (f"{name}={list(value.shape)}" for name, value in named if value is not None)
        return f"{type(self).__name__}({', '.join(shapes)})"


@dataclass
class Recording:
    """The records of the forwards under one `collect`, in the order of the attention calls.

    Attributes:
        layers: one record for each call; a module that several layers share (ALBERT) has several.
        alignments: the model's alignments by head size.
    """

    layers: list[LayerRecord] = field(default_factory=list)
    alignments: nn.ModuleDict = field(default_factory=nn.ModuleDict)

    def __repr__(self) -> str:
        """Return one line for each call."""
        records = "".join(f"\n  {index}: {record!r}" for index, record in enumerate(self.layers))
        return f"{type(self).__name__} of {len(self.layers)} attention calls{records}"

    def losses(self) -> list[Tensor]:
        """Return the alignment losses of the calls."""
        return [record.loss for record in self.layers if record.loss is not None]

    def mean_loss(self) -> Tensor | None:
        """Return the mean alignment loss over the calls, a scalar; None if no call reported one."""
        losses = self.losses()
        return torch.stack(losses).mean() if losses else None
