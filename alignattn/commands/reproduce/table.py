"""A table as data: a YAML file of `finetuning/tables`, or a user's own, says what its rows, columns and numbers are.

    title: above the table
    published_source: what the published numbers are of; left out where there are none
    notes: sentences below the table
    command: the command of `alignattn` whose runs fill the table, but for columns that name their own
    default_tasks: the columns where a user names none; all where left out
    seeds: how many of a cell's runs where a user names none; 5 where left out
    options: of every run
    rows:      a list of
      options: of the runs of the row
      run: a user's own program in place of the command: a list of its words, in which "{seed}", "{train_file}",
        "{test_file}" and "{output_dir}" stand for what it is given, or a function as FILE.py:NAME or MODULE:NAME,
        which has these parameters; of the options it reads those that say which rows there are
      label: as printed; where left out, the options that tell the row from the others
      ensemble: true for the mean of what the runs of another row of the same options predicted: it costs no run
      against: label of the row that it is compared with; where left out, the plain row that differs least
      primary: true for a row that was named before the runs were made: with the measures that were, too, it is run
        first and corrected apart from all others, which are exploratory
      seeds: most of a cell of it; of few seeds the first
      published: for each column a number, or a list of as many as it has measures; null or left out where unknown
    columns:   a list of
      label: as printed
      command: whose runs fill it; where left out, the table's
      config: a file of configs/ without its ending, whose options come first; may be left out
      options: of the runs of the column
      seeds: most of a cell of it
      measures: a list of what `Measure` holds; `cost.seconds` and `cost.processor_seconds` are paths of every run

A cell is where a row and a measure of a column meet: its runs have the options of the table, the config, the column and
the row, each over those before it, and last those that a user gives. To add a table is to add a file.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.reproduce.definitions import COLUMN_OPTIONS, Column, PlannedCell, Row
from alignattn.commands.reproduce.experiment import (
    MODEL_DIGEST_OPTION,
    MODEL_OPTION,
    SEED_OPTION,
    experiments_of,
    option_text,
)
from alignattn.commands.reproduce.given import digest_value, options_with_name
from alignattn.commands.reproduce.program import PROGRAM, RUN_DIGEST_OPTION, RUN_OPTION, run_digest
from alignattn.finetuning.run_folder import is_run_folder
from alignattn.finetuning.tables import TABLES
from alignattn.models import ModelCapabilities, capabilities_of
from alignattn.reports.measures import Definition
from alignattn.tasks import plain_name
from alignattn.utils.digests import model_digest
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import parse_yaml, read_text

ATTENTION_OPTION = "attention"

FINETUNE = "finetune"
"""The command in whose place a user's own program may run."""

DISPLACED: Mapping[str, Sequence[str]] = {
    MODEL_OPTION: ("model_config",),
    "num_train_epochs": ("max_steps", "warmup_steps"),
    "max_steps": ("warmup_steps",),
}
"""Options of a table that the user's option replaces: fields of another model, another length."""

EMBEDDINGS = "embeddings"
"""An option that applies only to rows whose models read word vectors."""

CONFIGS = resources.files("alignattn.configs")


