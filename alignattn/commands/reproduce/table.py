"""A table as data: a YAML file in `data/` says what its rows, columns and numbers are, and which runs fill it.

    title: above the table
    published_source: what the published numbers are of; left out where there are none
    notes: sentences below the table
    command: the command of `alignattn` whose runs fill the table
    default_tasks: the columns where a user names none; all where left out
    options: of every run
    rows:      a list of
      options: of the runs of the row; they also name it
      published: for each column a number, or a list of as many as it has measures; null or left out where unknown
    columns:   a list of
      label: as printed
      config: a file of configs/ without its ending, whose options come first; may be left out
      options: of the runs of the column
      measures: a list of label, path (keys joined by dots, to the number in what a run measured; `{attention}` stands
        for the row's), unit and is_better (see `filled.MeasureHeading`; percent and higher where left out)

A cell is where a row and a column meet: its runs have the options of the table, the config, the column and the row,
each over those before it, and last those that a user gives. To add a table is to add a file.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from typing import Any

import yaml

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.reproduce.experiment import Experiment, model_label
from alignattn.commands.reproduce.filled import ColumnHeading, Heading, MeasureHeading
from alignattn.commands.reproduce.fillers import COMMANDS, Command
from alignattn.models import Traits, traits_of
from alignattn.support.errors import AlignAttnError
from alignattn.support.options import did_you_mean
from alignattn.tasks import plain_name

ATTENTION, MODEL, SEED = "attention", "model", "seed"
COLUMN_OPTIONS = ("task", "pair")
"""Options that name a column; the first that it has."""

DISPLACED: Mapping[str, Sequence[str]] = {
    MODEL: ("model_config",),
    "num_train_epochs": ("max_steps", "warmup_steps"),
    "max_steps": ("warmup_steps",),
}
"""Options of a table that no longer hold where a user gives the first: fields of another model, another length."""

EMBEDDINGS = "embeddings"
"""The option that a user gives for the rows whose models read word vectors; others do not take it."""

_ROOT = resources.files("alignattn.commands.reproduce")
_CONFIGS = resources.files("alignattn.configs")


@dataclass(frozen=True)
class Measure:
    """A number below a column.

    Attributes:
        heading: as printed.
        path: the keys that lead to it in what a run measured.
    """

    heading: MeasureHeading
    path: tuple[str, ...]


@dataclass(frozen=True)
class Row:
    """A row.

    Attributes:
        options: of its runs, which name it.
        published: by column and measure, as the paper prints it; None where it does not.
    """

    options: Mapping[str, Any]
    published: Sequence[Sequence[str | None]]


@dataclass(frozen=True)
class Column:
    """A column.

    Attributes:
        label: as printed.
        options: of its runs.
        measures: the numbers below it.
    """

    label: str
    options: Mapping[str, Any]
    measures: Sequence[Measure]

    @property
    def name(self) -> str:
        """The task or pair; the label where there is neither."""
        return next((str(self.options[name]) for name in COLUMN_OPTIONS if name in self.options), self.label)

    @property
    def heading(self) -> ColumnHeading:
        """What the renderers know of it."""
        return ColumnHeading(self.name, self.label, tuple(measure.heading for measure in self.measures))


@dataclass(frozen=True)
class Cell:
    """Where a row and a column meet.

    Attributes:
        row: the row.
        column: the column.
        published: one a measure.
        experiments: one a seed; one alone where the command has no seeds.
    """

    row: Row
    column: Column
    published: Sequence[str | None]
    experiments: Sequence[Experiment]


@dataclass(frozen=True)
class Table:
    """A table of a paper: see the module's text.

    Attributes:
        name: of its file.
        title: above it.
        published_source: what the published numbers are of, or None.
        notes: below it.
        command: whose runs fill it.
        options: of every run.
        rows: in order.
        columns: in order.
        default_tasks: names of the columns where a user names none; None for all.
        given: options that a user gave; they come last.
    """

    name: str
    title: str
    published_source: str | None
    notes: Sequence[str]
    command: Command
    options: Mapping[str, Any]
    rows: Sequence[Row]
    columns: Sequence[Column]
    default_tasks: Sequence[str] | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    def narrowed(
        self,
        *,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        attentions: Sequence[str] | None = None,
    ) -> "Table":
        """Return the rows and columns that are asked for; None asks for all, or for the default columns.

        Case, hyphens and underscores do not count in the names.

        Raises:
            AlignAttnError: if one that is asked for is not in the table.
        """
        _check_known(tasks, [column.name for column in self.columns], "--tasks", self.name)
        _check_known(models, [self.model_of(row) for row in self.rows], "--models", self.name)
        _check_known(attentions, [attention_of(row) for row in self.rows], "--attentions", self.name)
        tasks = self.default_tasks if tasks is None else tasks
        kept = [index for index, column in enumerate(self.columns) if _is_among(column.name, tasks)]
        rows = [
            replace(row, published=[row.published[index] for index in kept])
            for row in self.rows
            if _is_among(self.model_of(row), models) and _is_among(attention_of(row), attentions)
        ]
        if not rows:
            raise AlignAttnError(f"{self.name} has no row of these --models and --attentions: leave one of them out")
        return replace(self, rows=rows, columns=[self.columns[index] for index in kept])

    def with_given(self, given: Mapping[str, Any]) -> "Table":
        """Return the table with options that a user gives; a model takes the place of every pretrained one.

        Rows that differed in their model alone become one, that of the first: what is published of it stays.

        Raises:
            AlignAttnError: if the table's commands have no option of that name, or it is what tells the cells apart.
        """
        cells_own = {SEED, *COLUMN_OPTIONS, *(name for row in self.rows for name in row.options)} - {MODEL}
        known = self.command.all_options
        for name in given:
            if name in cells_own:
                raise AlignAttnError(
                    f"--{name} is what tells the runs of {self.name} apart: narrow it with --tasks, --models, "
                    "--attentions and --seeds"
                )
            if name not in known:
                raise AlignAttnError(f"--{name} is no option of {self.command.name}{did_you_mean(name, sorted(known))}")
        displaced = {name for giver in given for name in DISPLACED.get(giver, ())}
        rows: dict[str, Row] = {}
        for row in self.rows:
            takes_given = MODEL in given and MODEL in row.options and traits_of_row(row).is_pretrained
            model = {MODEL: given[MODEL]} if takes_given else {}
            row = replace(row, options=_without(row.options, displaced) | model)
            rows.setdefault(str(sorted(row.options.items())), row)
        columns = [replace(column, options=_without(column.options, displaced)) for column in self.columns]
        options = _without(self.options, displaced)
        return replace(self, rows=list(rows.values()), columns=columns, options=options, given=dict(given))

    def cells(self, seeds: Sequence[int]) -> Iterator[Cell]:
        """Yield the cells row by row, each with its runs."""
        for row in self.rows:
            for index, column in enumerate(self.columns):
                options = {**self.options, **column.options, **row.options, **self.given}
                if not traits_of_row(row).is_pretrained:
                    options[MODEL] = row.options[MODEL]
                if not traits_of_row(row).reads_embeddings:
                    options = _without(options, {EMBEDDINGS})
                experiments = self.command.experiments(options, seeds)
                yield Cell(row, column, row.published[index], experiments)

    def heading(self, row: Row) -> Heading:
        """Return what the renderers know of a row: its options, without those that all rows share."""
        names = [name for name in row.options if len({str(other.options.get(name)) for other in self.rows}) > 1]
        label = ", ".join(_label(name, row.options[name]) for name in names or row.options)
        return Heading(label, label)

    def baseline(self, row: Row) -> Row | None:
        """Return the row of plain attention that a row is compared with: the one that differs in nothing else.

        That row may lack options that only alignments have. None for a plain row, and where there is no such row.
        """
        if attention_of(row) == PLAIN_ATTENTION or not traits_of_row(row).has_attention:
            return None
        return next(
            (
                plain
                for plain in self.rows
                if plain.options.get(ATTENTION) == PLAIN_ATTENTION
                and all(row.options.get(name) == value for name, value in plain.options.items() if name != ATTENTION)
            ),
            None,
        )

    def model_of(self, row: Row) -> str:
        """Return the model of the runs of a row."""
        return str(row.options.get(MODEL, self.given.get(MODEL, self.options.get(MODEL))))


def table_names() -> list[str]:
    """Return the names of the tables that there are."""
    return sorted(path.name.removesuffix(".yaml") for path in (_ROOT / "tables").iterdir())


def load_table(name: str) -> Table:
    """Read a table's file.

    Raises:
        AlignAttnError: if there is no table of that name.
    """
    if name not in table_names():
        raise AlignAttnError(f"unknown table {name!r}: choose one of {', '.join(table_names())}")
    return parse_table(name, (_ROOT / "tables" / f"{name}.yaml").read_text(encoding="utf-8"))


def parse_table(name: str, text: str) -> Table:
    """Return the table that a file describes."""
    content = yaml.safe_load(text)
    # Numbers as they are written: a paper's 78.80 is not 78.8.
    published = [row.get("published") for row in yaml.load(text, Loader=yaml.BaseLoader)["rows"]]  # noqa: S506
    columns = [_parse_column(column) for column in content["columns"]]
    return Table(
        name=name,
        title=content["title"],
        published_source=content.get("published_source"),
        notes=content.get("notes", []),
        command=COMMANDS[content["command"]],
        options=content.get("options", {}),
        rows=[
            Row(row["options"], _parse_published(numbers, columns))
            for row, numbers in zip(content["rows"], published, strict=True)
        ],
        columns=columns,
        default_tasks=content.get("default_tasks"),
    )


def attention_of(row: Row) -> str:
    """Return the attention of the runs of a row; that of a model without layers of attention is the model's own."""
    return str(row.options.get(ATTENTION, row.options.get(MODEL, PLAIN_ATTENTION)))


