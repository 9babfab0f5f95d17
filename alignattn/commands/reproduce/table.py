"""A table as data: a YAML file, of `finetuning/tables` or custom, that defines its rows, columns and numbers.

    title: printed above the table
    published_source: source of the published numbers; omitted without them
    notes: sentences below the table
    preregistered: rules and predictions, with the commit that fixed them; kept as they are, and not read
    command: the command of `alignattn` whose runs fill the table, except for columns with their own command
    default_tasks: the columns if the user selects none; all if omitted
    seeds: number of runs per cell if the user gives none; 5 if omitted
    options: options of every run
    rows:      a list of
      options: options of the row's runs
      label: the printed label; if omitted, the options that distinguish the row from the others
      ensemble: true for the mean of the predictions of another row with the same options; it needs no runs of its own
      against: label of the baseline row; if omitted, the plain row that differs least
      primary: true for a row that was named before the runs were made; with the primary measures, its runs come first,
        and its comparisons are corrected separately from all others, which are exploratory
      seeds: maximum number of runs per cell of the row; the first seeds are used
      published: for each column a number, or a list with one per measure; null or omitted if unknown
    columns:   a list of
      label: the printed label
      command: the command whose runs fill the column; the table's if omitted
      config: optional; a file of configs/ without its ending, whose options come first
      options: options of the column's runs
      seeds: maximum number of runs per cell of the column
      measures: a list of `Measure` fields; `cost.seconds` and `cost.processor_seconds` are paths of every run

A cell is the intersection of a row and a measure of a column. Its runs have the options of the table, the config, the
column, the row and the user; later ones override earlier ones. To add a table, add a file.

A table of finished runs only (`kept`) is not checked against today's options: its rows may have options that later
versions no longer know, and its runs are those of the results folder that name the same options.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from itertools import product
from operator import itemgetter
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PLAIN_ATTENTION
from alignattn.commands.reproduce.definitions import COLUMN_OPTIONS, Column, PlannedCell, Row
from alignattn.commands.reproduce.experiment import (
    DATA_OPTION,
    MODEL_DIGEST_OPTION,
    MODEL_OPTION,
    SEED_OPTION,
    digest_value,
    experiments_of,
    option_text,
    owners_of,
    with_drawn_rows,
    with_unknown,
)
from alignattn.commands.reproduce.folder import KeptRuns
from alignattn.finetuning.options import STEPS_OR_SHARES
from alignattn.finetuning.run_folder import is_run_folder
from alignattn.finetuning.tables import TABLES
from alignattn.models import ModelCapabilities, capabilities_of
from alignattn.reports.measures import Definition
from alignattn.tasks.definitions import SUFFIXES, plain_name
from alignattn.utils.errors import AlignAttnError, one_line, unknown
from alignattn.utils.files import parse_yaml, read_text
from alignattn.utils.options import checked_values
from alignattn.utils.paths import model_digest

ATTENTION_OPTION = "attention"

DISPLACED: Mapping[str, Sequence[str]] = {
    MODEL_OPTION: ("model_config",),
    "num_train_epochs": ("max_steps", "warmup_steps"),
    "max_steps": ("warmup_steps",),
}
"""Options of a table that a user's option overrides: fields of another model, steps of another training length."""

EMBEDDINGS = "embeddings"
"""An option that applies only to rows whose models read word vectors."""

CONFIGS = resources.files("alignattn.configs")