class Table(Definition):
    """A table of a paper: see the module's text.

    Attributes:
        name: of its file.
        given: options that a user gave; they come last.
        named_in_whole: of a narrowed table, the comparisons that the whole one names beforehand.
    """

    name: str
    title: str
    published_source: str | None = None
    notes: Sequence[str] = ()
    command: str
    default_tasks: Sequence[str] | None = None
    seeds: int | None = Field(None, ge=1)
    options: Mapping[str, Any] = Field(default_factory=dict)
    rows: Sequence[Row] = Field(min_length=1)
    columns: Sequence[Column] = Field(min_length=1)
    given: Mapping[str, Any] = Field(default_factory=dict)
    named_in_whole: int | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        for column in self.columns:
            command, taker = self.command_of(column), self.taker_of(column)
            of_rows = [(self.command_of(column, row), row.options) for row in self.rows]
            for taking, options in ((taker, self.options), (taker, column.options), *of_rows):
                for name, value in _without(options, {ATTENTION_OPTION}).items():
                    options_with_name([taking], name)[0].checked(value)
            if command != FINETUNE and any(row.run for row in self.rows):
                raise ValueError(f"a row with run fills columns of {FINETUNE}, and {column.label} is of {command}")
        labels = Counter(map(self.label, self.rows))
        if twice := next((label for label, count in labels.items() if count > 1), None):
            raise ValueError(f"two rows have the label {twice!r}: give them different labels")
        is_ensemble = {row.label: row.ensemble for row in self.rows}
        for against in filter(None, (row.against for row in self.rows)):
            if against not in is_ensemble:
                raise ValueError(f"a row is compared with {against!r}, but no row has that label")
            if is_ensemble[against]:
                raise ValueError(f"a row is compared with {against!r}, but an ensemble has no seeds to pair")
        measures = [len(column.measures) for column in self.columns]
        for row in self.rows:
            # A single null stands for all measures of its column.
            counts = zip(row.published, measures, strict=False)
            published = [count if numbers == [None] else len(numbers) for numbers, count in counts]
            if row.published and (published != measures or len(row.published) != len(measures)):
                raise ValueError(f"a row has {published} published numbers for {measures} measures")
        return self

    @property
    def named(self) -> int:
        """How many comparisons were named before the runs were made, in the whole table."""
        if self.named_in_whole is not None:
            return self.named_in_whole
        rows = [row for row in self.rows if row.primary and self.baseline(row) is not None]
        return len(rows) * sum(measure.primary for column in self.columns for measure in column.measures)

    def command_of(self, column: Column, row: Row | None = None) -> str:
        """Return the command whose runs fill a column, or its cell of a row."""
        return PROGRAM if row is not None and row.run else column.command or self.command

    @property
    def commands(self) -> list[str]:
        """The commands whose runs fill its columns, each once."""
        return list(dict.fromkeys(map(self.taker_of, self.columns)))

    def taker_of(self, column: Column) -> str:
        """Return the command that takes the options of a column: its own, unless every row is a user's program."""
        return PROGRAM if all(row.run for row in self.rows) else self.command_of(column)

    def narrowed(
        self,
        *,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        attentions: Sequence[str] | None = None,
    ) -> "Table":
        """Return the rows and columns that are asked for; None asks for all, or for the default columns.

        Case, hyphens and underscores do not count in the names.
        """
        _check_known(tasks, [column.name for column in self.columns], "--tasks", self.name)
        _check_known(models, [self.model_of(row) for row in self.rows], "--models", self.name)
        _check_known(attentions, [attention_of(row) for row in self.rows], "--attentions", self.name)
        tasks = self.default_tasks if tasks is None else tasks
        kept = [index for index, column in enumerate(self.columns) if _is_among(column.name, tasks)]
        rows = [
            row.model_copy(update={"published": [row.published[index] for index in kept] if row.published else []})
            for row in self.rows
            if _is_among(self.model_of(row), models) and _is_among(attention_of(row), attentions)
        ]
        if not rows:
            raise AlignAttnError(f"{self.name} has no row of these --models and --attentions: leave one of them out")
        columns = [self.columns[index] for index in kept]
        table = self.model_copy(update={"rows": rows, "columns": columns, "named_in_whole": self.named})
        for name in self.given:
            # An option that only left-out columns take would have no effect.
            options_with_name(table.commands, name)
        return table

    def with_options(self, given: Mapping[str, Any]) -> "Table":
        """Return the table with options that a user gives, typed or as text; a model replaces every pretrained one.

        Rows that differed in their model alone become one, that of the first: what is published of it stays.
        """
        of_rows = {name for row in self.rows for name in (*row.options, *([RUN_OPTION] if row.run else []))}
        cells_own = {SEED_OPTION, *COLUMN_OPTIONS, *of_rows} - {MODEL_OPTION}
        for name in given:
            if name in cells_own:
                raise AlignAttnError(
                    f"--{name} distinguishes the runs of {self.name}: select runs with --tasks, --models, "
                    "--attentions, --seeds or --num_seeds"
                )
        for name, value in given.items():
            for option in options_with_name(self.commands, name):
                option.checked(value)
        given = {name: digest_value(options_with_name(self.commands, name)[0], value) for name, value in given.items()}
        displaced = {name for giver in given for name in DISPLACED.get(giver, ())}
        rows: dict[str, Row] = {}
        for row in self.rows:
            takes_given = MODEL_OPTION in given and MODEL_OPTION in row.options and self.capabilities(row).is_pretrained
            model = {MODEL_OPTION: given[MODEL_OPTION]} if takes_given else {}
            options = _without(row.options, displaced) | model
            key = str((row.run, sorted(options.items()), row.ensemble))
            rows.setdefault(key, row.model_copy(update={"options": options}))
        columns = [
            column.model_copy(update={"options": _without(column.options, displaced)}) for column in self.columns
        ]
        return self.model_copy(
            update={
                "rows": list(rows.values()),
                "columns": columns,
                "options": _without(self.options, displaced),
                "given": given,
            }
        )

    def cells(self, seeds: Sequence[int]) -> Iterator[PlannedCell]:
        """Yield the cells row by row, each with its runs."""
        for row in self.rows:
            labelled, plain = row.model_copy(update={"label": self.label(row)}), self.baseline(row)
            baseline = None if plain is None else self.label(plain)
            for index, column in enumerate(self.columns):
                options = {**self.options, **column.options, **row.options, **self.given}
                if not self.capabilities(row).is_pretrained:
                    options[MODEL_OPTION] = self._own_model(row)
                elif MODEL_OPTION in options and is_run_folder(start := Path(options[MODEL_OPTION])):
                    options[MODEL_DIGEST_OPTION] = model_digest(start)
                if not self.capabilities(row).reads_embeddings:
                    options = _without(options, {EMBEDDINGS})
                most = _fewest(row.seeds, column.seeds)
                if row.run:
                    options |= {RUN_OPTION: row.run, RUN_DIGEST_OPTION: run_digest(row.run)}
                experiments = experiments_of(self.command_of(column, row), options, seeds[:most])
                has_seeds = SEED_OPTION in experiments[0].all_options
                planned = max(len(experiments), (_fewest(most, self.seeds) or 0) if has_seeds else 0)
                published = row.published[index] if row.published else [None]
                for place, measure in enumerate(column.measures):
                    number = None if published == [None] else published[place]
                    yield PlannedCell(labelled, column, measure, experiments, planned, number, baseline)

    def label(self, row: Row) -> str:
        """Return the label of a row: its options, without those that all rows share."""
        names = [name for name in row.options if len({str(other.options.get(name)) for other in self.rows}) > 1]
        label = ", ".join(option_text(name, row.options[name]) for name in names or row.options)
        return row.label or (f"{label}, ensemble" if row.ensemble else label)

    def baseline(self, row: Row) -> Row | None:
        """Return the row that a row is compared with: the one it names, or of plain attention that differs least.

        A user's own program is compared with a row that it names alone.

        That row may lack options that the other has, as those of an alignment, or of what is tried in its place
        (`soft` with label smoothing is compared with `soft`), and differs in nothing else. None for a plain row that
        has nothing more than another, and where there is no such row.
        """
        if row.against:
            return next((other for other in self.rows if other.label == row.against), None)
        if row.run or not self.capabilities(row).has_attention:
            return None
        is_plain = attention_of(row) == PLAIN_ATTENTION
        candidates = [
            plain
            for plain in self.rows
            if plain.options.get(ATTENTION_OPTION) == PLAIN_ATTENTION
            and not plain.ensemble
            and plain is not row
            and all(row.options.get(name) == value for name, value in plain.options.items() if name != ATTENTION_OPTION)
            and (row.ensemble or not is_plain or len(plain.options) < len(row.options))
        ]
        return max(candidates, key=lambda plain: len(plain.options), default=None)

    def model_of(self, row: Row) -> str:
        """Return the model of the runs of a row; of a user's own program its label."""
        if row.run:
            return row.label
        return str(row.options.get(MODEL_OPTION, self.given.get(MODEL_OPTION, self.options.get(MODEL_OPTION))))

    def capabilities(self, row: Row) -> ModelCapabilities:
        """Return the capabilities of a row's model, as in the table; a user's model replaces pretrained ones."""
        return capabilities_of(self._own_model(row))

    def _own_model(self, row: Row) -> str:
        return str(row.options.get(MODEL_OPTION, self.options.get(MODEL_OPTION)))


