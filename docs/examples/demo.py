"""Fine-tune MiniLM with plain, aligned and balanced attention, and compare the three: `make demo`, minutes on 2 cores.

Without `--data_dir` it tells the messages of this folder apart; with it, duplicates among Quora's questions (GLUE's
QQP, `glue/qqp/*.parquet`). It proves nothing: one seed and a few hundred rows do not separate the three models.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from matplotlib.figure import Figure
from sklearn.manifold import TSNE
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import alignattn
from alignattn.commands import get_command
from alignattn.evaluation.calibration import expected_calibration_error

HERE = Path(__file__).parent
RUNS = {
    "plain": {"attention": "soft"},
    "aligned": {"attention": "aa-ct", "alignment_weight": 0.01},
    "balanced": {"attention": "soft", "balance": "start"},
}
SCORES = ("accuracy (%)", "calibration error (%)", "query-key distance before", "after")


def finetune(name: str, options: argparse.Namespace) -> Path:
    """Make the run of a name and return its folder; a finished run is read, not repeated."""
    folder = options.output_dir / name
    data = {"train_file": HERE / "messages.tsv", "validation_file": HERE / "more-messages.tsv"}
    data |= {"text_columns": ["message"], "label_column": "kind"}
    if options.data_dir is not None:
        data = {"task": "qqp", "data_dir": options.data_dir, "max_train_samples": 600, "max_eval_samples": 200}
    training = {"num_train_epochs": options.num_train_epochs, "learning_rate": 2e-4, "max_length": 48, "seed": 1}
    training |= {"save_strategy": "no", "log_query_key_distance": True}
    command = get_command("finetune")
    command.execute(command.resolve({"model": options.model, "output_dir": folder, **data, **training, **RUNS[name]}))
    return folder


def scores(folder: Path) -> list[float]:
    """Return the numbers of `SCORES` of a finished run."""
    rows = pq.read_table(folder / "predictions.parquet").to_pandas()
    error = expected_calibration_error(np.stack(rows["probabilities"]), rows["label"])
    log = json.loads((folder / "trainer_state.json").read_text())["log_history"]
    distances = [entry["query_key_distance"] for entry in log if "query_key_distance" in entry]
    return [100 * (rows["prediction"] == rows["label"]).mean(), 100 * error, distances[0], distances[-1]]


def clouds(folder: Path, texts: list) -> tuple[np.ndarray, np.ndarray]:
    """Return the queries and keys, each `[N, 2]`, of the first head of the last layer, placed by t-SNE."""
    model = alignattn.from_pretrained(folder, AutoModelForSequenceClassification).eval()
    if not alignattn.is_patched(model):
        alignattn.patch(model, "soft")
    batch = AutoTokenizer.from_pretrained(folder)(texts, padding=True, return_tensors="pt")
    with torch.no_grad(), alignattn.collect(model) as seen:
        model(**batch)
    is_real = batch["attention_mask"].bool()
    query, key = (states[:, 0][is_real].numpy() for states in (seen.layers[-1].query, seen.layers[-1].key))
    placed = TSNE(random_state=1).fit_transform(np.concatenate([query, key]))
    return placed[: len(query)], placed[len(query) :]


def draw(path: Path, measured: dict[str, list[float]], placed: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Draw the scores as bars, and below them the queries and keys of each run."""
    figure = Figure(figsize=(12, 7), layout="constrained")
    axes = figure.subplots(2, 3)
    for panel, columns, title in zip(axes[0], ([0], [1], [2, 3]), (*SCORES[:2], "query-key distance"), strict=True):
        for number, (name, values) in enumerate(measured.items()):
            bars = panel.bar(np.arange(len(columns)) + 0.3 * number, np.take(values, columns), 0.28, label=name)
            panel.bar_label(bars, fmt="%.3g")
        panel.set_xticks(np.arange(len(columns)) + 0.3, ["before", "after"] if len(columns) > 1 else [""])
        panel.set_title(title)
    axes[0, 0].legend(loc="lower right")
    for panel, (name, (query, key)) in zip(axes[1], placed.items(), strict=True):
        panel.scatter(*query.T, s=9, marker="o", alpha=0.6, label="queries")
        panel.scatter(*key.T, s=9, marker="^", alpha=0.6, label="keys")
        panel.set(title=f"{name}: a head of the last layer", xticks=[], yticks=[])
    axes[1, 0].legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Run the demo, and print its table and the path of its picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_dir", type=Path, default=Path("demo"))
    parser.add_argument("--data_dir", type=Path)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--num_train_epochs", type=float, default=3.0)
    options = parser.parse_args()
    folders = {name: finetune(name, options) for name in RUNS}
    if options.data_dir is None:
        with (HERE / "more-messages.tsv").open(newline="") as file:
            texts = [row["message"] for row in csv.DictReader(file, delimiter="\t")]
    else:
        rows = pq.read_table(options.data_dir / "glue" / "qqp" / "validation.parquet").slice(0, 16).to_pylist()
        texts = [(row["question1"], row["question2"]) for row in rows]
    measured = {name: scores(folder) for name, folder in folders.items()}
    draw(options.output_dir / "demo.png", measured, {n: clouds(folder, texts[:16]) for n, folder in folders.items()})
    lines = [" | ".join(["attention", *SCORES])]
    for name, values in measured.items():
        lines.append(
            " | ".join(
                [f"{name:9}", *(f"{value:{len(title)}.2f}" for value, title in zip(values, SCORES, strict=True))]
            )
        )
    (options.output_dir / "table.txt").write_text("\n".join(lines) + "\n")
    print("\n".join(["", *lines, "", f"picture: {options.output_dir / 'demo.png'}"]))


if __name__ == "__main__":
    main()
