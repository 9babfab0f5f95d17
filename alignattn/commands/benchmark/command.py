"""Measures the cost of alignment attention: time and peak memory of a step, against plain attention in the same run."""

import os
import platform
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig, PreTrainedModel

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.benchmark import (
    BARE_MODELS,
    BENCHMARK_FILES,
    DEFAULT_SHAPES,
    GROWTH_FILE,
    RATIOS_FILE,
    BareSize,
    BenchmarkOptions,
    Shape,
)
from alignattn.commands.benchmark.report import (
    Conditions,
    StepCost,
    costs_of,
    draw_growth,
    draw_ratios,
    render_costs,
    write_costs,
)
from alignattn.commands.benchmark.step_timing import (
    MEMORY_METHODS,
    PHASES,
    Measurement,
    Setting,
    Subject,
    make_batch,
    measure,
)
from alignattn.models.lengths import most_positions
from alignattn.patching.checkpoints import load_checkpoint, load_config, loading
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished
from alignattn.utils.progress import progress
from alignattn.utils.publishing import publishable

INTERMEDIATE_FACTOR = 4
MIN_POSITIONS = 512
NUM_LABELS = 2
IDLE_LOAD = 0.5
"""Load in excess of the cores, the benchmark's threads included, above which it warns."""


def growth_shapes(arguments: BenchmarkOptions) -> list[Shape]:
    """Return the shapes of `--lengths`, in ascending order."""
    tokens, rows = arguments.tokens, arguments.rows or 1
    lengths = sorted(set(arguments.lengths or ()))
    return [Shape(rows if tokens is None else tokens // length, length) for length in lengths]


def measured_shapes(arguments: BenchmarkOptions) -> list[Shape]:
    """Return the distinct shapes to measure: those of `--shapes`, then those of `--lengths`."""
    names = arguments.shapes if arguments.shapes is not None else () if arguments.lengths else DEFAULT_SHAPES
    return list(dict.fromkeys([*(Shape.parse(name) for name in names), *growth_shapes(arguments)]))


def benchmark(arguments: BenchmarkOptions) -> list[StepCost]:
    """Measure every attention at every shape, print the table, and write the CSV files and the pictures.

    The CSV files are written after each shape, so an interrupted run leaves its results. The next run in the folder
    measures all shapes again, because times of two runs are not comparable.
    """
    if arguments.device == "cuda" and not torch.cuda.is_available():
        raise AlignAttnError("--device cuda: PyTorch finds no CUDA GPU: use --device cpu")
    folder, shapes = Path(arguments.output_dir), measured_shapes(arguments)
    check_free(folder, BENCHMARK_FILES)
    if arguments.threads is not None:
        torch.set_num_threads(arguments.threads)
    conditions = _conditions(arguments)
    _warn_if_busy(conditions)
    torch.manual_seed(arguments.seed)
    setting = Setting(torch.device(arguments.device), getattr(torch, arguments.dtype), arguments.compile)
    model = load_model(arguments.model, max(shape.length for shape in shapes), arguments.dropout)
    subjects = [Subject(name, model, setting) for name in arguments.measured_attentions()]
    measurements: list[Measurement] = []
    costs: list[StepCost] = []
    repeats = len(shapes) * len(PHASES) * arguments.repeats
    with unfinished(folder), progress("benchmark", repeats, "repeat") as bar:
        for shape in shapes:
            for measurement in _measure_shape(subjects, shape, arguments, bar):
                measurements.append(measurement)
                costs += costs_of(measurement)
            write_costs(folder, costs, measurements, conditions)
        _draw(costs, arguments, conditions)
    print(f"{render_costs(costs, conditions)}\nwritten to {folder}")
    return costs


def _measure_shape(
    subjects: Sequence[Subject], shape: Shape, arguments: BenchmarkOptions, bar: Any
) -> Iterable[Measurement]:
    config = subjects[0].model.config
    # Without a padding token any id will do: the mask marks the padding.
    padding = config.pad_token_id or 0
    batch = make_batch(shape, config.vocab_size, padding, NUM_LABELS, arguments.seed)
    batch = {name: tensor.to(arguments.device) for name, tensor in batch.items()}
    for phase in PHASES:
        bar.set_description(f"{shape} {phase}")
        yield measure(
            subjects,
            shape,
            phase,
            batch,
            repeats=arguments.repeats,
            warmup=arguments.warmup,
            on_repeat=bar.update,
        )


def load_model(name: str, length: int, dropout: float | None) -> PreTrainedModel:
    """Return a sequence classifier: one of `BARE_MODELS` with random weights, or the pretrained `name`.

    Args:
        name: a name in `BARE_MODELS`, a packaged model, a folder or a Hub id, looked up in this order.
        length: number of tokens that the model must support.
        dropout: probability for every `torch.nn.Dropout`; None keeps the model's.
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
        max_position_embeddings=max(length, MIN_POSITIONS),
    )
    model: PreTrainedModel = AutoModelForSequenceClassification.from_config(config)
    return model


def _load_pretrained(name: str, length: int) -> PreTrainedModel:
    bare = f"one of {', '.join(BARE_MODELS)}"
    choices = f"a folder, a Hub id that is cached or reachable, or {bare}"
    with loading(name, choices):
        config = load_config(name, num_labels=NUM_LABELS)
    config.problem_type = "single_label_classification"
    positions = most_positions(config)
    if positions is not None and length > positions:
        raise AlignAttnError(
            f"{length} tokens exceed the maximum of {name!r}, {positions}: give shorter --shapes, or --model {bare}"
        )
    loaded: dict[str, Any] = {"config": config, "with_slots": False, "ignore_mismatched_sizes": True}
    return load_checkpoint(name, AutoModelForSequenceClassification, choices=choices, **loaded)


def _draw(costs: Sequence[StepCost], arguments: BenchmarkOptions, conditions: Conditions) -> None:
    folder = Path(arguments.output_dir)
    if arguments.measured_attentions() == [PLAIN_ATTENTION]:
        return
    draw_ratios(folder / RATIOS_FILE, costs, conditions)
    growth = growth_shapes(arguments)
    if len(growth) > 1:
        at_lengths = [cost for shape in growth for cost in costs if cost.shape == shape]
        draw_growth(folder / GROWTH_FILE, at_lengths, conditions)


def _conditions(arguments: BenchmarkOptions) -> Conditions:
    return {
        "repeats": arguments.repeats,
        "model": publishable(arguments.model),
        "dropout": "model" if arguments.dropout is None else str(arguments.dropout),
        "dtype": arguments.dtype,
        "compiled": arguments.compile,
        "device": arguments.device,
        "machine": _machine(arguments.device),
        "threads": torch.get_num_threads(),
        # Mean number of running and waiting processes in the minute before the start.
        "load_average": round(os.getloadavg()[0], 2),
        "torch": torch.__version__,
        "memory_method": MEMORY_METHODS[arguments.device],
    }


def _machine(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    cpu_info = Path("/proc/cpuinfo")
    lines = cpu_info.read_text(encoding="utf-8").splitlines() if cpu_info.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def _warn_if_busy(conditions: Conditions) -> None:
    cores, load = os.cpu_count() or 1, conditions["load_average"]
    threads = conditions["threads"] if conditions["device"] == "cpu" else 1
    if load + threads > cores + IDLE_LOAD:
        print(
            f"this machine is busy (load average {load:.1f} on {cores} cores, and the benchmark uses {threads} "
            "threads): times will be noisy",
            file=sys.stderr,
        )
