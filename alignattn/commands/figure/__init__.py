"""`alignattn figure`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from alignattn.finetuning.run_folder import run_folder
from alignattn.tasks.task import MAX_TEXTS
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, Count, InputDir, OutputFile, Seed, option
from alignattn.utils.options import Options

ENDINGS = (".png", ".svg", ".pdf")
MIN_TOKENS = 2
"""Minimum number of points for t-SNE."""

PICTURES: Mapping[str, str] = {
    "tsne": "t-SNE of the queries and keys of a head",
    "nodes": "t-SNE of a layer's outputs for the nodes of a graph, by class",
    "attention": "attention weights of a head on one sentence",
    "hops": "attention of a memory network to the sentences of a story",
    "question": "attention from a question to a picture and to its own words",
    "written": "attention from generated words to source words",
    "reliability": "reliability diagrams",
    "distance": "query-key distance over training, for runs with --log_query_key_distance",
    "curves": "losses, diagnostics and scores over training",
}
"""What each kind of picture shows."""

KINDS_HELP = "; ".join(f"{name}: {shows}" for name, shows in PICTURES.items()) + "."


def _for(*kinds: str) -> Sequence[str]:
    return [f"kind={kind}" for kind in kinds]


@dataclass(frozen=True, kw_only=True)
class FigureOptions(Options):
    """The options of `alignattn figure`."""

    kind: str = option(REQUIRED, KINDS_HELP, choices=tuple(PICTURES), positional=True, metavar="KIND")
    run: tuple[str, ...] = option(
        REQUIRED, "Run folders; each adds a panel or a line.", metavar="DIR", place=run_folder
    )
    output_file: OutputFile = option(
        REQUIRED, f"File of the picture, with the ending {', '.join(ENDINGS)}.", endings=ENDINGS
    )
    names: tuple[str, ...] | None = option(None, "Names of the runs (default: last parts of their paths).")
    layer: int | None = option(
        None,
        "Layer, from 0; for mcan, attention call (default: the last; for nodes, the last but one).",
        low=0,
        requires=_for("tsne", "nodes", "attention"),
    )
    head: int = option(0, "Head, from 0.", low=0, requires=_for("tsne", "attention"))
    text: tuple[str, ...] | None = option(
        None,
        "A text or a pair (default: first rows); for question, PICTURE QUESTION.",
        metavar="TEXT",
        requires=_for("tsne", "attention", "hops", "question", "written"),
        excludes=dict.fromkeys(("data_dir", "max_eval_samples"), "the text replaces evaluation rows"),
    )
    max_eval_samples: Count = option(32, "Number of evaluation rows to show.", requires=_for("tsne"))
    max_tokens: int = option(
        500, "Maximum tokens or nodes; more are sampled.", low=MIN_TOKENS, requires=_for("tsne", "nodes")
    )
    seed: Seed = option(42, "Seed of the sample and of t-SNE.", requires=_for("tsne", "nodes"))
    balanced: bool = option(False, "Use the basis in which queries and keys have equal moments.", requires=_for("tsne"))
    data_dir: InputDir | None = option(
        None,
        "Folder with Parquet files of the rows (default: the runs').",
        requires=_for("tsne", "nodes", "attention", "hops"),
    )
    split: str | None = option(
        None, "Split of the predictions (default: the first of each run).", requires=_for("reliability")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None and not (1 <= len(self.text) <= MAX_TEXTS and all(map(str.strip, self.text))):
            raise AlignAttnError("--text needs one or two texts that are not empty")


COMMAND = Command(
    "figure",
    "draw pictures of runs: queries and keys, attention, nodes, calibration, training curves",
    FigureOptions,
    run="alignattn.commands.figure.command:make_figure",
    draws=True,
    examples=(
        "alignattn figure tsne --run runs/mrpc/seed-1 runs/mrpc/seed-2 --output_file tsne.png",
        'alignattn figure attention --run runs/mrpc/seed-1 --layer 2 --text "He said ." --output_file attention.svg',
    ),
)
