"""What the inspection of heads writes: a table for the terminal, one for other programs, and a picture."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from alignattn.commands.inspect.head_study import MEASURES, POOLED_TOKENS, ROLE_FACTOR, HeadStudy, RareTokens
from alignattn.finetuning.function_change import FunctionChange
from alignattn.models.vqa import WORDS, Sides
from alignattn.reports.plots import HeatMapPanel, draw_heat_maps, write_figure
from alignattn.utils.files import write_csv
from alignattn.utils.text_tables import READABLE_WIDTH, folded_tables

HEADS_TABLE = "heads.csv"
HEADS_PICTURE = "heads.png"
FILES = (HEADS_TABLE, HEADS_PICTURE)

LETTERS = ("A", "B")
"""What two models are called where their names are too long."""

COLUMN_NAMES = {
    "sliced_wasserstein": "sliced",
    "energy_distance": "energy",
    "spread_distance": "as is",
    "balanced_distance": "bal.",
    "distance_floor": "floor",
    "c2st_accuracy": "told",
    "balanced_c2st_accuracy": "told b.",
    "sparsity": "zeros",
    "previous": "prev.",
    "separators": "sep.",
}
"""In the table on the terminal; the other measures go by their own names."""

PANEL_TITLES = {
    "sliced_wasserstein": "sliced Wasserstein distance",
    "energy_distance": "energy distance",
    "spread_distance": "distance over spread, as is",
    "balanced_distance": "distance over spread, balanced",
    "distance_floor": "distance over spread, floor",
    "c2st_accuracy": "told apart, as is",
    "balanced_c2st_accuracy": "told apart, balanced",
    "entropy": "entropy (nats)",
    "sparsity": "share of exact zeros",
    "previous": "weight on previous token",
    "next": "weight on next token",
    "separators": "weight on separators",
    "rare": "weight on rare tokens",
}
GUIDED = "guided"
"""What attention is called whose queries and keys are of two modalities, where there is little room."""

NO_PRODUCTS = "scores are no products of plain projections"

MAX_NAME = 70
"""Characters of a model's name that fit above the picture."""


@dataclass(frozen=True)
class StudiedTexts:
    """What holds for a whole inspection.

    Attributes:
        data: name of the file or task.
        texts: that were studied.
        max_length: most tokens of a text.
        seed: that drew the texts.
    """

    data: str
    texts: int
    max_length: int
    seed: int


@dataclass(frozen=True)
class ModelStudy:
    """What was found of one model.

    Attributes:
        name: of its folder, or Hub id.
        layers: the number of each studied layer, from 0, in the order of the measures.
        sides: what attends what in each of them.
        heads: the measures of its heads.
        rare: which of its tokens count as rare.
        order: the place of each studied layer among the attention calls.
        change: how far its function is from that of the model it is compared with; None of that model itself.
    """

    name: str
    layers: Sequence[int]
    sides: Sequence[Sides]
    heads: HeadStudy
    rare: RareTokens
    order: Sequence[int]
    change: FunctionChange | None = None

    @property
    def reads_texts_alone(self) -> bool:
        """Whether words alone attend and are attended."""
        return set(self.sides) == {(WORDS, WORDS)}

    @property
    def layer_names(self) -> list[str]:
        """The layers' numbers, with what attends what where that differs."""
        if self.reads_texts_alone:
            return [str(layer) for layer in self.layers]
        names = [query if query == key else GUIDED for query, key in self.sides]
        return [f"{layer} {name}" for layer, name in zip(self.layers, names, strict=True)]


def render_studies(studies: Sequence[ModelStudy], studied: StudiedTexts) -> str:
    """Return a line a layer and head, then a line a layer, with the values of two models side by side."""
    roles = [study.heads.roles() for study in studies]
    num_heads = len(roles[0][0])
    by_head, by_layer = [], []
    shown, first = shown_measures(studies), studies[0]
    for row, layer in enumerate(first.layer_names):
        by_layer.append([layer, *_cells([_mean_of_layer(study, row) for study in studies], shown)])
        for head in range(num_heads):
            role = _side_by_side([by_model[row][head] for by_model in roles])
            by_head.append([layer, str(head), *_cells([_of_head(study, row, head) for study in studies], shown), role])
        if row + 1 == len(first.sides) or first.sides[row + 1] != first.sides[row]:
            by_head.append(["uniform", "", *_cells([_uniform(study, row) for study in studies], shown), ""])
    measures = [COLUMN_NAMES.get(name, name) for name in shown]
    return "\n".join(
        [
            *folded_tables(["layer", "head", *measures, "role"], by_head, READABLE_WIDTH, keys=2),
            "mean over heads",
            *folded_tables(["layer", *measures], by_layer, READABLE_WIDTH),
            *_change_of_function(studies),
            *_caption(studies, studied),
        ]
    )


