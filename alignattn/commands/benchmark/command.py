"""What alignment attention costs: time and peak memory of a step, beside plain attention in the same run."""

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import nn
from tqdm import tqdm  # type: ignore[import-untyped]
from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from alignattn.attention.config import PLAIN_ATTENTION, PRESETS, AttentionConfig
from alignattn.commands.benchmark.measuring import (
    MEMORY_METHODS,
    PHASES,
    Cell,
    Setting,
    Shape,
    Subject,
    make_batch,
    measure,
)
from alignattn.commands.benchmark.report import (
    FILES,
    GROWTH_FILE,
    RATIOS_FILE,
    Conditions,
    Summary,
    draw_growth,
    draw_ratios,
    render,
    summarise,
    write_tables,
)
from alignattn.models.packaged import PACKAGED, model_source
from alignattn.patching.checkpoints import unloadable
from alignattn.support.errors import AlignAttnError
from alignattn.support.files import check_free
from alignattn.support.parser import OneLineErrorParser, check_range


class BareSize(NamedTuple):
    """Size of a BERT without weights; its intermediate layers are four times as wide as the others."""

    hidden: int
    layers: int
    heads: int


BARE_MODELS = {
    "tiny": BareSize(128, 2, 2),
    "bare-minilm": BareSize(384, 6, 12),
    "bert-base": BareSize(768, 12, 12),
}
"""What is built with random weights: no download, and any length."""

INTERMEDIATE_FACTOR = 4
FEWEST_POSITIONS = 512
NUM_LABELS = 2
DEFAULT_SHAPES = ("16x128", "4x512")
IDLE_LOAD = 0.5
"""Processes that may run beside the benchmark before it warns."""


