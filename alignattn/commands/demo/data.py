"""A sentence-pair inference task that the package generates itself, for `make demo`.

Each row is a premise, a hypothesis and one of MNLI's labels, under SNLI's convention that both sentences
speak of the same people and, unless they name different times, of the same moment:

* 0, entailment: where the premise is true, the hypothesis is true;
* 1, neutral: where the premise is true, the hypothesis may be true or false;
* 2, contradiction: where the premise is true, the hypothesis is false.

The labels are computed from what the sentences mean, in `alignattn.commands.demo.grammar`. The two genres share that
grammar and differ in their words (`alignattn.commands.demo.vocabulary`): training on one and testing on the other
shows domain shift.

Rows are drawn hypothesis first: only hypotheses for which a premise of every label turns up are used,
whatever label is wanted, so the hypothesis alone tells nothing about it.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from alignattn.commands.demo.grammar import CONTRADICTION, ENTAILMENT, NEUTRAL, Statement
from alignattn.commands.demo.vocabulary import GENRES, Genre
from alignattn.support.errors import AlignAttnError
from alignattn.support.files import replacing

LABEL_NAMES = {ENTAILMENT: "entailment", NEUTRAL: "neutral", CONTRADICTION: "contradiction"}
GENRE, OTHER_GENRE = "fiction", "business"
TASK_FOLDER = "demo"

# How many premises are tried before a hypothesis is given up: enough for each label to turn up nearly always.
PREMISE_ATTEMPTS = 60


@dataclass(frozen=True)
class SentencePair:
    """One example; `label` as in the module's description."""

    premise: str
    hypothesis: str
    label: int


def generate(num_rows: int, genre: str, seed: int) -> list[SentencePair]:
    """Draw rows of one genre: no pair twice, and every run of three rows holds the three labels.

    The same arguments give the same rows, and a larger `num_rows` continues the rows of a smaller one.
    """
    if num_rows < 1:
        raise AlignAttnError(f"the number of demo rows is {num_rows}: give at least 1")
    if genre not in GENRES:
        raise AlignAttnError(f"unknown demo genre {genre!r}: choose one of {', '.join(GENRES)}")
    rng = random.Random(f"{genre} {seed}")  # noqa: S311, the rows must be the same for a seed
    rows: dict[SentencePair, None] = {}  # a dict keeps the order, which a set does not
    while len(rows) < num_rows:
        rows[_draw_row(GENRES[genre], len(rows) % len(LABEL_NAMES), rng)] = None
    return list(rows)


def _draw_row(genre: Genre, label: int, rng: random.Random) -> SentencePair:
    """A hypothesis that has premises of all three labels, with its premise of the wanted one."""
    while True:
        hypothesis = Statement.draw(genre, rng)
        hypothesis_text = hypothesis.text(genre)
        premises: dict[int, str] = {}
        for _ in range(PREMISE_ATTEMPTS):
            premise = hypothesis.vary(genre, rng)
            if (text := premise.text(genre)) != hypothesis_text:
                premises.setdefault(hypothesis.label_from(premise, genre), text)
            if len(premises) == len(LABEL_NAMES):
                return SentencePair(premises[label], hypothesis_text, label)


def write_demo_data(folder: Path, *, train_rows: int, validation_rows: int, seed: int) -> None:
    """Write `<folder>/demo/{train,validation_fiction,validation_business}.parquet`, replacing older ones.

    The columns are premise, hypothesis and label. The training rows are fiction; no pair of them is in the
    validation rows, of which each file has `validation_rows`.
    """
    if min(train_rows, validation_rows) < 1:
        raise AlignAttnError(f"demo rows: {train_rows} train, {validation_rows} validation: give at least 1")
    in_domain = generate(train_rows + validation_rows, GENRE, seed)
    splits = {
        "train": in_domain[:train_rows],
        f"validation_{GENRE}": in_domain[train_rows:],
        f"validation_{OTHER_GENRE}": generate(validation_rows, OTHER_GENRE, seed),
    }
    task_folder = folder / TASK_FOLDER
    for split, rows in splits.items():
        _write_parquet(rows, task_folder / f"{split}.parquet")


def _write_parquet(rows: Sequence[SentencePair], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    with replacing(path) as temporary:
        pq.write_table(pa.Table.from_pylist([asdict(row) for row in rows]), temporary)
