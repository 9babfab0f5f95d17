"""`alignattn figure`: one picture of runs side by side, as PNG, SVG or PDF."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from alignattn.commands.figure.heads import PROG, choose_examples
from alignattn.commands.figure.pictures import (
    Runs,
    draw_attention,
    draw_distance,
    draw_run_reliability,
    draw_training,
    draw_tsne,
)
from alignattn.plots import write_figure
from alignattn.runs.folders import check_run_folder, short_names
from alignattn.support.errors import AlignAttnError
from alignattn.support.parser import OneLineErrorParser, check_range, did_you_mean
from alignattn.tasks.task import MOST_TEXTS

ENDINGS = (".png", ".svg", ".pdf")
FEWEST_TOKENS = 2
"""t-SNE places no fewer."""


@dataclass
class FigureOptions:
    """The options of `alignattn figure` that are given by name and value."""

    runs: list[str] = field(metadata={"help": "Run folders of alignattn finetune, one panel or line each."})
    output: str = field(metadata={"help": f"The picture, a file whose name ends in {', '.join(ENDINGS)}."})
    names: list[str] | None = field(
        default=None, metadata={"help": "Names of the runs in the picture (default: ends of their folders' paths)."}
    )
    layer: int | None = field(default=None, metadata={"help": "Layer of the head, from 0 (default: the last)."})
    head: int = field(default=0, metadata={"help": "The head, from 0."})
    text: list[str] | None = field(
        default=None, metadata={"help": "A text or a pair to show (default: the first evaluation rows)."}
    )
    num_rows: int = field(default=32, metadata={"help": "Evaluation rows whose tokens are shown."})
    max_tokens: int = field(default=500, metadata={"help": "Most tokens; of more, this many are drawn."})
    seed: int = field(default=42, metadata={"help": "Seed of that draw and of t-SNE."})
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of Parquet files to read rows from (default: the runs')."}
    )
    split: str | None = field(
        default=None, metadata={"help": "Split of the predictions (default: the first of each run)."}
    )

    def __post_init__(self) -> None:
        for name, least in (("num_rows", 1), ("max_tokens", FEWEST_TOKENS), ("seed", 0)):
            check_range(self, name, least)
        if self.text is not None and not (1 <= len(self.text) <= MOST_TEXTS and all(map(str.strip, self.text))):
            raise AlignAttnError("--text takes one text or two, none of them empty")
        if Path(self.output).suffix.lower() not in ENDINGS:
            raise AlignAttnError(f"--output {self.output}: its name must end in {', '.join(ENDINGS)}")
        if Path(self.output).exists():
            raise AlignAttnError(f"{self.output} is there already: give another name to --output")

    def named_runs(self) -> Runs:
        """Return the folders by the names that they have in the picture.

        Raises:
            AlignAttnError: if one is no run folder or is there twice, or the names do not fit.
        """
        folders = [Path(run) for run in self.runs]
        for folder in folders:
            check_run_folder(folder, "--runs")
        short = short_names(folders, "--runs")
        names = self.names or [short[folder] for folder in folders]
        if len(names) != len(folders) or len(set(names)) < len(names):
            raise AlignAttnError(f"--names {' '.join(names)}: give {len(folders)} different names, one for each run")
        return dict(zip(names, folders, strict=True))


@dataclass(frozen=True)
class Kind:
    """A kind of picture.

    Attributes:
        draw: makes the `matplotlib` figure of runs.
        options: those that it reads, beside the ones that all kinds do.
        describe: what it shows, for the help.
    """

    draw: Callable[[Runs, FigureOptions], Any]
    options: frozenset[str]
    describe: str


def _tsne(runs: Runs, options: FigureOptions) -> Any:
    examples = choose_examples(
        list(runs.values()), text=options.text, num_rows=options.num_rows, data_dir=options.data_dir
    )
    return draw_tsne(
        runs, examples, layer=options.layer, head=options.head, max_tokens=options.max_tokens, seed=options.seed
    )


def _attention(runs: Runs, options: FigureOptions) -> Any:
    examples = choose_examples(list(runs.values()), text=options.text, num_rows=1, data_dir=options.data_dir)
    return draw_attention(runs, examples, layer=options.layer, head=options.head)


HEAD_OPTIONS = frozenset({"layer", "head", "text", "data_dir"})
COMMON_OPTIONS = frozenset({"runs", "output", "names"})

KINDS: Mapping[str, Kind] = {
    "tsne": Kind(_tsne, HEAD_OPTIONS | {"num_rows", "max_tokens", "seed"}, "queries and keys of a head in the plane"),
    "attention": Kind(_attention, HEAD_OPTIONS, "attention of a head in one sentence"),
    "reliability": Kind(
        lambda runs, options: draw_run_reliability(runs, options.split), frozenset({"split"}), "reliability diagrams"
    ),
    "distance": Kind(
        lambda runs, _: draw_distance(runs),
        frozenset(),
        "query-key distance over training, of runs made with --log_query_key_distance",
    ),
    "curves": Kind(lambda runs, _: draw_training(runs), frozenset(), "losses, diagnostics and scores over training"),
}


def main(argv: Sequence[str]) -> None:
    """Run `alignattn figure`.

    Args:
        argv: the words after the command's name.

    Raises:
        AlignAttnError: for every mistake a user can mend; nothing is written then.
    """
    parser = OneLineErrorParser([FigureOptions], prog=PROG)
    kinds = "; ".join(f"{name}: {kind.describe}" for name, kind in KINDS.items())
    parser.add_argument("kind", metavar="KIND", help=kinds)
    given = vars(parser.parse_args(list(argv)))
    kind = given.pop("kind")
    make_figure(kind, FigureOptions(**given))


def make_figure(kind: str, options: FigureOptions) -> Any:
    """Draw one picture of runs, write it, and return the `matplotlib` figure.

    Args:
        kind: one of `KINDS`.
        options: of the command.

    Raises:
        AlignAttnError: if there is no such kind, an option is not for it, or a run does not have what it shows.
    """
    if kind not in KINDS:
        raise AlignAttnError(f"unknown figure {kind!r}: choose one of {', '.join(KINDS)}{did_you_mean(kind, KINDS)}")
    _check_options(kind, options)
    figure = KINDS[kind].draw(options.named_runs(), options)
    write_figure(figure, Path(options.output))
    print(f"written to {options.output}")
    return figure


def _check_options(kind: str, options: FigureOptions) -> None:
    """Refuse options that would be passed over."""
    for option in dataclasses.fields(FigureOptions):
        is_read = option.name in COMMON_OPTIONS | KINDS[kind].options
        if not is_read and getattr(options, option.name) != option.default:
            others = [name for name, other in KINDS.items() if option.name in other.options]
            raise AlignAttnError(f"--{option.name} is for {' and '.join(others)}, not for {kind}: leave it out")
    if options.text is not None and (options.data_dir is not None or options.num_rows != _default("num_rows")):
        raise AlignAttnError("--text takes the place of evaluation rows: leave --data_dir and --num_rows out")


def _default(name: str) -> Any:
    return next(option.default for option in dataclasses.fields(FigureOptions) if option.name == name)