def _change_of_function(studies: Sequence[ModelStudy]) -> list[str]:
    """Return a line a layer on how far the second model's function is from the first's, and what that means."""
    if len(studies) == 1:
        return []
    change = studies[1].change
    if change is None:
        return ["the two models tokenize otherwise: how far their functions are apart was not measured."]
    lines = [
        [name, f"{change.attention[place].mean():.3f}", f"{change.products[place].mean():.3f}"]
        for name, place in zip(studies[1].layer_names, studies[1].order, strict=True)
    ]
    lines.append(["all", f"{change.attention.mean():.3f}", f"{change.products.mean():.3f}"])
    predicted = (
        "predictions: no common head that predicts classes."
        if change.predictions is None or change.differing is None
        else f"predictions: {change.predictions:.3f} in total variation, another class for {change.differing:.1%}."
    )
    return [
        "from A to B, mean over heads",
        *folded_tables(["layer", "attention", "W_Q'W_K"], lines, READABLE_WIDTH),
        "attention: total variation of the weights, mean over queries, 0 to 1. W_Q'W_K: relative change of the product",
        f"that scores are of, whatever the basis; nan: {NO_PRODUCTS}.",
        predicted,
    ]


def shown_measures(studies: Sequence[ModelStudy]) -> list[str]:
    """Return the measures that are not 0 for every head that has them, as the zeros of a softmax are."""
    return [name for name in MEASURES if any(_tells(study.heads.measures[name]) for study in studies)]


def _tells(values: Tensor) -> bool:
    known = values[values.isfinite()]
    return not len(known) or bool((known != 0).any())


def _is_drawn(studies: Sequence[ModelStudy], name: str) -> bool:
    return any(study.heads.measures[name].isfinite().any() for study in studies)


def write_studies(path: Path, studies: Sequence[ModelStudy], studied: StudiedTexts) -> None:
    """Write `heads.csv`: a line a model, layer and head."""
    is_compared = studies[-1].change is not None
    write_csv(path, (line for study in studies for line in _lines(study, studied, is_compared=is_compared)))


def draw_studies(path: Path, studies: Sequence[ModelStudy], studied: StudiedTexts) -> None:
    """Draw each measure as a heat map of layers and heads, one a model, of two also what changed."""
    panels, title = heat_map_panels(studies), _title(studies, studied)
    write_figure(draw_heat_maps(panels, x_label="head", y_label="layer", title=title), path)


def heat_map_panels(studies: Sequence[ModelStudy]) -> list[HeatMapPanel]:
    """Return a panel a measure that says anything, of two models with a map of the differences."""
    letters = LETTERS[: len(studies)]
    return [
        HeatMapPanel(
            title=PANEL_TITLES[name],
            row_names=studies[0].layer_names,
            series={
                letter: study.heads.measures[name].tolist() for letter, study in zip(letters, studies, strict=True)
            },
            marked={letter: _cells_of_role(study.heads, name) for letter, study in zip(letters, studies, strict=True)},
            differences={} if len(studies) == 1 else {" - ".join(letters[::-1]): _difference(studies, name)},
        )
        for name in shown_measures(studies)
        if _is_drawn(studies, name)
    ]


def _difference(studies: Sequence[ModelStudy], name: str) -> list[list[float]]:
    first, second = (study.heads.measures[name] for study in studies)
    difference: list[list[float]] = (second - first).tolist()
    return difference


def _cells_of_role(heads: HeadStudy, name: str) -> list[tuple[int, int]]:
    return [
        (row, column) for row, layer in enumerate(heads.roles()) for column, role in enumerate(layer) if role == name
    ]


def _of_head(study: ModelStudy, row: int, head: int) -> dict[str, float]:
    return {name: float(study.heads.measures[name][row, head]) for name in MEASURES}


def _uniform(study: ModelStudy, row: int) -> dict[str, float]:
    return {name: float(shares[row]) for name, shares in study.heads.uniform.items()}