def traits_of_row(row: Row) -> Traits:
    """Return what the model that a row names says of itself; of a row that names none what an encoder does."""
    return traits_of(row.options.get(MODEL, ""))


def _parse_column(content: Mapping[str, Any]) -> Column:
    config = yaml.safe_load((_CONFIGS / f"{content['config']}.yaml").read_text()) if "config" in content else {}
    measures = [
        Measure(
            MeasureHeading(entry["path"], entry["label"], **{k: entry[k] for k in ("unit", "is_better") if k in entry}),
            tuple(entry["path"].split(".")),
        )
        for entry in content["measures"]
    ]
    return Column(content["label"], config | content.get("options", {}), measures)


def _parse_published(numbers: Sequence[Any] | None, columns: Sequence[Column]) -> list[list[str | None]]:
    """The texts of the published numbers by column and measure; `null`, as any number, is a text here."""
    if numbers is None:
        numbers = [["null"] * len(column.measures) for column in columns]
    by_column = [entry if isinstance(entry, list) else [entry] for entry in numbers]
    return [
        [
            None if number == "null" else number
            for number in (entry * len(column.measures) if entry == ["null"] else entry)
        ]
        for entry, column in zip(by_column, columns, strict=True)
    ]


def _check_known(wanted: Sequence[str] | None, known: Sequence[str], option: str, table: str) -> None:
    for name in wanted or ():
        if not _is_among(name, known):
            choices = ", ".join(dict.fromkeys(known))
            raise AlignAttnError(f"{option} {name!r} is not in {table}: choose one of {choices}")


def _is_among(name: str, wanted: Sequence[str] | None) -> bool:
    """Whether a task, model or attention is one of those wanted; None wants all."""
    return wanted is None or plain_name(name) in map(plain_name, wanted)


def _without(options: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _label(name: str, value: Any) -> str:
    if isinstance(value, list):
        return " ".join(map(str, value))
    if name == MODEL:
        return model_label(str(value))
    return f"λ {value}" if name == "alignment_weight" else str(value)
