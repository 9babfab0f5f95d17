"""`alignattn benchmark`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from alignattn.attention.config import PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.models.names import model_name
from alignattn.models.packaged import PACKAGED
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, Count, OutputDir, Processes, Seed, option
from alignattn.utils.options import Options


class BareSize(NamedTuple):
    """Size of a BERT with random weights; its intermediate layers are four times as wide as the hidden ones."""

    hidden: int
    layers: int
    heads: int


BARE_MODELS: Mapping[str, BareSize] = {
    "tiny": BareSize(128, 2, 2),
    "bare-minilm": BareSize(384, 6, 12),
    "bert-base": BareSize(768, 12, 12),
}
"""Models with random weights: no download, any length."""

SUMMARY_FILE = "benchmark.csv"
REPEATS_FILE = "repeats.csv"
RATIOS_FILE = "ratios.png"
GROWTH_FILE = "growth.png"
BENCHMARK_FILES = (SUMMARY_FILE, REPEATS_FILE, RATIOS_FILE, GROWTH_FILE)

DEFAULT_SHAPES = ("16x128", "4x512")

MODEL_HELP = f"Folder, Hub id or {', '.join(PACKAGED)}; random weights: {', '.join(BARE_MODELS)}."
SHAPES_HELP = f"Batch shapes (default: {' '.join(DEFAULT_SHAPES)}; none with --lengths)."
DROPOUT_HELP = "All dropouts (default: the model's). On a CPU, PyTorch forms n × n weights in training unless it is 0."


@dataclass(frozen=True)
class Shape:
    """Number of rows of a batch, and of tokens of its longest row."""

    batch: int
    length: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse `16x128`: 16 rows of 128 tokens."""
        batch, _, length = text.partition("x")
        if not (batch.isdecimal() and length.isdecimal() and int(batch) > 0 and int(length) > 0):
            raise AlignAttnError(f"shape {text!r} is not ROWSxTOKENS, such as 16x128")
        return cls(int(batch), int(length))

    def __str__(self) -> str:
        return f"{self.batch}x{self.length}"


def _model_name(label: str, value: str) -> None:
    model_name(label, value, *BARE_MODELS)


@dataclass(frozen=True, kw_only=True)
class BenchmarkOptions(Options):
    """The options of `alignattn benchmark`."""

    output_dir: OutputDir = option(REQUIRED, "Folder for the CSV files and pictures.")
    model: str = option("bare-minilm", MODEL_HELP, place=_model_name)
    attentions: tuple[str, ...] = option(
        tuple(PRESETS), f"Presets or slots to compare with {PLAIN_ATTENTION} (unpatched)."
    )
    shapes: tuple[str, ...] | None = option(None, SHAPES_HELP, metavar="ROWSxTOKENS")
    lengths: tuple[Count, ...] | None = option(None, "Sequence lengths of a scaling plot, with --rows or --tokens.")
    rows: Count | None = option(None, "Rows per batch at each of --lengths (default: 1).", requires=("lengths",))
    tokens: Count | None = option(
        None,
        "Instead of --rows: tokens per batch at each of --lengths.",
        requires=("lengths",),
        excludes={"rows": "both set the batch size"},
    )
    repeats: Count = option(20, "Timed steps per attention.")
    warmup: int = option(3, "Warm-up steps that are not timed, at least 1.", low=0)
    device: str = option("cpu", "cpu or cuda.", choices=("cpu", "cuda"))
    dtype: str = option("float32", "float32, or bfloat16 under autocast.", choices=("float32", "bfloat16"))
    compile: bool = option(False, "Compile the model with torch.compile.")
    dropout: float | None = option(None, DROPOUT_HELP, low=0, below=1)
    threads: Processes | None = option(None, "CPU threads (default: PyTorch's choice).")
    seed: Seed = option(42, "Seed of random weights, token ids and dropout.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for attention in self.attentions:
            AttentionConfig.resolve(attention)
        for shape in self.shapes or ():
            Shape.parse(shape)
        for length in self.lengths or ():
            if self.tokens is not None and length > self.tokens:
                raise AlignAttnError(f"--lengths {length} exceeds --tokens {self.tokens}")

    def measured_attentions(self) -> list[str]:
        """Return `soft` and the other attentions without duplicates."""
        return list(dict.fromkeys([PLAIN_ATTENTION, *self.attentions]))


COMMAND = Command(
    "benchmark",
    "measure time and memory of a training and an evaluation step, compared with plain attention",
    BenchmarkOptions,
    run="alignattn.commands.benchmark.command:benchmark",
    draws=True,
    examples=("alignattn benchmark --lengths 128 512 2048 --tokens 2048 --output_dir benchmark",),
)