def _attends(sides: Sides) -> str:
    query, key = sides
    return query if query == key else f"{query} to {key}"


def _mean_of_layer(study: ModelStudy, row: int) -> dict[str, float]:
    return {name: float(study.heads.measures[name][row].mean()) for name in MEASURES}


def _cells(by_model: Sequence[Mapping[str, float]], shown: Sequence[str]) -> list[str]:
    """A cell a shown measure; empty where it does not apply."""
    return [
        _side_by_side([f"{values[name]:.3f}" for values in by_model]) if name in by_model[0] else "" for name in shown
    ]


def _side_by_side(values: Sequence[str]) -> str:
    return "/".join(values)


def _caption(studies: Sequence[ModelStudy], studied: StudiedTexts) -> list[str]:
    models = [
        f"{name}: {study.heads.num_texts} texts of {studied.data}, {study.heads.num_tokens} tokens; rare tokens: "
        f"{len(study.rare.ids)} that occur at most {study.rare.most_occurrences} time(s), {study.rare.share:.0%} of "
        "the tokens that are not special"
        for name, study in zip(_names(studies), studies, strict=True)
    ]
    return [
        *models,
        *_caption_of_layers(studies),
        "sliced, energy: sliced Wasserstein and energy distance of queries and keys in units of their size.",
        f"as is, bal., floor: the sliced distance over the spread, of the first {POOLED_TOKENS:,} tokens of all texts",
        "as one cloud; bal.: balanced, in a basis that attention does not see, from the moments of one half of",
        "them, on the other; floor: between two halves of the queries, and of the keys. told, told b.: the share of",
        "queries and keys that a discriminator tells apart, on the half that it has not learned from, as is and",
        f"balanced; 0.5 is chance. nan: {_why_missing(studies)}.",
        "entropy: of the weights, in nats. zeros: share of weights that are exactly 0.",
        "prev., next, sep., rare: weight on the token before, the token after, special tokens, rare tokens.",
        "uniform: what attention that is equal everywhere would give. A measure that is 0 for all heads is left out.",
        f"role: the largest multiple of the uniform share, if it is {ROLE_FACTOR:g} or more.",
    ]


def _caption_of_layers(studies: Sequence[ModelStudy]) -> list[str]:
    across = [sides for sides in dict.fromkeys(studies[0].sides) if len(set(sides)) > 1]
    return [f"{GUIDED}: attention from {query} to {key}; layers are attention calls." for query, key in across]


def _why_missing(studies: Sequence[ModelStudy]) -> str:
    if studies[0].reads_texts_alone:
        return "the attention of the model fixes the basis"
    return "regions have no order, and are no words; or the attention of the model fixes the basis"


def _names(studies: Sequence[ModelStudy]) -> list[str]:
    if len(studies) == 1:
        return [studies[0].name]
    return [f"{letter} = {study.name}" for letter, study in zip(LETTERS, studies, strict=True)]


def _title(studies: Sequence[ModelStudy], studied: StudiedTexts) -> str:
    names = [name if len(name) <= MAX_NAME else f"…{name[-MAX_NAME:]}" for name in _names(studies)]
    what = f"{studied.texts} texts of {Path(studied.data).name}; a dot marks the head's role"
    return "\n".join([*names, what])


def _lines(study: ModelStudy, studied: StudiedTexts, *, is_compared: bool) -> Iterator[dict[str, Any]]:
    roles = study.heads.roles()
    for row, layer in enumerate(study.layers):
        uniform = {f"{name}_uniform": share for name, share in _uniform(study, row).items()}
        for head, role in enumerate(roles[row]):
            yield {
                "model": study.name,
                "layer": layer,
                "attends": _attends(study.sides[row]),
                "head": head,
                **_of_head(study, row, head),
                "role": role,
                **uniform,
                **(_changes_of_head(study.change, study.order[row], head) if is_compared else {}),
                **asdict(studied),
            }


def _changes_of_head(change: FunctionChange | None, place: int, head: int) -> dict[str, float | None]:
    """Return how far a head is from that of the model it is compared with; of that model itself 0."""
    if change is None:
        return dict.fromkeys(("attention_change", "product_change", "prediction_change", "differing_predictions"), 0.0)
    return {
        "attention_change": float(change.attention[place, head]),
        "product_change": float(change.products[place, head]),
        "prediction_change": change.predictions,
        "differing_predictions": change.differing,
    }
