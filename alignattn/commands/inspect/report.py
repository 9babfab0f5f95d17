"""Output of the inspection of heads: a table for the terminal, a CSV file and a picture."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from alignattn.commands.inspect.head_study import MEASURES, POOLED_TOKENS, ROLE_FACTOR, HeadStudy, RareTokens
from alignattn.finetuning.function_change import FunctionChange
from alignattn.models.vqa import WORDS, Sides
from alignattn.reports.plots.drawing import write_figure
from alignattn.reports.plots.maps import HeatMapPanel, draw_heat_maps
from alignattn.utils.files import write_text
from alignattn.utils.text_tables import READABLE_WIDTH, split_tables

HEADS_TABLE = "heads.csv"
HEADS_PICTURE = "heads.png"
FILES = (HEADS_TABLE, HEADS_PICTURE)

LETTERS = ("A", "B")
"""Short names of two models."""

COLUMN_NAMES = {
    "sliced_wasserstein": "sliced",
    "energy_distance": "energy",
    "spread_distance": "as is",
    "balanced_distance": "bal.",
    "distance_floor": "floor",
    "c2st_accuracy": "c2st",
    "balanced_c2st_accuracy": "c2st b.",
    "sparsity": "zeros",
    "previous": "prev.",
    "separators": "sep.",
}
"""Column headings in the terminal, where they differ from the measure's name."""

PANEL_TITLES = {
    "sliced_wasserstein": "sliced Wasserstein distance",
    "energy_distance": "energy distance",
    "spread_distance": "distance over spread, as is",
    "balanced_distance": "distance over spread, balanced",
    "distance_floor": "distance over spread, floor",
    "c2st_accuracy": "two-sample accuracy, as is",
    "balanced_c2st_accuracy": "two-sample accuracy, balanced",
    "entropy": "entropy (nats)",
    "sparsity": "share of exact zeros",
    "previous": "weight on previous token",
    "next": "weight on next token",
    "separators": "weight on separators",
    "rare": "weight on rare tokens",
}
GUIDED = "guided"
"""Short name of attention between two modalities."""

MAX_NAME = 70
"""Characters of a model's name that fit above the picture."""

NO_PRODUCTS = "scores are not products of plain projections"

LAYER_NAME = "layer_name"
"""Column of layer names, which `heads.csv` does not contain."""
CHANGES = ("attention_change", "product_change", "prediction_change", "differing_predictions")


@dataclass(frozen=True)
class StudiedTexts:
    """The settings of a whole inspection.

    Attributes:
        data: name of the file or task.
        texts: the number of studied texts.
        max_length: the maximum number of tokens per text.
        seed: the seed of the sample of texts.
    """

    data: str
    texts: int
    max_length: int
    seed: int


@dataclass(frozen=True)
class ModelStudy:
    """The measures of one model.

    Attributes:
        name: the name of its folder, or its Hub id.
        layers: the number of each studied layer, from 0, in the order of the measures.
        sides: the modalities of queries and keys of each layer.
        heads: the measures of its heads.
        rare: its rare tokens.
        order: the index of each studied layer among the attention calls.
        change: how far its function is from that of the reference model; None for the reference model, and if the
            two tokenize differently.
    """

    name: str
    layers: Sequence[int]
    sides: Sequence[Sides]
    heads: HeadStudy
    rare: RareTokens
    order: Sequence[int]
    change: FunctionChange | None = None

    @property
    def layer_names(self) -> list[str]:
        """The layers' numbers, with the modalities of queries and keys where they differ."""
        if set(self.sides) == {(WORDS, WORDS)}:
            return [str(layer) for layer in self.layers]
        names = [query if query == key else GUIDED for query, key in self.sides]
        return [f"{layer} {name}" for layer, name in zip(self.layers, names, strict=True)]

    def frame(self) -> pd.DataFrame:
        """Return a line per layer and head: its measures, its role, and the measures of uniform attention."""
        lines = [
            {
                "model": self.name,
                LAYER_NAME: self.layer_names[row],
                "layer": layer,
                "attends": " to ".join(dict.fromkeys(self.sides[row])),
                "head": head,
                **{name: float(self.heads.measures[name][row, head]) for name in MEASURES},
                "role": role,
                **{f"{name}_uniform": float(shares[row]) for name, shares in self.heads.uniform.items()},
            }
            for row, layer in enumerate(self.layers)
            for head, role in enumerate(self.heads.roles()[row])
        ]
        return pd.DataFrame(lines)


