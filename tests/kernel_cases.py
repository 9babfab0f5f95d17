"""What kernels compute in Triton's interpreter: a process of its own, for Triton asks once how it is to run.

    TRITON_INTERPRET=1 python tests/kernel_cases.py FILE

writes losses, diagnostics and gradients of all cases, and AdaSplash's of those that it takes, and prints which kernels
were loaded.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from alignattn.attention import kernels
from alignattn.attention.alignment.call import Call
from alignattn.attention.choices import ALIGNMENTS
from alignattn.attention.config import AttentionConfig
from alignattn.attention.cross_mask import CrossMask
from alignattn.attention.kernels.choice import use_kernels
from alignattn.attention.variant import AttentionVariant

PROGRAMS = 4
Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]


def as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile nothing."""
    return function


def in_one_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile, forwards and backwards, what must not break the graph; no code is made of it."""
    return torch.compile(function, backend="aot_eager", fullgraph=True)


@dataclass(frozen=True)
class Case:
    """A loss of one call.

    Attributes:
        name: of the alignment.
        shape: samples, heads, queries and features of a head.
        keys: how many, where not as many as queries.
        counts: real tokens of each sample; the second is that of the keys.
        options: of the alignment.
        head_reduction: likewise.
        layers: of the model; with more than one each calls once, with features that differ.
        dtype: of queries and keys.
    """

    name: str
    shape: tuple[int, int, int, int]
    keys: int | None = None
    counts: tuple[tuple[int, ...] | None, tuple[int, ...] | None] = (None, None)
    options: dict[str, Any] = field(default_factory=dict)
    head_reduction: str = "sum"
    layers: int = 1
    dtype: torch.dtype = torch.float32

    def features(self, dtype: torch.dtype, device: str = "cpu"):
        """Queries and keys `[B, H, n, d]`, to be differentiated in."""
        batch, heads, length, dim = self.shape
        generator = torch.Generator().manual_seed(0)
        sides = [torch.randn(batch, heads, n, dim, generator=generator) for n in (length, self.keys or length)]
        return [side.to(self.dtype).to(device, dtype).requires_grad_() for side in sides]

    def masks(self, device: str = "cpu"):
        """Of queries and of keys, `[B, n]` or None."""
        lengths = (self.shape[2], self.keys or self.shape[2])
        pairs = zip(self.counts, lengths, strict=True)
        return [
            None if counts is None else (torch.arange(n) < torch.tensor(counts)[:, None]).to(device)
            for counts, n in pairs
        ]

    def alignment(self, dtype: torch.dtype, device: str = "cpu"):
        """The loss with parameters away from where they start, where little passes the gate."""
        torch.manual_seed(1)
        module = ALIGNMENTS.load(self.name)(
            self.shape[-1], num_layers=self.layers, head_reduction=self.head_reduction, **self.options
        )
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(0.3 * torch.randn_like(parameter))
        return module.to(device, dtype)


CASES = {
    "ct": Case("ct", (2, 2, 5, 8)),
    "ct-padded": Case("ct", (3, 2, 7, 8), counts=((7, 3, 1), None)),
    "ct-with-an-empty-sample": Case("ct", (3, 1, 6, 8), counts=((6, 0, 4), None)),
    "ct-several-tiles": Case("ct", (1, 2, 131, 8), counts=((129,), None)),
    "ct-a-tile-of-padding": Case("ct", (2, 1, 70, 8), counts=((70, 2), None)),
    "ct-keys-of-other-tokens": Case("ct", (2, 2, 6, 8), keys=9, counts=((5, 6), (9, 2))),
    "ct-more-queries-than-keys": Case("ct", (2, 1, 9, 8), keys=4),
    "ct-narrow-features": Case("ct", (2, 1, 6, 8), options={"feature_dim": 5, "hidden_dim": 7}),
    "ct-layers": Case("ct", (2, 2, 5, 8), counts=((5, 2), None), layers=3),
    "ct-head-of-64-padded": Case("ct", (3, 2, 29, 64), counts=((29, 0, 4), None)),
    "ct-head-of-96": Case("ct", (2, 1, 6, 96)),
    "ct-head-of-128": Case("ct", (1, 1, 21, 128), head_reduction="mean"),
    "ct-bfloat16": Case("ct", (2, 2, 7, 8), counts=((7, 3), None), dtype=torch.bfloat16),
    "ct-float16": Case("ct", (2, 2, 7, 32), dtype=torch.float16),
    "gan-bfloat16": Case("gan", (2, 2, 7, 32), counts=((7, 3), None), dtype=torch.bfloat16),
    "gan-float16": Case("gan", (2, 2, 7, 8), dtype=torch.float16),
    "gan-layers": Case("gan", (2, 2, 5, 8), counts=((5, 2), None), layers=3),
    "gan-head-of-32": Case("gan", (2, 2, 5, 32)),
    "gan-head-of-64-padded": Case("gan", (3, 2, 29, 64), counts=((29, 0, 4), None)),
    "gan-head-of-96-keys-of-other-tokens": Case("gan", (2, 1, 6, 96), keys=9, counts=((5, 6), (9, 2))),
    "gan-head-of-128": Case("gan", (1, 1, 21, 128), head_reduction="mean"),
    "gan-narrow-features": Case("gan", (2, 1, 6, 5), options={"hidden_dim": 7}),
    "ot": Case("ot", (1, 1, 5, 8)),
    "ot-head-of-32-padded": Case("ot", (3, 1, 7, 32), counts=((7, 3, 1), None), options={"iterations": 5}),
    "ot-head-of-64-with-an-empty-sample": Case("ot", (2, 1, 29, 64), counts=((27, 0), None), options={"iterations": 5}),
    "ot-head-of-96-keys-of-other-tokens": Case("ot", (2, 1, 6, 96), keys=9, counts=((5, 6), (9, 2))),
    "ot-head-of-128": Case("ot", (1, 2, 21, 128), options={"iterations": 4}, head_reduction="mean"),
    "ot-several-tiles": Case("ot", (1, 1, 71, 8), counts=((69,), None), options={"epsilon": 0.1, "iterations": 4}),
    "ot-squared": Case("ot", (1, 1, 6, 8), keys=9, options={"cost": "squared_euclidean", "epsilon": 1.0}),
    "ot-one-iteration": Case("ot", (1, 1, 5, 8), options={"iterations": 1}),
    "ot-layers": Case("ot", (2, 1, 5, 8), counts=((5, 2), None), options={"iterations": 4}, layers=3),
    "ct-wide-features": Case("ct", (1, 1, 6, 8), options={"feature_dim": 24}, head_reduction="mean"),
}


def results(case: Case, dtype: torch.dtype | None = None, device: str = "cpu", compiler: Compiler = as_it_is):
    """The loss of a case, its diagnostic, and the gradients in queries, keys and parameters, by name."""
    loss, diagnostic, module, (query, key) = loss_of(case, dtype or case.dtype, device, compiler)
    (3 * loss).backward()
    gradients = {name: parameter.grad for name, parameter in module.named_parameters()}
    return {
        "loss": loss.detach(),
        "diagnostic": diagnostic,
        "query": query.grad,
        "key": key.grad,
        **gradients,
    }


def loss_of(case: Case, dtype: torch.dtype, device: str = "cpu", compiler: Compiler = as_it_is):
    """The loss of a case and its diagnostic, and what the loss depends on: the module, and queries and keys."""
    module, (query, key), (mask, key_mask) = (
        case.alignment(torch.promote_types(dtype, torch.float32), device),
        case.features(dtype, device),
        case.masks(device),
    )
    if case.layers == 1:
        loss, diagnostics = compiler(module.with_diagnostics)(query, key, mask, key_mask=key_mask)
    else:
        sides = [side.transpose(1, 2).flatten(2) for side in (query, key)]
        calls = [
            Call(*((layer + 1) * side for side in sides), case.shape[1], mask, mask, layer)
            for layer in range(case.layers)
        ]
        loss, diagnostics = compiler(module.of_calls)(calls)
    return loss, diagnostics[module.diagnostic], module, (query, key)


@dataclass(frozen=True)
class AttentionCase:
    """An attention by entmax.

    Attributes:
        normalizer: its name.
        shape: samples, heads, queries and features of a head.
        keys: how many, where not as many as queries, and of other tokens then.
        counts: real tokens of each sample, of the keys.
        options: of the normalizer.
        score: its name.
        dropout: share of the weights; values are then the identity, which shows what was dropped, and others again.
        dtype: of queries, keys and values.
        offset: of the first feature of queries and keys, which moves all scores of a query alike, or nearly.
    """

    normalizer: str
    shape: tuple[int, int, int, int]
    keys: int | None = None
    counts: tuple[int, ...] | None = None
    options: dict[str, Any] = field(default_factory=dict)
    score: str = "scaled_dot"
    dropout: float = 0.0
    dtype: torch.dtype = torch.float32
    offset: float = 0.0

    def inputs(self, dtype: torch.dtype, device: str = "cpu"):
        """Queries, keys, values and the gradient in what is attended, `[B, H, n or m, d]`; only the last of no leaf."""
        batch, heads, length, dim = self.shape
        generator = torch.Generator().manual_seed(0)
        sizes = (length, self.keys or length, self.keys or length, length)
        sides = [torch.randn(batch, size, heads, dim, generator=generator).to(self.dtype) for size in sizes]
        for side in sides[:2] if self.offset else ():
            side[..., 0] = self.offset
        *leaves, gradient = (side.to(device, dtype).transpose(1, 2) for side in sides)
        return [leaf.detach().requires_grad_() for leaf in leaves], gradient

    def mask(self, device: str = "cpu"):
        """Of pairs `[B, 1, n, n]`, the last query without a key; a `CrossMask` where keys are of other tokens."""
        if self.counts is None:
            return None
        length = self.keys or self.shape[2]
        real = (torch.arange(length) < torch.tensor(self.counts)[:, None]).to(device)
        if self.keys is not None:
            return CrossMask(None, real)
        pairs = real[:, None, None].repeat(1, 1, length, 1)
        pairs[:, :, -1] = False
        return pairs

    def variant(self, dtype: torch.dtype, device: str = "cpu"):
        """The slots, α of the heads apart where it is learned."""
        config = AttentionConfig(score=self.score, normalizer=self.normalizer, normalizer_options=self.options)
        variant = AttentionVariant(config, self.shape[-1], self.shape[1])
        for parameter in variant.parameters():
            torch.nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(1))
        return variant.to(device, dtype)


ATTENTIONS = {
    "entmax15-head-of-32-padded": AttentionCase("entmax15", (2, 2, 7, 32), counts=(7, 3)),
    "entmax15-many-keys": AttentionCase("entmax15", (1, 1, 3, 16), keys=131),
    "entmax15-dropped": AttentionCase("entmax15", (1, 2, 32, 32), dropout=0.4),
    "entmax15-float16": AttentionCase("entmax15", (1, 1, 7, 16), dtype=torch.float16),
    "sparsemax-head-of-64-several-tiles": AttentionCase("sparsemax", (1, 1, 71, 64), counts=(69,)),
    "sparsemax-keys-of-other-tokens": AttentionCase("sparsemax", (2, 2, 5, 8), keys=9, counts=(9, 2), score="dot"),
    "entmax-learned-head-of-96": AttentionCase("entmax", (2, 3, 9, 96), counts=(9, 5), options={"learned": True}),
    "entmax-learned-head-of-48": AttentionCase("entmax", (1, 3, 9, 48), counts=(5,), options={"learned": True}),
    "sparsemax-one-key": AttentionCase("sparsemax", (1, 2, 3, 8), keys=1),
    "sparsemax-far-from-0": AttentionCase("sparsemax", (1, 1, 5, 8), keys=40, offset=8.0),
    "entmax-several-tiles": AttentionCase("entmax", (1, 1, 128, 16), options={"alpha": 1.7}),
    "entmax-nearly-the-softmax": AttentionCase("entmax", (1, 2, 37, 8), counts=(36,), options={"alpha": 1.05}),
    "entmax-head-of-128": AttentionCase("entmax", (1, 1, 21, 128), options={"alpha": 1.3}, score="bilinear"),
}


def attended(case: AttentionCase, dtype: torch.dtype | None = None, device: str = "cpu", compiler: Compiler = as_it_is):
    """What a case attends to, and the gradients in queries, keys, values and parameters, by name."""
    dtype = dtype or case.dtype
    variant = case.variant(torch.promote_types(dtype, torch.float32), device)
    leaves, gradient = case.inputs(dtype, device)
    found = {}
    if case.dropout:
        identity = torch.eye(case.shape[-1], dtype=dtype, device=device).expand_as(leaves[2])
        torch.manual_seed(2)
        found["dropped"] = variant.attend(*leaves[:2], identity, case.mask(device), dropout=case.dropout)[0].detach()
    torch.manual_seed(2)
    attended, _ = compiler(variant.attend)(*leaves, case.mask(device), dropout=case.dropout)
    attended.backward(gradient)
    found |= {name: parameter.grad for name, parameter in variant.named_parameters()}
    found |= {name: leaf.grad for name, leaf in zip(("query", "key", "value"), leaves, strict=True)}
    return found | {"attended": attended.detach()}


COMPILED = (
    *("ct-padded", "ct-layers", "gan-head-of-64-padded", "ot-head-of-32-padded"),
    *("entmax15-head-of-32-padded", "entmax-learned-head-of-48"),
)
WITHOUT_GRADIENT = {"gan-layers": ("discriminate",), "ct-padded": ("transport",)}
"""Cases, and the operators that make a gradient as they go."""


class GradientElements(TorchDispatchMode):
    """Counts the elements of the gradients in features, an operator's results but for its sums."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: list[int] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        """Call, and count."""
        found = function(*args, **(kwargs or {}))
        if function.namespace == "alignattn" and function._opname in GRADIENTS_OF:
            self.counts.append(sum(found[place].numel() for place in GRADIENTS_OF[function._opname]))
        return found


