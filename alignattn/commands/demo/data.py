"""The sentence pairs that the demo trains on: from the documentation of installed packages, or from `--data_dir`.

Both sources write the same files: `<folder>/demo/{train,validation_<domain>,validation_<other domain>}.parquet`. The
demo trains on one domain; the other shows the effect of a shift. The packages' files are read, and nothing is imported.
The sentences depend on the packages' versions, which `constraints.txt` pins for the training domain.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.commands.demo import DemoOptions
from alignattn.tasks import Task, get_task
from alignattn.tasks.definitions import write_definition
from alignattn.tasks.rows import load_rows, max_samples
from alignattn.tasks.task import TRAIN, Sources
from alignattn.tasks.task_types import TextClassification
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import replacing

TASK_FOLDER = "demo"
FIRST_TEXT, SECOND_TEXT, LABEL = "first", "second", "label"

NUMERICS, NETWORKS = "numerics", "networks"
PACKAGES: Mapping[str, tuple[str, ...]] = {NUMERICS: ("numpy", "scipy", "sklearn"), NETWORKS: ("networkx",)}
"""Packages whose documentation makes up a domain; alignattn and torch require them."""

MIN_WORDS, MAX_WORDS = 6, 24
SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()-]*[.]")
"""Plain English: no formulas, references or markup."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
PARAGRAPH_END = re.compile(r"\n\s*\n")
NO_PROSE = (">>>", "..", "---", "===", " : ")
"""Marks of examples, directives, headings and lists of parameters."""
TESTS = "tests"


@dataclass(frozen=True)
class DemoData:
    """Labelled pairs of sentences of two domains.

    Attributes:
        name: name of the task.
        description: description of the pairs for the output, the table and the picture.
        domains: the training domain, and the other.
        labels: names of the task's labels.
        write: function that writes the files to a folder, by the options.
    """

    name: str
    description: str
    domains: tuple[str, str]
    labels: tuple[str, str]
    write: Callable[[Path, DemoOptions], None]

    @property
    def splits(self) -> tuple[str, str]:
        """The evaluation splits, one per domain."""
        first, other = (f"validation_{domain}" for domain in self.domains)
        return first, other

    def write_task(self, folder: Path) -> str:
        """Write the definition of the rows' task into a folder and return its path."""
        task = TextClassification(
            name=self.name,
            text_columns=(FIRST_TEXT, SECOND_TEXT),
            label_column=LABEL,
            labels=self.labels,
            metrics=("accuracy",),
            evaluation_splits=self.splits,
            sources=Sources(folder=TASK_FOLDER),
            description=self.description,
        )
        path = folder / f"{self.name}.yaml"
        write_definition(path, task)
        return str(path)


def demo_data(options: DemoOptions) -> DemoData:
    """Return the questions and tweets of `--data_dir`, or without it the sentences of the documentation."""
    return DOCUMENTATION if options.data_dir is None else QUESTIONS


def _write_questions(folder: Path, options: DemoOptions) -> None:
    first = load_rows(get_task("qqp"), data_dir=options.data_dir)
    other = load_rows(get_task("twitterppdb"), need_train=False, data_dir=options.data_dir)
    assert first.train is not None
    counted: list[tuple[Task, datasets.Dataset, int]] = [(first.task, first.train, options.train_rows)]
    for loaded in (first, other):
        (split,) = loaded.evaluation.values()
        counted.append((loaded.task, split, options.validation_rows))
    tables = [_renamed(task, max_samples(task, rows, count)) for task, rows, count in counted]
    _write(folder, QUESTIONS, tables)


def _renamed(task: Task, rows: datasets.Dataset) -> pa.Table:
    """The rows with the column names of the demo."""
    assert isinstance(task, TextClassification)
    names = (*task.text_columns, task.label_column)
    return rows.select_columns(list(names)).with_format("arrow")[:].rename_columns([FIRST_TEXT, SECOND_TEXT, LABEL])


def _write_documentation(folder: Path, options: DemoOptions) -> None:
    counts = {NUMERICS: options.train_rows + options.validation_rows, NETWORKS: options.validation_rows}
    first, other = (
        pa.Table.from_pylist(documentation_rows(domain, count, options.seed)) for domain, count in counts.items()
    )
    _write(folder, DOCUMENTATION, [first[: options.train_rows], first[options.train_rows :], other])


def _write(folder: Path, data: DemoData, tables: Sequence[pa.Table]) -> None:
    for split, table in zip((TRAIN, *data.splits), tables, strict=True):
        with replacing(folder / TASK_FOLDER / f"{split}.parquet") as temporary:
            pq.write_table(table, temporary)


def documentation_rows(domain: str, count: int, seed: int) -> list[dict[str, Any]]:
    """Sample rows of a domain: in every other row, with `label` 1, the second sentence follows the first.

    Args:
        domain: a key of `PACKAGES`.
        count: number of rows.
        seed: seed of the sample.

    Raises:
        AlignAttnError: if the documentation has fewer pairs than `count`.
    """
    pairs = list(_pairs(domain))
    if count > len(pairs):
        raise AlignAttnError(
            f"the documentation has {len(pairs)} pairs of sentences of {domain}, and the demo needs {count}: lower "
            "--train_rows or --validation_rows"
        )
    rng = random.Random(f"{domain} {seed}")  # noqa: S311, the rows must be the same for a seed
    rng.shuffle(pairs)
    rows = []
    for number, (first, second) in enumerate(pairs[:count]):
        label = number % 2
        others = pairs[number + 1 :] + pairs[:number]
        second = second if label else rng.choice(others)[1]
        rows.append({FIRST_TEXT: first, SECOND_TEXT: second, LABEL: label})
    return rows


@cache
def _pairs(domain: str) -> tuple[tuple[str, str], ...]:
    """All pairs of a domain, one per second sentence."""
    found: dict[str, str] = {}
    for package in PACKAGES[domain]:
        for paragraph in _paragraphs(package):
            sentences = SENTENCE_END.split(" ".join(paragraph.split()))
            for first, second in pairwise(sentences):
                if _is_plain(first) and _is_plain(second):
                    found.setdefault(second, first)
    return tuple((first, second) for second, first in found.items())


def _is_plain(sentence: str) -> bool:
    return MIN_WORDS <= len(sentence.split()) <= MAX_WORDS and SENTENCE.fullmatch(sentence) is not None


def _paragraphs(package: str) -> Iterator[str]:
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            if TESTS in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    for paragraph in PARAGRAPH_END.split(ast.get_docstring(node) or ""):
                        if not any(mark in paragraph for mark in NO_PROSE):
                            yield paragraph


QUESTIONS = DemoData(
    "questions",
    "pairs of questions from Quora that are duplicates or not, and, out of domain, pairs of tweets",
    ("questions", "tweets"),
    ("not_duplicate", "duplicate"),
    _write_questions,
)
DOCUMENTATION = DemoData(
    "documentation",
    "pairs of sentences from the documentation of installed packages, where the second follows the first or not",
    (NUMERICS, NETWORKS),
    ("elsewhere", "next"),
    _write_documentation,
)