def write_heads(folder: Path, frames: Sequence[pd.DataFrame], title: str) -> None:
    """Write `heads.csv`, a line per model, layer and head, and a heat map of each measure of layers and heads."""
    table = pd.concat(frames).drop(columns=LAYER_NAME)
    write_text(folder / HEADS_TABLE, table.to_csv(index=False, lineterminator="\n"))
    figure = draw_heat_maps(heat_map_panels(frames), x_label="head", y_label="layer", title=title)
    write_figure(figure, folder / HEADS_PICTURE)


def write_studies(folder: Path, studies: Sequence[ModelStudy], studied: StudiedTexts) -> None:
    """Write the table and the picture of models studied on texts."""
    is_compared = studies[-1].change is not None
    frames = [study.frame().assign(**(_changes(study) if is_compared else {}), **asdict(studied)) for study in studies]
    names = [name if len(name) <= MAX_NAME else f"…{name[-MAX_NAME:]}" for name in display_names(studies)]
    what = f"{studied.texts} texts of {Path(studied.data).name}; a dot marks the head's role"
    write_heads(folder, frames, "\n".join([*names, what]))


def render_studies(studies: Sequence[ModelStudy], studied: StudiedTexts) -> str:
    """Return a line per layer and head, then a line per layer, with the values of two models side by side."""
    frames = [study.frame() for study in studies]
    return "\n".join([*head_tables(frames), *_change_of_function(studies), *_caption(studies, studied)])


def head_tables(frames: Sequence[pd.DataFrame]) -> list[str]:
    """Return a line per layer and head, with uniform attention after each kind of layer, and means over heads."""
    first, shown = frames[0], shown_measures(frames)
    has_roles = "role" in first
    by_head = []
    for place in range(len(first)):
        lines = [frame.iloc[place] for frame in frames]
        role = ["/".join(line["role"] for line in lines)] if has_roles else []
        by_head.append([lines[0][LAYER_NAME], str(lines[0]["head"]), *_cells(lines, shown), *role])
        ends = place + 1 == len(first) or first["attends"].iloc[place + 1] != lines[0]["attends"]
        if ends:
            uniform = [f"{name}_uniform" for name in shown]
            by_head.append(["uniform", "", *_cells(lines, uniform), *([""] if has_roles else [])])
    means = [frame.groupby(LAYER_NAME, sort=False)[shown].mean() for frame in frames]
    by_layer = [[name, *_cells([mean.loc[name] for mean in means], shown)] for name in means[0].index]
    measures = [COLUMN_NAMES.get(name, name) for name in shown]
    header = ["layer", "head", *measures, *(["role"] if has_roles else [])]
    return [
        *split_tables(header, by_head, READABLE_WIDTH, keys=2),
        "mean over heads",
        *split_tables(["layer", *measures], by_layer, READABLE_WIDTH),
    ]


def shown_measures(frames: Sequence[pd.DataFrame]) -> list[str]:
    """Return the measures to show: not those that are 0 for every head, such as the zeros of a softmax."""

    def is_informative(values: pd.Series) -> bool:
        return bool(values.isna().all() or (values.dropna() != 0).any())

    return [name for name in MEASURES if name in frames[0] and any(is_informative(frame[name]) for frame in frames)]


def heat_map_panels(frames: Sequence[pd.DataFrame]) -> list[HeatMapPanel]:
    """Return a panel per measure, and a map of the differences for two models."""
    letters = LETTERS[: len(frames)]
    panels = []
    for name in shown_measures(frames):
        grids = [frame.pivot_table(name, LAYER_NAME, "head", sort=False, dropna=False) for frame in frames]
        if all(frame[name].isna().all() for frame in frames):
            continue
        differences = {" - ".join(letters[::-1]): (grids[1] - grids[0]).to_numpy().tolist()} if len(grids) > 1 else {}
        panels.append(
            HeatMapPanel(
                title=PANEL_TITLES[name],
                row_names=list(grids[0].index),
                series={letter: grid.to_numpy().tolist() for letter, grid in zip(letters, grids, strict=True)},
                marked={letter: _cells_of_role(frame, name) for letter, frame in zip(letters, frames, strict=True)},
                differences=differences,
            )
        )
    return panels


