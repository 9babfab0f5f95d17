"""Whether averaged weights help a classifier of messages: writes the scores of both methods, without alignattn.

python docs/examples/referee/averaging.py > scores.csv
"""

import csv
import random
import sys
from pathlib import Path

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

SEEDS, ROWS_PER_CLASS = range(1, 13), 8
METHODS = {"words": {}, "averaged": {"average": True}}  # Polyak & Juditsky 1992

folder = Path(__file__).parents[1]
train, test = (
    list(csv.DictReader((folder / name).read_text().splitlines(), delimiter="\t"))
    for name in ("messages.tsv", "more-messages.tsv")
)
writer = csv.writer(sys.stdout)
writer.writerow(["method", "seed", "example", "score"])
for seed in SEEDS:
    # Both methods train on the same rows of a seed, so that their scores can be paired.
    draw = random.Random(seed)  # noqa: S311  # no secret
    kinds = ("question", "complaint", "praise")
    rows = [row for kind in kinds for row in draw.sample([one for one in train if one["kind"] == kind], ROWS_PER_CLASS)]
    for method, options in METHODS.items():
        classifier = SGDClassifier(loss="log_loss", random_state=seed, **options)
        # With and without the trick, the same values are tried on the training rows.
        grid = {"sgdclassifier__alpha": [1e-5, 1e-4, 1e-3, 1e-2]}
        model = GridSearchCV(make_pipeline(TfidfVectorizer(), classifier), grid, cv=3)
        model.fit([row["message"] for row in rows], [row["kind"] for row in rows])
        predicted = model.predict([row["message"] for row in test])
        for number, (row, kind) in enumerate(zip(test, predicted, strict=True)):
            writer.writerow([method, seed, number, int(row["kind"] == kind)])