GRADIENTS_OF = {"discriminate": (0,), "transport": (1, 2)}
"""Which of an operator's results are gradients in features."""


def without_gradient(case: Case):
    """The loss of a case of no gradient, and the elements of the gradients that were made all the same."""
    with torch.no_grad(), GradientElements() as made:
        loss = loss_of(case, case.dtype)[0]
    return {"loss": loss, "gradient_elements": torch.tensor(made.counts)}


BY_ADASPLASH = "entmax-several-tiles"
"""It takes masks of padding and causal ones alone, no dropout, no α with a gradient, no keys of other tokens."""


def attended_by_adasplash(case: AttentionCase, device: str = "cpu"):
    """What `attended` gives, by the kernels of Gonçalves et al. 2025 (AdaSplash)."""
    from adasplash import adasplash_no_block_mask

    leaves, gradient = case.inputs(torch.float32, device)
    leaves = [leaf.detach().contiguous().requires_grad_() for leaf in leaves]
    attended = adasplash_no_block_mask(*leaves, alpha=case.options["alpha"])
    attended.backward(gradient)
    found = {name: leaf.grad for name, leaf in zip(("query", "key", "value"), leaves, strict=True)}
    return found | {"attended": attended.detach()}


def main() -> None:
    """Compute all cases."""
    use_kernels("triton")
    # It imports Triton. A program has several tiles, as on a GPU.
    from alignattn.attention.kernels import layers

    layers.PROGRAMS = PROGRAMS
    found = {}
    for name, case in CASES.items():
        found |= {f"{name}/{key}": tensor.contiguous() for key, tensor in results(case).items()}
    for name, attention in ATTENTIONS.items():
        found |= {f"{name}/{key}": tensor.contiguous() for key, tensor in attended(attention).items()}
    for name in COMPILED:
        case, measure = (CASES[name], results) if name in CASES else (ATTENTIONS[name], attended)
        compiled = measure(case, compiler=in_one_graph)
        found |= {f"compiled/{name}/{key}": tensor.contiguous() for key, tensor in compiled.items()}
    for name in WITHOUT_GRADIENT:
        found |= {f"without a gradient/{name}/{key}": tensor for key, tensor in without_gradient(CASES[name]).items()}
    theirs = attended_by_adasplash(ATTENTIONS[BY_ADASPLASH])
    found |= {f"adasplash/{key}": tensor.contiguous() for key, tensor in theirs.items()}
    save_file(found, sys.argv[1])
    print(*(name.rpartition(".")[2] for name in sys.modules if name.startswith(f"{kernels.__name__}.")))


if __name__ == "__main__":
    main()