def display_names(studies: Sequence[Any]) -> list[str]:
    """Return the names of models; for two, with their letters in the picture."""
    if len(studies) == 1:
        return [studies[0].name]
    return [f"{letter} = {study.name}" for letter, study in zip(LETTERS, studies, strict=True)]


def _cells_of_role(frame: pd.DataFrame, name: str) -> list[tuple[int, int]]:
    if "role" not in frame:
        return []
    rows = list(dict.fromkeys(frame[LAYER_NAME]))
    own = frame[frame["role"] == name]
    return [(rows.index(layer), int(head)) for layer, head in zip(own[LAYER_NAME], own["head"], strict=True)]


def _cells(lines: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    """Return a cell per measure, the models' values side by side; empty if the measure does not apply."""
    return ["/".join(f"{line[name]:.3f}" for line in lines) if name in lines[0] else "" for name in names]


def _changes(study: ModelStudy) -> dict[str, Any]:
    """Return the change of each head from the reference model; 0 for the reference model itself."""
    change = study.change
    if change is None:
        return dict.fromkeys(CHANGES, 0.0)
    order = list(study.order)
    by_head = (change.attention[order].flatten().tolist(), change.products[order].flatten().tolist())
    return dict(zip(CHANGES, (*by_head, change.predictions, change.differing), strict=True))


def _change_of_function(studies: Sequence[ModelStudy]) -> list[str]:
    """Return lines on the change of the function from the first model to the second, per layer, with an explanation."""
    if len(studies) == 1:
        return []
    change = studies[1].change
    if change is None:
        return ["the two models tokenize differently, so the change of the function was not measured."]
    lines = [
        [name, f"{change.attention[place].mean():.3f}", f"{change.products[place].mean():.3f}"]
        for name, place in zip(studies[1].layer_names, studies[1].order, strict=True)
    ]
    lines.append(["all", f"{change.attention.mean():.3f}", f"{change.products.mean():.3f}"])
    predicted = (
        "predictions: the models have no classification head in common."
        if change.predictions is None or change.differing is None
        else f"predictions: {change.predictions:.3f} in total variation, a different class for {change.differing:.1%}."
    )
    return [
        "from A to B, mean over heads",
        *split_tables(["layer", "attention", "W_Q'W_K"], lines, READABLE_WIDTH),
        "attention: total variation of the weights, mean over queries, 0 to 1. W_Q'W_K: relative change of the product",
        f"behind the scores, which is the same in every basis; nan: {NO_PRODUCTS}.",
        predicted,
    ]


def _caption(studies: Sequence[ModelStudy], studied: StudiedTexts) -> list[str]:
    models = [
        f"{name}: {study.heads.num_texts} texts of {studied.data}, {study.heads.num_tokens} tokens; rare tokens: "
        f"{len(study.rare.ids)} that occur at most {study.rare.most_occurrences} time(s), {study.rare.share:.0%} of "
        "the non-special tokens"
        for name, study in zip(display_names(studies), studies, strict=True)
    ]
    across = [sides for sides in dict.fromkeys(studies[0].sides) if len(set(sides)) > 1]
    why_missing = "the attention of the model fixes the basis"
    if set(studies[0].sides) != {(WORDS, WORDS)}:
        why_missing = f"regions have no order and are not words; or {why_missing}"
    return [
        *models,
        *(f"{GUIDED}: attention from {query} to {key}; layers are attention calls." for query, key in across),
        "sliced, energy: sliced Wasserstein and energy distance of queries and keys in units of their size.",
        f"as is, bal., floor: the sliced distance over the spread, on the first {POOLED_TOKENS:,} tokens of all texts",
        "together. bal.: in the balanced basis, which leaves attention unchanged; it is estimated on one half of the",
        "tokens, the distance on the other. floor: between two halves of the queries, and of the keys. c2st, c2st b.:",
        "held-out accuracy of a classifier that separates queries from keys, as is and balanced; 0.5 is chance.",
        f"nan: {why_missing}.",
        "entropy: entropy of the weights in nats. zeros: share of weights that are exactly 0.",
        "prev., next, sep., rare: weight on the token before, the token after, special tokens, rare tokens.",
        "uniform: the measures of equal attention weights. A measure that is 0 for all heads is omitted.",
        f"role: the largest multiple of the uniform weight, if it is {ROLE_FACTOR:g} or more.",
    ]
