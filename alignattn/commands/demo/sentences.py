"""The pairs of sentences that the demo trains on: of the documentation of installed packages, or of `--data_dir`.

Both sources give the same files: `<folder>/demo/{train,validation_<domain>,validation_<other domain>}.parquet`. One
domain is trained on; the other shows what a shift does.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.commands.demo import DemoOptions
from alignattn.commands.demo.documentation import NETWORKS, NUMERICS, documentation_rows
from alignattn.tasks import Task, get_task
from alignattn.tasks.definitions import write_definition
from alignattn.tasks.rows import load_rows, max_samples
from alignattn.tasks.task import TRAIN, Sources
from alignattn.tasks.task_types import TextClassification
from alignattn.utils.files import replacing

TASK_FOLDER = "demo"
FIRST_TEXT, SECOND_TEXT, LABEL = "first", "second", "label"


@dataclass(frozen=True)
class Sentences:
    """Labelled pairs of sentences of two domains.

    Attributes:
        name: of their task.
        said: what they are, for the line that is printed, the table and the picture.
        domains: the one that is trained on, and the other.
        labels: what the task's labels say.
        write: writes the files of a folder as the options say.
    """

    name: str
    said: str
    domains: tuple[str, str]
    labels: tuple[str, str]
    write: Callable[[Path, DemoOptions], None]

    @property
    def splits(self) -> tuple[str, str]:
        """The evaluation splits, of each domain one."""
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
            description=self.said,
        )
        path = folder / f"{self.name}.yaml"
        write_definition(path, task)
        return str(path)


def sentences_of(options: DemoOptions) -> Sentences:
    """Return the questions and tweets of `--data_dir`, or else the sentences of the documentation."""
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
    """The rows in the columns that all sentences have."""
    assert isinstance(task, TextClassification)
    names = (*task.text_columns, task.label_column)
    return rows.select_columns(list(names)).with_format("arrow")[:].rename_columns([FIRST_TEXT, SECOND_TEXT, LABEL])


def _write_documentation(folder: Path, options: DemoOptions) -> None:
    counts = {NUMERICS: options.train_rows + options.validation_rows, NETWORKS: options.validation_rows}
    first, other = (
        pa.Table.from_pylist([asdict(row) for row in documentation_rows(domain, count, options.seed)])
        for domain, count in counts.items()
    )
    _write(folder, DOCUMENTATION, [first[: options.train_rows], first[options.train_rows :], other])


def _write(folder: Path, sentences: Sentences, tables: Sequence[pa.Table]) -> None:
    for split, table in zip((TRAIN, *sentences.splits), tables, strict=True):
        with replacing(folder / TASK_FOLDER / f"{split}.parquet") as temporary:
            pq.write_table(table, temporary)


QUESTIONS = Sentences(
    "questions",
    "pairs of questions of Quora that ask the same or not, and out of domain pairs of tweets",
    ("questions", "tweets"),
    ("not_duplicate", "duplicate"),
    _write_questions,
)
DOCUMENTATION = Sentences(
    "documentation",
    "sentences of the documentation of installed packages, where the second follows the first or does not",
    (NUMERICS, NETWORKS),
    ("elsewhere", "next"),
    _write_documentation,
)
