"""Record what each attention layer of a patched model produces, for figures and study."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from alignattn.patching.recording import Recording
from alignattn.patching.routing import routed
from alignattn.patching.slots import patch_of


@contextmanager
def collect(model: nn.Module) -> Iterator[Recording]:
    """Record what each attention layer of a patched model produces, for figures and study.

        with alignattn.collect(model) as seen:
            model(**batch)
        seen.layers[0].query  # [B, H, n, d]; also key, weights, mask, loss, diagnostics

    A further forward under the same `with` appends its layers. Weights come from the model's eager attention, so its
    outputs under SDPA may differ by rounding meanwhile.

    Raises:
        AlignAttnError: if the model is not patched (`patch(model, "soft")` leaves its function as it is).
    """
    state = patch_of(model)
    collector = state.collector
    outer, recording = collector.recording, Recording(alignments=state.alignments)
    collector.recording = recording
    try:
        with routed(model):
            yield recording
    finally:
        collector.recording = outer