def load_table(name: str) -> Table:
    """Read a table's file: a shipped one by its name, or a user's own."""
    if name.endswith(".yaml"):
        return parse_table(Path(name).stem, read_text(Path(name)))
    if name not in TABLES:
        choices = ", ".join(TABLES)
        raise AlignAttnError(f"unknown table {name!r}: choose one of {choices}, or give a YAML file of your own")
    return parse_table(name, TABLES[name].read_text(encoding="utf-8"))


def parse_table(name: str, text: str) -> Table:
    """Return the table that a file describes."""
    content = parse_yaml(text, f"table {name} is not valid: it")
    # Numbers as they are written: a paper's 78.80 is not 78.8.
    as_written = parse_yaml(text, f"table {name} is not valid: it", as_written=True)
    try:
        for row, written in zip(content["rows"], as_written["rows"], strict=True):
            if row.get("published") is not None:
                row["published"] = [_as_printed(entry) for entry in written["published"]]
        for column in content["columns"]:
            if config := column.pop("config", None):
                own = parse_yaml((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"), f"config {config}")
                column["options"] = own | column.get("options", {})
        return Table.model_validate(content | {"name": name})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "its content"
        raise AlignAttnError(f"table {name} is not valid: {place}: {problem['msg']}") from error
    except AlignAttnError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise AlignAttnError(f"table {name} is not valid: {one_line(error)}") from error


def attention_of(row: Row) -> str:
    """Return the attention of the runs of a row; that of a model without layers of attention is the model's own.

    That of a user's own program is its label.
    """
    if row.run:
        return row.label
    return str(row.options.get(ATTENTION_OPTION, row.options.get(MODEL_OPTION, PLAIN_ATTENTION)))


def _fewest(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _as_printed(entry: Any) -> list[str | None]:
    """The texts of a column's published numbers; `null`, as any number, is a text here."""
    return [None if number == "null" else number for number in (entry if isinstance(entry, list) else [entry])]


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
