"""The demo: fine-tune one pretrained model with plain, aligned and balanced attention, and compare.

It runs the ordinary `finetune` three times on the same rows.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from transformers import AutoModelForSequenceClassification

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.demo import DemoOptions
from alignattn.commands.demo.data import DemoData, demo_data
from alignattn.evaluation.calibration import expected_calibration_error
from alignattn.finetuning.callbacks import distance_batch, query_key_distances
from alignattn.finetuning.heads import row_examples, tsne_panel, view_head
from alignattn.finetuning.logs import AS_IS_NAME, FLOOR_NAME
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import PREDICTIONS_FILE
from alignattn.finetuning.resuming import check_output_dir
from alignattn.finetuning.rows import encode_split, load_evaluation_rows
from alignattn.finetuning.run import finetune_one
from alignattn.models import AT_RANDOM, SAMPLING_OPTION
from alignattn.patching import is_patched, patch
from alignattn.patching.checkpoints import load_pretrained, loading, read_config_fields
from alignattn.reports.plots.bars import BarPanel, Spread, draw_overview
from alignattn.reports.plots.drawing import write_figure
from alignattn.tasks.task import PROBABILITIES
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import write_json, write_text
from alignattn.utils.json_records import read_json
from alignattn.utils.options import resolve
from alignattn.utils.text_tables import render_table

PLAIN, ALIGNED, BALANCED = "plain", "aligned", "balanced"
ALIGNED_ATTENTION = "aa-ct"
RUNS: Mapping[str, Mapping[str, Any]] = {
    PLAIN: {"attention": PLAIN_ATTENTION},
    ALIGNED: {"attention": ALIGNED_ATTENTION},
    BALANCED: {"attention": PLAIN_ATTENTION, "balance": "epoch"},
}
"""The options that differ between the runs, by the run's name in the table, picture and folder."""

DATA_FOLDER = "data"
ROWS_FILE = "rows.json"
OPTIONS_OF_ROWS = ("train_rows", "validation_rows", "seed")
DEMO_TABLE = "table.txt"
DEMO_PICTURE = "demo.png"
MAX_PAIR = 48
BATCH_SIZE = 16
PICTURED_ROWS, PICTURED_TOKENS = 16, 300
"""Rows and maximum tokens of the t-SNE picture of a head."""
PICTURED_HEAD = 0
PERCENT = 100


def run_demo(arguments: DemoOptions) -> None:
    """Run the demo and print its table and the path of its picture."""
    started = time.perf_counter()
    folder = Path(arguments.output_dir)
    # Check the model first: collecting the sentences takes a while.
    with loading(arguments.model):
        read_config_fields(arguments.model)
    sentences = demo_data(arguments)
    _check_rows(folder, sentences, arguments)
    task = sentences.write_task(folder / DATA_FOLDER)
    runs = {name: _run_options(arguments, task, name) for name in RUNS}
    for options in runs.values():
        check_output_dir(options)
    sentences.write(folder / DATA_FOLDER, arguments)
    write_json(folder / ROWS_FILE, _row_options(sentences, arguments))
    print(f"Sentences: {sentences.description}.")
    before = _distances(arguments.model, runs[PLAIN])
    measured = {}
    for name, options in runs.items():
        print(f"\n{name.capitalize()} attention, seed {arguments.seed}:", flush=True)
        finetune_one(options)
        after = _distances(str(options.output_dir), options)
        distances = [before[AS_IS_NAME], after[AS_IS_NAME], after[FLOOR_NAME]]
        measured[name] = [PERCENT * value for value in (*_scores(options.output_dir, sentences), *distances)]
    table = _table(measured, sentences)
    write_text(folder / DEMO_TABLE, table + "\n")
    _draw(measured, runs, sentences, folder / DEMO_PICTURE)
    print(f"\n{table}\n\npicture: {folder / DEMO_PICTURE}   ({time.perf_counter() - started:.0f} s in all)")


def _row_options(sentences: DemoData, arguments: DemoOptions) -> dict[str, Any]:
    """The options that determine the rows."""
    return {"sentences": sentences.name} | {name: getattr(arguments, name) for name in OPTIONS_OF_ROWS}


def _check_rows(folder: Path, sentences: DemoData, arguments: DemoOptions) -> None:
    """Refuse a folder whose runs have other rows: finished runs would be shown as if they had these rows."""
    path = folder / ROWS_FILE
    if path.is_file() and read_json(path) != _row_options(sentences, arguments):
        raise AlignAttnError(f"{folder} already holds a demo with other rows: give another --output_dir")


