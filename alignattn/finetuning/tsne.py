"""Queries and keys of a head in the plane, by t-SNE."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from alignattn.attention.basis import Moments, balancing_basis
from alignattn.attention.distance import as_many, measure_distances, sliced_wasserstein
from alignattn.finetuning.heads import HeadView
from alignattn.models.vqa import REGIONS
from alignattn.reports.plots import PointPanel

PERPLEXITY = 30.0
"""Of t-SNE, as van der Maaten and Hinton (2008) have it: 5 to 50; less where there are few points."""
POINTS_A_NEIGHBOUR = 3
"""t-SNE looks for three times as many neighbours as the perplexity says."""


def in_plane(points: NDArray[Any], seed: int) -> list[tuple[float, float]]:
    """Return points `[N, d]` placed in the plane by t-SNE (van der Maaten & Hinton 2008), x and y each."""
    from sklearn.manifold import TSNE

    perplexity = min(PERPLEXITY, (len(points) - 1) / POINTS_A_NEIGHBOUR)
    placed = TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(points)
    return [(float(x), float(y)) for x, y in placed]


def tsne_panel(view: HeadView, *, max_tokens: int, seed: int, balanced: bool = False) -> PointPanel:
    """Return one run's queries and keys in the plane; the title has their distances, which no projection distorts.

    Args:
        view: what a head made of texts.
        max_tokens: that are shown.
        seed: of the draw of more, and of t-SNE.
        balanced: show them in the basis in which their moments agree, which attention does not see.
    """
    query, key = (torch.cat([getattr(text, role) for text in view.texts]) for role in ("query", "key"))
    spread = measure_distances(*as_many(query[None], key[None]))
    over_spread = {"as is": spread.as_is, "balanced": spread.balanced, "floor": spread.floor}
    if view.obstacle is not None:
        del over_spread["balanced"]
    if balanced:
        basis = balancing_basis(Moments.of(query[None]), Moments.of(key[None]))
        query, key = basis.of_queries(query[None])[0].float(), basis.of_keys(key[None])[0].float()
    distance = float(sliced_wasserstein(*(points[None] for points in as_many(query[None], key[None]))))
    # Of a text each token is both: those that are drawn are the same.
    shown = [points[_drawn(len(points), max_tokens, seed)] for points in (query, key)]
    placed = in_plane(torch.cat(shown).numpy(), seed)
    count = len(shown[0])
    names = view.sides if REGIONS in view.sides else ("tokens", "tokens")
    told = [_told(len(some), len(points), name) for some, points, name in zip(shown, (query, key), names, strict=True)]
    # Of two kinds of tokens there are more words than one line holds.
    separator = "\n" if REGIONS in view.sides else ", "
    title = f"{view.title}{separator}{', '.join(dict.fromkeys(told))}\nquery-key distance {distance:.3f}\nover spread: "
    title += ", ".join(f"{name} {float(value):.3f}" for name, value in over_spread.items())
    return PointPanel(title, {"queries": placed[:count], "keys": placed[count:]})


def _drawn(count: int, most: int, seed: int) -> NDArray[np.int64]:
    return np.sort(np.random.default_rng(seed).choice(count, min(count, most), replace=False))


def _told(shown: int, count: int, name: str) -> str:
    return f"{count} {name}" if shown == count else f"{shown} of {count} {name}"