@dataclass
class BenchmarkArguments:
    """The options of `alignattn benchmark`."""

    output_dir: str = field(metadata={"help": "Folder for the CSV files and pictures."})
    model: str = field(
        default="bare-minilm",
        metadata={
            "help": f"Model folder, Hub id or {', '.join(PACKAGED)}; or a BERT with random weights: "
            f"{', '.join(BARE_MODELS)}."
        },
    )
    attentions: list[str] = field(
        default_factory=lambda: list(PRESETS),
        metadata={"help": f"Of {', '.join(PRESETS)}; {PLAIN_ATTENTION} (no patch) is always measured."},
    )
    shapes: list[str] | None = field(
        default=None,
        metadata={"help": f"Batches as ROWSxTOKENS (else {' '.join(DEFAULT_SHAPES)} or --lengths)."},
    )
    lengths: list[int] | None = field(
        default=None, metadata={"help": "Lengths in tokens to draw the growth over, of --rows or --tokens."}
    )
    rows: int | None = field(default=None, metadata={"help": "Rows of a batch at each of --lengths (default: 1)."})
    tokens: int | None = field(
        default=None, metadata={"help": "Instead of --rows: tokens of a batch at each of --lengths."}
    )
    repeats: int = field(default=20, metadata={"help": "Timed steps of each attention."})
    warmup: int = field(default=3, metadata={"help": "Steps before them that do not count; one at least."})
    device: Literal["cpu", "cuda"] = field(default="cpu", metadata={"help": "Where to run."})
    dtype: Literal["float32", "bfloat16"] = field(default="float32", metadata={"help": "bfloat16 runs under autocast."})
    compile: bool = field(default=False, metadata={"help": "Run the model through torch.compile."})
    dropout: float | None = field(
        default=None,
        metadata={
            "help": "Probability of every dropout (default: the model's). On a CPU, PyTorch forms n × n "
            "attention weights in training unless it is 0."
        },
    )
    threads: int | None = field(default=None, metadata={"help": "CPU threads (default: PyTorch's choice)."})
    seed: int = field(default=42, metadata={"help": "Seed of random weights, token ids and dropout."})

    def __post_init__(self) -> None:
        for name, least in (("rows", 1), ("repeats", 1), ("warmup", 0), ("threads", 1)):
            check_range(self, name, least)
        if self.dropout is not None and not 0 <= self.dropout < 1:
            raise AlignAttnError(f"--dropout {self.dropout} must lie between 0 and 1")
        for attention in self.attentions:
            AttentionConfig.resolve(attention)
        sizes = [f"--{name}" for name in ("rows", "tokens") if getattr(self, name) is not None]
        if sizes and self.lengths is None:
            raise AlignAttnError(f"{sizes[0]} needs --lengths: name the lengths, or give --shapes")
        if len(sizes) > 1:
            raise AlignAttnError("--rows and --tokens exclude each other: drop one of them")
        if self.device == "cuda" and not torch.cuda.is_available():
            raise AlignAttnError("--device cuda: PyTorch sees no CUDA GPU here: take --device cpu")

    def measured_attentions(self) -> list[str]:
        """Return `soft` and the others as they were named, each once."""
        return list(dict.fromkeys([PLAIN_ATTENTION, *self.attentions]))

    def growth_shapes(self) -> list[Shape]:
        """Return the shapes of `--lengths`, by rising length.

        Raises:
            AlignAttnError: if a length is not positive or exceeds `--tokens`.
        """
        shapes = []
        for length in sorted(set(self.lengths or ())):
            if length < 1:
                raise AlignAttnError(f"--lengths {length} must be at least 1")
            if self.tokens is not None and length > self.tokens:
                raise AlignAttnError(f"--lengths {length} is more than --tokens {self.tokens}")
            shapes.append(Shape(self.rows or 1 if self.tokens is None else self.tokens // length, length))
        return shapes

    def measured_shapes(self) -> list[Shape]:
        """Return each shape to be measured once: those of `--shapes`, then those of `--lengths`.

        Raises:
            AlignAttnError: if one cannot be read.
        """
        names = self.shapes if self.shapes is not None else () if self.lengths else DEFAULT_SHAPES
        return list(dict.fromkeys([*(Shape.parse(name) for name in names), *self.growth_shapes()]))

    def setting(self) -> Setting:
        """Return how the steps run."""
        return Setting(torch.device(self.device), getattr(torch, self.dtype), self.compile)


def main(argv: Sequence[str]) -> None:
    """Run `alignattn benchmark`.

    Args:
        argv: the words after the command's name.

    Raises:
        AlignAttnError: for every mistake a user can mend; nothing that was written before is lost.
    """
    parser = OneLineErrorParser([BenchmarkArguments], prog="alignattn benchmark")
    benchmark(BenchmarkArguments(**vars(parser.parse_args(list(argv)))))


def benchmark(arguments: BenchmarkArguments) -> list[Summary]:
    """Measure every attention at every shape, print the table, and write the CSV files and the pictures.

    The CSV files are written after each shape, so that a long run that ends early leaves what it has.

    Raises:
        AlignAttnError: if a file would be overwritten, or a model, a shape or the memory does not suffice.
    """
    folder, shapes = Path(arguments.output_dir), arguments.measured_shapes()
    check_free(folder, FILES)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    conditions = _conditions(arguments)
    _warn_if_busy(conditions)
    torch.manual_seed(arguments.seed)
    model = load_model(arguments.model, max(shape.length for shape in shapes), arguments.dropout)
    subjects = [Subject(name, model, arguments.setting()) for name in arguments.measured_attentions()]
    cells: list[Cell] = []
    summaries: list[Summary] = []
    with tqdm(total=len(shapes) * len(PHASES) * arguments.repeats, unit="repeat") as progress:
        for shape in shapes:
            for cell in _measure_shape(subjects, shape, arguments, progress):
                cells.append(cell)
                summaries += summarise(cell)
            write_tables(folder, summaries, cells, conditions)
    _draw(summaries, arguments, conditions)
    print(f"{render(summaries, conditions)}\nwritten to {folder}")
    return summaries


def _measure_shape(
    subjects: Sequence[Subject], shape: Shape, arguments: BenchmarkArguments, progress: Any
) -> Iterable[Cell]:
    config = subjects[0].model.config
    # A model without a padding token takes any: the mask alone tells what is padding.
    padding = config.pad_token_id or 0
    batch = make_batch(shape, config.vocab_size, padding, NUM_LABELS, arguments.seed)
    batch = {name: tensor.to(arguments.device) for name, tensor in batch.items()}
    for phase in PHASES:
        progress.set_description(f"{shape} {phase}")
        yield measure(
            subjects,
            shape,
            phase,
            batch,
            repeats=arguments.repeats,
            warmup=arguments.warmup,
            on_repeat=progress.update,
        )


def load_model(name: str, length: int, dropout: float | None) -> PreTrainedModel:
    """Return a sequence classifier: one of `BARE_MODELS` with random weights, or the pretrained `name`.

    Args:
        name: a name in `BARE_MODELS`, a packaged model, a folder or a Hub id, looked for in this order.
        length: most tokens that it must take.
        dropout: probability that every `torch.nn.Dropout` gets; None leaves them.

    Raises:
        AlignAttnError: if there is no such model, or it takes fewer tokens.
    """
    model = _build_bare(BARE_MODELS[name], length) if name in BARE_MODELS else _load_pretrained(name, length)
    if dropout is not None:
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = dropout
    return model


def _build_bare(size: BareSize, length: int) -> PreTrainedModel:
    config = BertConfig(
        hidden_size=size.hidden,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=INTERMEDIATE_FACTOR * size.hidden,
        max_position_embeddings=max(length, FEWEST_POSITIONS),
    )
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return model


def _load_pretrained(name: str, length: int) -> PreTrainedModel:
    bare, source = f"one of {', '.join(BARE_MODELS)}", model_source(name)
    try:
        config = AutoConfig.from_pretrained(source, num_labels=NUM_LABELS)
        config.problem_type = "single_label_classification"
        positions = getattr(config, "max_position_embeddings", length)
        if length > positions:
            raise AlignAttnError(
                f"{length} tokens are more than the {positions} that {name!r} takes: take shorter shapes, or "
                f"--model {bare}"
            )
        model: PreTrainedModel = AutoModelForSequenceClassification.from_pretrained(
            source, config=config, ignore_mismatched_sizes=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise unloadable(name, error, f"a folder, a Hub id that is cached or reachable, or {bare}") from error
    return model


def _draw(summaries: Sequence[Summary], arguments: BenchmarkArguments, conditions: Conditions) -> None:
    folder = Path(arguments.output_dir)
    if arguments.measured_attentions() == [PLAIN_ATTENTION]:
        return
    draw_ratios(folder / RATIOS_FILE, summaries, conditions)
    growth = arguments.growth_shapes()
    if len(growth) > 1:
        at_lengths = [summary for shape in growth for summary in summaries if summary.shape == shape]
        draw_growth(folder / GROWTH_FILE, at_lengths, conditions)


def _conditions(arguments: BenchmarkArguments) -> Conditions:
    return Conditions(
        repeats=arguments.repeats,
        model=arguments.model,
        dropout="model" if arguments.dropout is None else str(arguments.dropout),
        dtype=arguments.dtype,
        compiled=arguments.compile,
        device=arguments.device,
        machine=_machine(arguments.device),
        threads=torch.get_num_threads(),
        load_average=round(os.getloadavg()[0], 2),
        torch=torch.__version__,
        memory_method=MEMORY_METHODS[arguments.device],
    )


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _warn_if_busy(conditions: Conditions) -> None:
    cores = os.cpu_count() or 1
    threads = conditions.threads if conditions.device == "cpu" else 1
    if conditions.load_average + threads > cores + IDLE_LOAD:
        print(
            f"warning: this machine is busy (load average {conditions.load_average:.1f} on {cores} cores, "
            f"and {threads} threads to come): times will scatter",
            file=sys.stderr,
        )
