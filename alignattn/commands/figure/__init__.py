"""`alignattn figure`."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from alignattn.finetuning.run_folder import run_folder
from alignattn.tasks.task import MAX_TEXTS
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError, listing
from alignattn.utils.option import REQUIRED, Count, InputDir, OutputFile, Seed, option
from alignattn.utils.options import Options, options_of

ENDINGS = (".png", ".svg", ".pdf")
MIN_TOKENS = 2
"""Minimum points of t-SNE."""

HEAD_OPTIONS = frozenset({"layer", "head", "text", "data_dir"})
TSNE_OPTIONS = frozenset({"balanced", "max_eval_samples", "max_tokens", "seed"})
NODE_OPTIONS = frozenset({"layer", "data_dir", "max_tokens", "seed"})
COMMON_OPTIONS = frozenset({"kind", "run", "output_file", "names"})

PICTURES: Mapping[str, tuple[str, frozenset[str]]] = {
    "tsne": ("t-SNE of the queries and keys of a head", HEAD_OPTIONS | TSNE_OPTIONS),
    "nodes": ("t-SNE of a layer's outputs for the nodes of a graph, by class", NODE_OPTIONS),
    "attention": ("attention weights of a head on one sentence", HEAD_OPTIONS),
    "hops": ("attention of a memory network to the sentences of a story", frozenset({"text", "data_dir"})),
    "question": ("attention from a question to a picture and to its own words", frozenset({"text"})),
    "written": ("attention from generated words to source words", frozenset({"text"})),
    "reliability": ("reliability diagrams", frozenset({"split"})),
    "distance": ("query-key distance over training, for runs with --log_query_key_distance", frozenset()),
    "curves": ("losses, diagnostics and scores over training", frozenset()),
}
"""Each kind of picture: what it shows, and the options that it reads besides the common ones."""

KINDS_HELP = "; ".join(f"{name}: {shows}" for name, (shows, _) in PICTURES.items()) + "."


@dataclass(frozen=True, kw_only=True)
class FigureOptions(Options):
    """The options of `alignattn figure`."""

    kind: str = option(REQUIRED, KINDS_HELP, choices=tuple(PICTURES), positional=True, metavar="KIND")
    run: tuple[str, ...] = option(
        REQUIRED, "Run folders; each gives a panel or a line.", metavar="DIR", place=run_folder
    )
    output_file: OutputFile = option(REQUIRED, f"File of the picture, with the ending {', '.join(ENDINGS)}.")
    names: tuple[str, ...] | None = option(None, "Names of the runs (default: last parts of their paths).")
    layer: int | None = option(
        None, "Layer, from 0; of mcan attention call (default: the last; of nodes the last but one).", low=0
    )
    head: int = option(0, "Head, from 0.", low=0)
    text: tuple[str, ...] | None = option(
        None, "A text or a pair (default: first rows); PICTURE QUESTION.", metavar="TEXT"
    )
    max_eval_samples: Count = option(32, "Number of evaluation rows to show.")
    max_tokens: int = option(500, "Maximum tokens or nodes; more are sampled.", low=MIN_TOKENS)
    seed: Seed = option(42, "Seed of the sample and of t-SNE.")
    balanced: bool = option(False, "Use the basis in which queries and keys have equal moments.")
    data_dir: InputDir | None = option(None, "Folder of Parquet files of rows (default: the runs').")
    split: str | None = option(None, "Split of the predictions (default: the first of each run).")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.text is not None and not (1 <= len(self.text) <= MAX_TEXTS and all(map(str.strip, self.text))):
            raise AlignAttnError("--text needs one or two texts that are not empty")
        if Path(self.output_file).suffix.lower() not in ENDINGS:
            raise AlignAttnError(f"--output_file {self.output_file}: its name must end in {', '.join(ENDINGS)}")
        if Path(self.output_file).exists():
            raise AlignAttnError(f"{self.output_file} already exists: give another --output_file")
        self._refuse_unread()

    def _refuse_unread(self) -> None:
        """Refuse options that would be passed over."""
        known = options_of(type(self))
        for name in known:
            is_read = name in COMMON_OPTIONS or name in PICTURES[self.kind][1]
            if not is_read and getattr(self, name) != known[name].default:
                others = listing([other for other, (_, read) in PICTURES.items() if name in read])
                raise AlignAttnError(f"--{name} is for {others}, not for {self.kind}: leave it out")
        if self.text is not None and (
            self.data_dir is not None or self.max_eval_samples != known["max_eval_samples"].default
        ):
            raise AlignAttnError("--text replaces evaluation rows: leave --data_dir and --max_eval_samples out")


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