def _distances(path: str, options: RunOptions) -> dict[str, float]:
    """The distances in the model at `path` on the first in-domain validation rows."""
    assert options.task is not None
    model, tokenizer = load_pretrained(path, AutoModelForSequenceClassification)
    loaded = load_evaluation_rows(options.task, options.model, options.data)
    rows = next(iter(loaded.evaluation.values()))
    split = encode_split(loaded.task, rows, tokenizer, options.data)
    batch = distance_batch(loaded.task, split, tokenizer)
    return query_key_distances(model if is_patched(model) else patch(model, PLAIN_ATTENTION), batch)


def _run_options(arguments: DemoOptions, task: str, name: str) -> RunOptions:
    folder = Path(arguments.output_dir)
    options: dict[str, Any] = {
        "model": arguments.model,
        "task": task,
        "data_dir": folder / DATA_FOLDER,
        "output_dir": folder / name,
        "max_length": MAX_PAIR,
        "per_device_train_batch_size": BATCH_SIZE,
        "per_device_eval_batch_size": BATCH_SIZE,
        "learning_rate": arguments.learning_rate,
        "num_train_epochs": arguments.num_train_epochs,
        SAMPLING_OPTION: AT_RANDOM,
        "save_strategy": "no",
        "seed": arguments.seed,
        **RUNS[name],
    }
    if name == ALIGNED:
        options["alignment_weight"] = arguments.alignment_weight
    return resolve(RunOptions, options)


def _scores(folder: Path, sentences: DemoData) -> list[float]:
    """The accuracy on each evaluation split, and the expected calibration error on each."""
    predictions = pq.read_table(folder / PREDICTIONS_FILE).to_pandas()
    by_split = [predictions[predictions["split"] == split] for split in sentences.splits]
    return [
        *((rows["prediction"] == rows["label"]).mean() for rows in by_split),
        *(expected_calibration_error(np.stack(rows[PROBABILITIES]), rows["label"]) for rows in by_split),
    ]


def _table(measured: Mapping[str, Sequence[float]], sentences: DemoData) -> str:
    first, other = sentences.domains
    header = ["attention", *(f"{score} {domain}" for score in ("accuracy", "ECE") for domain in sentences.domains)]
    header += ["distance before", "after", "floor"]
    body = [[name, *(f"{value:.1f}" for value in values)] for name, values in measured.items()]
    what = sentences.description
    caption = (
        f"{what[0].upper()}{what[1:]}:\ntrained on {first}, evaluated on unseen {first} (in "
        f"domain) and on {other} (out of domain). Aligned is {ALIGNED_ATTENTION}.\nAccuracy and expected calibration "
        "error (10 bins) in percent; the distance of queries and keys in percent of their\nspread; floor: the distance "
        "of two halves of one cloud. One seed: differences of a few points are noise."
    )
    return f"{render_table(header, body)}\n\n{caption}"


def _draw(
    measured: Mapping[str, Sequence[float]], runs: Mapping[str, RunOptions], sentences: DemoData, path: Path
) -> None:
    first, other = sentences.domains
    domains = (f"{first}\n(in domain)", f"{other}\n(out of domain)")

    def panel(title: str, groups: Sequence[str], columns: slice) -> BarPanel:
        return BarPanel(title, groups, {name: list(map(Spread.exact, row[columns])) for name, row in measured.items()})

    figure = draw_overview(
        [
            panel("accuracy (%)", domains, slice(0, 2)),
            panel("calibration error (%)", domains, slice(2, 4)),
            panel("query-key distance (% of spread)", ("before", "after", "floor"), slice(4, 7)),
        ],
        [_cloud(name, options) for name, options in runs.items()],
        names=list(RUNS),
        x_label="t-SNE dimension 1",
        y_label="t-SNE dimension 2",
        title=f"{Path(next(iter(runs.values())).model.model).name} fine-tuned on {sentences.description}, one seed",
    )
    write_figure(figure, path)


def _cloud(name: str, options: RunOptions) -> Any:
    """The t-SNE of the queries and keys of a head of the last layer."""
    assert options.task is not None
    loaded = load_evaluation_rows(options.task, options.model, options.data)
    split, rows = next(iter(loaded.evaluation.items()))
    examples = row_examples(loaded.task, split, rows.select(range(min(PICTURED_ROWS, len(rows)))), options.data)
    view = view_head(options.output_dir, name, examples, None, PICTURED_HEAD)
    placed = tsne_panel(view, max_tokens=PICTURED_TOKENS, seed=options.training.seed)
    return replace(placed, title=f"{name}: layer {view.layer}, head {view.head}")
