"""An encoder that is not of transformers: it has what `alignattn.attach` needs, and no more."""

import torch
from conftest import VOCABULARY
from torch import Tensor, nn

import alignattn

SIZE, HEADS, LAYERS, CLASSES, POSITIONS = 24, 3, 2, 3, 32


class OwnAttention(nn.Module):
    """Self-attention that names its projections and calls `attend`."""

    num_heads = HEADS

    def __init__(self) -> None:
        super().__init__()
        self.query_projection = nn.Linear(SIZE, SIZE)
        self.key_projection = nn.Linear(SIZE, SIZE)
        self.value_projection = nn.Linear(SIZE, SIZE)
        self.output = nn.Linear(SIZE, SIZE)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        projections = (self.query_projection, self.key_projection, self.value_projection)
        heads = [project(states).unflatten(-1, (HEADS, -1)).transpose(1, 2) for project in projections]
        return self.output(alignattn.attend(self, *heads, mask, dropout=0.1).transpose(1, 2).flatten(2))


class OwnLayer(nn.Module):
    """Attention and a feed-forward network, each with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = OwnAttention()
        self.norms = nn.ModuleList([nn.LayerNorm(SIZE), nn.LayerNorm(SIZE)])
        self.feed_forward = nn.Sequential(nn.Linear(SIZE, 2 * SIZE), nn.GELU(), nn.Linear(2 * SIZE, SIZE))

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        states = states + self.attention(self.norms[0](states), mask)
        return states + self.feed_forward(self.norms[1](states))


class OwnEncoder(nn.Module):
    """A classifier of token ids, by the mean state of the real tokens."""

    def __init__(self, vocabulary: int = VOCABULARY, num_labels: int = CLASSES) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, SIZE), nn.Embedding(POSITIONS, SIZE)
        self.layers = nn.ModuleList(OwnLayer() for _ in range(LAYERS))
        self.classifier = nn.Linear(SIZE, num_labels)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> dict[str, Tensor]:
        real = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        states = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1], device=input_ids.device))
        for layer in self.layers:
            states = layer(states, None if attention_mask is None else real.bool())
        logits = self.classifier((states * real[..., None]).sum(dim=1) / real.sum(dim=1, keepdim=True))
        return ({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)}) | {"logits": logits}


def own_encoder(seed: int = 0) -> OwnEncoder:
    """Return an encoder with random weights, in evaluation mode."""
    torch.manual_seed(seed)
    return OwnEncoder().eval()