class Table(Definition):
    """A table of a paper: see the module's text.

    Attributes:
        name: the name of its file.
        given: options that a user gave; they override all others.
        named_in_whole: for a narrowed table, the number of comparisons that the whole table names beforehand.
        kept: whether only finished runs fill it, so that its options are plain data.
    """

    name: str
    title: str
    published_source: str | None = None
    notes: Sequence[str] = ()
    preregistered: Mapping[str, str] = Field(default_factory=dict)
    command: str
    default_tasks: Sequence[str] | None = None
    seeds: int | None = Field(None, ge=1)
    options: Mapping[str, Any] = Field(default_factory=dict)
    rows: Sequence[Row] = Field(min_length=1)
    columns: Sequence[Column] = Field(min_length=1)
    given: Mapping[str, Any] = Field(default_factory=dict)
    named_in_whole: int | None = None
    kept: bool = False

    @model_validator(mode="after")
    def _check(self) -> Self:
        for column in self.columns:
            command = self.command_of(column)
            for options in (self.options, column.options, *(row.options for row in self.rows)):
                for name, value in _without(options, {ATTENTION_OPTION}).items() if not self.kept else ():
                    checked_values(owners_of([command], name)[0], {name: value})
                if SEED_OPTION in options:
                    raise ValueError(
                        f"{SEED_OPTION} has no effect, because each run has a seed of its own: "
                        "limit the runs by seeds, or give --seeds"
                    )
        labels = Counter(map(self.label, self.rows))
        if twice := next((label for label, count in labels.items() if count > 1), None):
            raise ValueError(f"two rows have the label {twice!r}: give them different labels")
        is_ensemble = {self.label(row): row.ensemble for row in self.rows}
        for against in filter(None, (row.against for row in self.rows)):
            if against not in is_ensemble:
                raise ValueError(f"a row is compared with {against!r}, but no row has that label")
            if is_ensemble[against]:
                raise ValueError(f"a row is compared with {against!r}, but an ensemble has no seeds to pair")
        for measure, row in product((measure for column in self.columns for measure in column.measures), self.rows):
            try:
                measure.keys(row.options)
            except (LookupError, ValueError) as error:
                raise ValueError(f"path {measure.path!r} names an option that row {self.label(row)!r} lacks") from error
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
        """The number of comparisons that were named before the runs were made, in the whole table."""
        if self.named_in_whole is not None:
            return self.named_in_whole
        rows = [row for row in self.rows if row.primary and self.baseline(row) is not None]
        return len(rows) * sum(measure.primary for column in self.columns for measure in column.measures)

    def command_of(self, column: Column) -> str:
        """Return the command whose runs fill a column."""
        return column.command or self.command

    @property
    def commands(self) -> list[str]:
        """The commands whose runs fill its columns, without duplicates."""
        return list(dict.fromkeys(map(self.command_of, self.columns)))

    def narrowed(
        self,
        *,
        tasks: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        attentions: Sequence[str] | None = None,
    ) -> "Table":
        """Return the table of the selected rows and columns; None selects all, or the default columns.

        Case, hyphens and underscores in the names are ignored.
        """
        _check_known(tasks, [column.name for column in self.columns], "--tasks", self.name)
        _check_known(models, [self.model_of(row) for row in self.rows], "--models", self.name)
        _check_known(attentions, [self.attention_of(row) for row in self.rows], "--attentions", self.name)
        tasks = self.default_tasks if tasks is None else tasks
        kept = [index for index, column in enumerate(self.columns) if _is_among(column.name, tasks)]
        selected = [
            place
            for place, row in enumerate(self.rows)
            if _is_among(self.model_of(row), models) and _is_among(self.attention_of(row), attentions)
        ]
        rows = [
            row.model_copy(update={"published": [row.published[index] for index in kept] if row.published else []})
            for row in (self.rows[place] for place in selected)
        ]
        if not rows:
            raise AlignAttnError(f"{self.name} has no row of these --models and --attentions: leave one of them out")
        columns = [self.columns[index] for index in kept]
        places = {old: new for new, old in enumerate(selected)}
        table = self._with_rows(rows, places, columns=columns, named_in_whole=self.named)
        for name in self.given:
            # An option that only omitted columns accept would have no effect.
            owners_of(table.commands, name)
        if EMBEDDINGS in self.given and not any(map(table.reads_embeddings, table.rows)):
            raise AlignAttnError(f"no model of these rows of {self.name} reads word vectors: leave --{EMBEDDINGS} out")
        return table

    def with_options(self, given: Mapping[str, Any]) -> "Table":
        """Return the table with a user's options, typed or as text; a model replaces every pretrained model.

        Rows that these options make equal become one: the first of them, with its published numbers.
        """
        of_rows = {name for row in self.rows for name in row.options}
        cells_own = {SEED_OPTION, *COLUMN_OPTIONS, *of_rows} - {MODEL_OPTION}
        for name in given:
            if name in cells_own:
                raise AlignAttnError(
                    f"--{name} distinguishes the runs of {self.name}: select runs with --tasks, --models, "
                    "--attentions, --seeds or --num_seeds"
                )
        for name, value in given.items():
            for options in owners_of(self.commands, name):
                checked_values(options, {name: value})
        given = {name: digest_value(owners_of(self.commands, name)[0], name, value) for name, value in given.items()}
        rows: list[Row] = []
        places: dict[int, int] = {}
        place_of_runs: dict[str, int] = {}
        twins: Counter[str] = Counter()
        for old, row in enumerate(self.rows):
            taken = given if self._loses_model_to(given, row) else _without(given, {MODEL_OPTION})
            model = {MODEL_OPTION: taken[MODEL_OPTION]} if MODEL_OPTION in taken.keys() & row.options.keys() else {}
            changed = row.model_copy(update={"options": _without_displaced(row.options, taken) | model})
            # A file may list runs twice, to compare them with two baselines: only rows that differed there become one.
            twin = twins[_runs_of(row)]
            twins[_runs_of(row)] += 1
            places[old] = place_of_runs.setdefault(f"{_runs_of(changed)} {twin}", len(rows))
            if places[old] == len(rows):
                rows.append(changed)
        return self._with_rows(rows, places, given=given)

    def _with_rows(self, rows: Sequence[Row], places: Mapping[int, int], **update: Any) -> "Table":
        """Return the table with other rows and fields; a row keeps the baseline that it names, whose label may change.

        Args:
            rows: the rows.
            places: the places of this table's rows among them, by their places here, without those left out.
            update: the other fields.
        """
        table = self.model_copy(update={"rows": rows, **update})
        labels = {self.label(self.rows[old]): table.label(rows[new]) for old, new in places.items()}
        named = [row.model_copy(update={"against": labels.get(row.against, row.against)}) for row in rows]
        return table.model_copy(update={"rows": named})

    def cells(self, seeds: Sequence[int], kept: KeptRuns | None = None) -> Iterator[PlannedCell]:
        """Yield the cells row by row, each with its runs.

        Args:
            seeds: the seeds of the runs.
            kept: the runs of the results folder.
        """
        for row in self.rows:
            labelled, plain = row.model_copy(update={"label": self.label(row)}), self.baseline(row)
            baseline = None if plain is None else self.label(plain)
            # A row that names its model already names the user's.
            loses_model = self._takes_given_model(row) and (
                MODEL_OPTION in row.options or self._loses_model_to(self.given, row)
            )
            taken = self.given if loses_model else _without(self.given, {MODEL_OPTION})
            for index, column in enumerate(self.columns):
                shared = _without_displaced({**self.options, **column.options}, taken)
                options = {**shared, **row.options, **self.given}
                if not self.capabilities(row).is_pretrained:
                    options[MODEL_OPTION] = self._own_model(row)
                elif MODEL_OPTION in options and is_run_folder(start := Path(options[MODEL_OPTION])):
                    options[MODEL_DIGEST_OPTION] = model_digest(start)
                if not self.reads_embeddings(row):
                    options = _without(options, {EMBEDDINGS})
                most = _fewest(row.seeds, column.seeds)
                # Where a user's rows lie is not what a run is.
                data_dir = options.pop(DATA_OPTION) if DATA_OPTION in self.given else None
                if not self.kept:
                    options = with_drawn_rows(options)
                experiments = [
                    run.with_rows_in(data_dir) for run in experiments_of(self.command_of(column), options, seeds[:most])
                ]
                if self.kept:
                    own = _without(options, set(self.given))
                    experiments = [with_unknown(experiment, own) for experiment in experiments]
                if kept is not None:
                    experiments = kept.find_all(experiments)
                planned = max(len(experiments), _fewest(most, self.seeds) or 0)
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
        """Return the baseline of a row: the row that it names, or the plain row that differs least.

        The plain row may lack options of the row, such as those of an alignment or of another method (`soft` with label
        smoothing is compared with `soft`), and differs in nothing else. None for a plain row without such options, a
        model without attention, and if there is no such baseline.
        """
        if row.against:
            return next((other for other in self.rows if self.label(other) == row.against), None)
        if not self.capabilities(row).has_attention:
            return None
        options = _without(row.options, {ATTENTION_OPTION})
        may_be_equal = row.ensemble or not self._is_plain(row)
        candidates = []
        for plain in self.rows:
            if plain is row or plain.ensemble or not self._is_plain(plain):
                continue
            shared = _without(plain.options, {ATTENTION_OPTION})
            is_part = all(options.get(name) == value for name, value in shared.items())
            if is_part and (may_be_equal or len(shared) < len(options)):
                candidates.append((len(shared), plain))
        return max(candidates, key=itemgetter(0), default=(0, None))[1]

    def attention_of(self, row: Row) -> str:
        """Return the attention of a row's runs; without an option for it, the row's model, or plain attention."""
        return "+".join(self._names_of_attention(row)) or str(row.options.get(MODEL_OPTION, PLAIN_ATTENTION))

    def _is_plain(self, row: Row) -> bool:
        return self._names_of_attention(row) in ([], [PLAIN_ATTENTION])

    def _names_of_attention(self, row: Row) -> list[str]:
        """Return the values of the options of a row that name its attention and slots."""
        options = {**self.options, **row.options}
        return [str(options[name]) for name in (ATTENTION_OPTION, *SLOTS) if name in options]

    def model_of(self, row: Row) -> str:
        """Return the model of the runs of a row."""
        return str(self.given[MODEL_OPTION]) if self._takes_given_model(row) else self._own_model(row)

    def capabilities(self, row: Row) -> ModelCapabilities:
        """Return the capabilities of a row's model in the table; a user's model replaces only pretrained ones."""
        return capabilities_of(self._own_model(row))

    def reads_embeddings(self, row: Row) -> bool:
        """Return whether the model of the runs of a row, which may be the user's, reads word vectors."""
        return capabilities_of(self.model_of(row)).reads_embeddings

    def _takes_given_model(self, row: Row) -> bool:
        """Return whether the runs of a row have the user's model, which its options may already name."""
        own, given = row.options.get(MODEL_OPTION), self.given.get(MODEL_OPTION)
        return given is not None and (own == given or self.capabilities(row).is_pretrained)

    def _loses_model_to(self, given: Mapping[str, Any], row: Row) -> bool:
        """Return whether a user's model replaces the model of a row by another; only pretrained ones are replaced."""
        if MODEL_OPTION not in given or not self.capabilities(row).is_pretrained:
            return False
        options = owners_of(self.commands, MODEL_OPTION)[0]
        return bool(given[MODEL_OPTION] != digest_value(options, MODEL_OPTION, self._own_model(row)))

    def _own_model(self, row: Row) -> str:
        return str(row.options.get(MODEL_OPTION, self.options.get(MODEL_OPTION)))


