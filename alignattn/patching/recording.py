"""What one forward of a patched model produced: losses, and on request queries, keys and weights.

A model's attention layers share one collector. They append to plain Python lists, which `torch.compile` traces
without a graph break, and leave nothing on the modules.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class LayerRecord:
    """What one attention call produced.

    Attributes:
        loss: the alignment loss, a scalar; None without an alignment.
        diagnostics: detached scalars by name, such as the discriminator's accuracy.
        query: `[B, H, n, d]` as the attention received it, or None if tensors were not asked for; so the rest.
        key: `[B, H, n, d]`.
        weights: `[B, H, n, n]`, the attention weights.
        mask: `[B, n]` bool, True = a real token; None where nothing is padded, too.
    """

    loss: Tensor | None = None
    diagnostics: dict[str, Tensor] = field(default_factory=dict)
    query: Tensor | None = None
    key: Tensor | None = None
    weights: Tensor | None = None
    mask: Tensor | None = None


@dataclass
class Recording:
    """The records of one forward, in the order of the attention calls.

    Attributes:
        keeps_tensors: whether queries, keys, weights and masks are kept, and in evaluation mode, too.
        layers: one record a call; a layer whose module several layers share (ALBERT) has one for each call.
        projected: what the projections of the attention call under way hand to its alignment loss.
        is_open: whether records are still taken: the second forward of gradient checkpointing must repeat the
            first one's operations, and a layer counts once.
    """

    keeps_tensors: bool = False
    layers: list[LayerRecord] = field(default_factory=list)
    projected: dict[str, Tensor] = field(default_factory=dict)
    is_open: bool = True

    def add(self, record: LayerRecord) -> None:
        """Append a record, unless the recording is closed."""
        if self.is_open:
            self.layers.append(record)

    def restart(self) -> None:
        """Forget the last forward and take records of the next."""
        self.layers.clear()
        self.projected.clear()
        self.is_open = True

    def close(self) -> None:
        """Take no more records and drop those taken."""
        self.layers.clear()
        self.projected.clear()
        self.is_open = False

    def losses(self) -> list[Tensor]:
        """Return the alignment losses of the calls."""
        return [record.loss for record in self.layers if record.loss is not None]

    def mean_loss(self) -> Tensor | None:
        """Return the mean alignment loss over the calls, a scalar; None if no call reported one."""
        losses = self.losses()
        return torch.stack(losses).mean() if losses else None

    def mean_diagnostics(self) -> dict[str, Tensor]:
        """Return each diagnostic's mean over the calls."""
        names = self.layers[0].diagnostics if self.layers else {}
        return {
            name: sum((record.diagnostics[name] for record in self.layers[1:]), self.layers[0].diagnostics[name])
            / len(self.layers)
            for name in names
        }


class Collector:
    """Where the attention layers of one model find the recording that is under way.

    Attributes:
        recording: the one under way, or None.
        has_warned: whether training without a recording was already remarked on.
    """

    def __init__(self) -> None:
        self.recording: Recording | None = None
        self.has_warned = False

    def active_recording(self, training: bool) -> Recording | None:
        """Return the recording that a layer in this mode reports to.

        In evaluation mode only a recording that keeps tensors counts, so that a patched model costs what the plain
        one does.
        """
        recording = self.recording
        if recording is None or not (training or recording.keeps_tensors):
            return None
        return recording
