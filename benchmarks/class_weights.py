"""Effect of class weights on a linear head over MiniLM embeddings of imbalanced AG News.

The figures are in `docs/measurements/decisions.md`.

    python benchmarks/class_weights.py --data_dir ../shared/data

Three classes with 600, 150 and 6 training rows, and 150 test rows each. `weights` is the loss of `--class_weights
balanced`, the weighted sum divided by the number of rows; `batch mean` is PyTorch's loss, divided by the sum of the
weights of each batch.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from sklearn.metrics import f1_score, recall_score
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from alignattn.evaluation.calibration import expected_calibration_error
from alignattn.models.packaged import model_source
from alignattn.training.weights import weighted_loss

TRAIN_ROWS, TEST_ROWS = (600, 150, 6), 150
DRAWS, EPOCHS, LEARNING_RATE, MAX_LENGTH = 20, 20, 1e-2, 48
BATCH_SIZES = (8, 64)

Loss = Callable[[Tensor, Tensor], Tensor]


def embeddings(texts: list[str]) -> Tensor:
    """Return the mean of each text's last hidden states, `[N, D]`."""
    folder = model_source("minilm")
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    with torch.no_grad():
        for start in range(0, len(texts), 64):
            batch = tokenizer(
                texts[start : start + 64], padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt"
            )
            mask = batch["attention_mask"][..., None]
            rows.append((model(**batch).last_hidden_state * mask).sum(1) / mask.sum(1))
    return torch.cat(rows)


def trained(features: Tensor, labels: Tensor, loss: Loss, batch_size: int, seed: int) -> nn.Linear:
    """Return a linear head after some epochs of Adam."""
    torch.manual_seed(seed)
    head = nn.Linear(features.shape[1], len(TRAIN_ROWS))
    optimizer = torch.optim.Adam(head.parameters(), LEARNING_RATE)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(labels)).split(batch_size):
            optimizer.zero_grad()
            loss(head(features[rows]), labels[rows]).backward()
            optimizer.step()
    return head


def main() -> None:
    """Print a table: means over the draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", type=Path, required=True)
    folder = parser.parse_args().data_dir / "ag_news"
    pools = {split: pd.read_parquet(folder / f"{split}.parquet") for split in ("train", "test")}
    draws = [
        [pools["train"][pools["train"].label == number].sample(count, random_state=draw) for draw in range(DRAWS)]
        for number, count in enumerate(TRAIN_ROWS)
    ]
    test = [
        pools["test"][pools["test"].label == number].sample(TEST_ROWS, random_state=0)
        for number in range(len(TRAIN_ROWS))
    ]
    # The frequent classes have one draw, the rare class has twenty, because its few rows decide the result.
    texts = [frame.text.tolist() for frame in (draws[0][0], draws[1][0], *draws[2], *test)]
    features = iter(embeddings([text for part in texts for text in part]).split(list(map(len, texts))))
    frequent = [next(features) for _ in range(len(TRAIN_ROWS) - 1)]
    rare = [next(features) for _ in range(DRAWS)]
    test_features = torch.cat(list(features))
    test_labels = np.repeat(np.arange(len(TRAIN_ROWS)), TEST_ROWS)
    labels = torch.repeat_interleave(torch.tensor(TRAIN_ROWS))
    weights = len(labels) / (len(TRAIN_ROWS) * torch.tensor(TRAIN_ROWS))
    losses: dict[str, Loss] = {
        "none": F.cross_entropy,
        "batch mean": lambda logits, labels: F.cross_entropy(logits, labels, weights),
        "weights": lambda logits, labels: weighted_loss((logits,), labels, weights=weights),
    }
    print(f"{'batch':>5} {'loss':>10} {'accuracy':>8} {'macro-F1':>8} {'recall of the rare class':>24} {'ECE':>5}")
    for batch_size in BATCH_SIZES:
        for name, loss in losses.items():
            measured = []
            for draw in range(DRAWS):
                head = trained(torch.cat([*frequent, rare[draw]]), labels, loss, batch_size, draw)
                probabilities = head(test_features).detach().softmax(dim=1).double().numpy()
                found = probabilities.argmax(axis=1)
                measured.append(
                    [
                        (found == test_labels).mean(),
                        f1_score(test_labels, found, average="macro"),
                        recall_score(test_labels, found, average=None)[-1],
                        expected_calibration_error(probabilities, test_labels),
                    ]
                )
            means, errors = np.mean(measured, axis=0), np.std(measured, axis=0, ddof=1) / DRAWS**0.5
            cells = [f"{100 * mean:.1f} ± {100 * error:.1f}" for mean, error in zip(means, errors, strict=True)]
            print(f"{batch_size:>5} {name:>10} {'  '.join(cells)}", flush=True)


if __name__ == "__main__":
    main()