def load_table(name: str, *, kept: bool = False) -> Table:
    """Read a table's file: a shipped one by its name, or a custom one; `kept` as in `Table`."""
    if Path(name).suffix.lower() in SUFFIXES:
        return parse_table(Path(name).stem, read_text(Path(name)), kept=kept)
    if name not in TABLES:
        raise unknown("table", name, TABLES, ", or give a YAML file of your own")
    return parse_table(name, TABLES[name].read_text(encoding="utf-8"), kept=kept)


def parse_table(name: str, text: str, *, kept: bool = False) -> Table:
    """Return the table that a file describes; `kept` as in `Table`."""
    content = parse_yaml(text, f"table {name} is not valid: it")
    # Keep numbers as they are written: a paper's 78.80 is not 78.8.
    as_written = parse_yaml(text, f"table {name} is not valid: it", as_written=True)
    try:
        for row, written in zip(content["rows"], as_written["rows"], strict=True):
            if row.get("published") is not None:
                pairs = zip(row["published"], written["published"], strict=True)
                row["published"] = [_as_printed(numbers, texts) for numbers, texts in pairs]
        for column in content["columns"]:
            if config := column.pop("config", None):
                own = parse_yaml((CONFIGS / f"{config}.yaml").read_text(encoding="utf-8"), f"config {config}")
                column["options"] = own | column.get("options", {})
        return Table.model_validate(content | {"name": name, "kept": kept})
    except ValidationError as error:
        problem = error.errors()[0]
        place = ".".join(map(str, problem["loc"])) or "its content"
        raise AlignAttnError(f"table {name} is not valid: {place}: {problem['msg']}") from error
    except AlignAttnError:
        raise
    except (OSError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise AlignAttnError(f"table {name} is not valid: {one_line(error)}") from error


def _fewest(*numbers: int | None) -> int | None:
    return min((number for number in numbers if number is not None), default=None)


def _as_printed(numbers: Any, texts: Any) -> list[str | None]:
    """Return the texts of a column's published numbers, None for a null; its text has several forms."""
    if not isinstance(numbers, list):
        numbers, texts = [numbers], [texts]
    return [None if number is None else text for number, text in zip(numbers, texts, strict=True)]


def _check_known(wanted: Sequence[str] | None, known: Sequence[str], option: str, table: str) -> None:
    for name in wanted or ():
        if not _is_among(name, known):
            choices = ", ".join(dict.fromkeys(known))
            raise AlignAttnError(f"{option} {name!r} is not in {table}: choose one of {choices}")


def _is_among(name: str, wanted: Sequence[str] | None) -> bool:
    """Return whether a task, model or attention is selected; None selects all."""
    return wanted is None or plain_name(name) in map(plain_name, wanted)


def _without(options: Mapping[str, Any], names: set[str]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def _without_displaced(options: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table's options without those that a user's options override; a share of the steps fits any length."""
    displaced = {name for giver in given for name in DISPLACED.get(giver, ())}
    shares = {name for name in displaced.intersection(STEPS_OR_SHARES) if 0 < float(options.get(name, 0)) < 1}
    return _without(options, displaced - shares)


def _runs_of(row: Row) -> str:
    """Return what distinguishes the runs of a row from those of others."""
    return str((sorted(row.options.items()), row.ensemble))
