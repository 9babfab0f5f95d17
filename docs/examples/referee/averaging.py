"""Classify messages by their words, by stochastic gradient descent with or without averaged weights.

A program for a row of a table: it knows nothing of alignattn, reads two files of JSON lines and writes a third.
"""

import argparse
import json
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
parser.add_argument("--train", type=Path)
parser.add_argument("--test", type=Path)
parser.add_argument("--output", type=Path)
parser.add_argument("--average", action="store_true", help="average the weights of all steps (Polyak & Juditsky 1992)")
arguments = parser.parse_args()

train, test = ([json.loads(line) for line in path.open()] for path in (arguments.train, arguments.test))
classifier = SGDClassifier(loss="log_loss", average=arguments.average, random_state=arguments.seed)
# With and without the trick, the same values are tried on the training rows.
model = GridSearchCV(
    make_pipeline(TfidfVectorizer(), classifier), {"sgdclassifier__alpha": [1e-5, 1e-4, 1e-3, 1e-2]}, cv=3
)
model.fit([row["message"] for row in train], [row["kind"] for row in train])

with (arguments.output / "predictions.jsonl").open("w") as file:
    for row, probabilities in zip(test, model.predict_proba([row["message"] for row in test]), strict=True):
        line = {"id": row["id"], "prediction": int(probabilities.argmax()), "probabilities": list(probabilities)}
        file.write(json.dumps(line) + "\n")
