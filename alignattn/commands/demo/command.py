"""The demo: one pretrained model fine-tuned with plain and with alignment attention, side by side.

It runs `finetune` as it stands, on sentence pairs that the package generates itself.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from transformers import AutoModelForSequenceClassification

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.calibration import expected_calibration_error
from alignattn.commands.demo import DemoOptions
from alignattn.commands.demo.data import GENRE, OTHER_GENRE, write_demo_data
from alignattn.models.packaged import model_source
from alignattn.patching import is_patched, patch
from alignattn.patching.checkpoints import load_pretrained
from alignattn.plots import BarPanel, Spread, draw_comparison, write_figure
from alignattn.runs.distance import distance_batch, query_key_distance
from alignattn.runs.options import RunOptions
from alignattn.runs.results import PREDICTIONS_FILE, RunResult
from alignattn.runs.run import check_output_dir, finetune_one
from alignattn.support.files import write_text
from alignattn.support.options import resolve
from alignattn.support.text_tables import render_table
from alignattn.tasks import get_task
from alignattn.tasks.kind import EncodedSplit
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task import TaskOptions

ATTENTIONS = ("soft", "aa-ct")
DOMAINS = (GENRE, OTHER_GENRE)
DOMAIN_TITLES = (f"{GENRE}\n(in domain)", f"{OTHER_GENRE}\n(out of domain)")
DATA_FOLDER = "data"
DEMO_TABLE = "table.txt"
DEMO_PICTURE = "demo.png"
LONGEST_PAIR = 48
BATCH_SIZE = 16


@dataclass(frozen=True)
class DemoRow:
    """What the table and the picture show of one run.

    Attributes:
        attention: the preset's name.
        accuracy: by genre, a fraction.
        calibration_error: expected calibration error by genre, a fraction.
        seconds_per_step: of training.
        distance: between queries and keys, before and after training.
    """

    attention: str
    accuracy: dict[str, float]
    calibration_error: dict[str, float]
    seconds_per_step: float
    distance: tuple[float, float]


def run_demo(arguments: DemoOptions) -> None:
    """Run the demo and print its table and the path of its picture."""
    started = time.perf_counter()
    folder = Path(arguments.output_dir)
    model = arguments.model
    model_source(model)  # before anything is written: it may not be installed
    runs = {attention: _run_options(arguments, model, attention) for attention in ATTENTIONS}
    for options in runs.values():
        check_output_dir(options)
    write_demo_data(
        folder / DATA_FOLDER,
        train_rows=arguments.train_rows,
        validation_rows=arguments.validation_rows,
        seed=arguments.seed,
    )
    before = _distance_of(model, folder / DATA_FOLDER)
    rows = []
    for attention, options in runs.items():
        print(f"\nFine-tuning with {attention} attention, seed {arguments.seed}:", flush=True)
        result = finetune_one(options)
        after = _distance_of(str(options.output_dir), folder / DATA_FOLDER)
        rows.append(_summarise(result, options.output_dir, (before, after)))
    table = _table(rows)
    write_text(folder / DEMO_TABLE, table + "\n")
    _draw(rows, folder / DEMO_PICTURE)
    print(f"\n{table}\n\npicture: {folder / DEMO_PICTURE}   ({time.perf_counter() - started:.0f} s in all)")


def _distance_of(path: str, data_dir: Path) -> float:
    """The distance in the model at `path` on the first in-domain validation rows."""
    task = get_task("demo")
    model, tokenizer = load_pretrained(path, AutoModelForSequenceClassification)
    rows = load_rows(task, need_train=False, data_dir=data_dir).evaluation[f"validation_{GENRE}"]
    options = TaskOptions(max_length=LONGEST_PAIR)
    split = EncodedSplit(rows, kind_of(task).encode(task, rows, tokenizer, options), options)
    batch = distance_batch(task, split, tokenizer)
    return query_key_distance(model if is_patched(model) else patch(model, "soft"), batch)


def _run_options(arguments: DemoOptions, model: str, attention: str) -> RunOptions:
    folder = Path(arguments.output_dir)
    options: dict[str, Any] = {
        "model": model,
        "task": "demo",
        "data_dir": folder / DATA_FOLDER,
        "attention": attention,
        "output_dir": folder / attention,
        "max_length": LONGEST_PAIR,
        "per_device_train_batch_size": BATCH_SIZE,
        "per_device_eval_batch_size": BATCH_SIZE,
        "learning_rate": arguments.learning_rate,
        "num_train_epochs": arguments.num_train_epochs,
        "save_strategy": "no",
        "seed": arguments.seed,
    }
    if attention != PLAIN_ATTENTION:
        options["alignment_weight"] = arguments.alignment_weight
    return resolve(RunOptions, options)


def _summarise(result: RunResult, folder: Path, distance: tuple[float, float]) -> DemoRow:
    predictions = pq.read_table(folder / PREDICTIONS_FILE).to_pandas()
    errors = {}
    for genre in DOMAINS:
        rows = predictions[predictions["split"] == f"validation_{genre}"]
        errors[genre] = expected_calibration_error(np.stack(rows["probabilities"]), rows["label"])
    steps = result.training["step"]
    assert steps is not None
    return DemoRow(
        attention=result.attention,
        accuracy={genre: result.metrics[f"validation_{genre}"]["accuracy"] for genre in DOMAINS},
        calibration_error=errors,
        seconds_per_step=result.train_runtime / steps,
        distance=distance,
    )


def _table(rows: Sequence[DemoRow]) -> str:
    header = (
        "attention",
        *(f"accuracy {genre}" for genre in DOMAINS),
        *(f"ECE {genre}" for genre in DOMAINS),
        "seconds a step",
        "query-key distance before",
        "after",
    )
    body = [
        (
            row.attention,
            *(f"{100 * row.accuracy[genre]:.1f}" for genre in DOMAINS),
            *(f"{100 * row.calibration_error[genre]:.1f}" for genre in DOMAINS),
            f"{row.seconds_per_step:.3f}",
            *(f"{distance:.4f}" for distance in row.distance),
        )
        for row in rows
    ]
    caption = (
        f"Generated sentence pairs: trained on {GENRE}, evaluated on unseen {GENRE} (in domain) and on "
        f"{OTHER_GENRE} (out of domain).\nAccuracy and expected calibration error (10 bins) in percent; one seed: "
        "differences of a few points are noise."
    )
    return f"{render_table(header, body)}\n\n{caption}"


def _draw(rows: Sequence[DemoRow], path: Path) -> None:
    def panel(title: str, groups: Sequence[str], values: Callable[[DemoRow], Sequence[float]]) -> BarPanel:
        return BarPanel(title, groups, {row.attention: [Spread.exact(value) for value in values(row)] for row in rows})

    figure = draw_comparison(
        [
            panel("accuracy (%)", DOMAIN_TITLES, lambda row: [100 * row.accuracy[genre] for genre in DOMAINS]),
            panel(
                "calibration error (%)",
                DOMAIN_TITLES,
                lambda row: [100 * row.calibration_error[genre] for genre in DOMAINS],
            ),
            panel("query-key distance", ("before", "after"), lambda row: row.distance),
        ],
        names=ATTENTIONS,
        title="MiniLM fine-tuned on generated sentence pairs, one seed",
    )
    write_figure(figure, path)
