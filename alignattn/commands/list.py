"""`alignattn list`: tables of the registries, with numbered references to papers and data sets."""

from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.finetuning.tables import TABLES
from alignattn.models import MODELS
from alignattn.models.packaged import PACKAGED
from alignattn.tasks.definitions import TASKS
from alignattn.utils.command import Command
from alignattn.utils.console import render_table
from alignattn.utils.options import PLACEHOLDERS, Options, option
from alignattn.utils.registry import Entry

WHAT = ("slots", "presets", "tasks", "models", "tables")

Source = tuple[str, str]
"""A source, and the place in it."""


@dataclass(frozen=True, kw_only=True)
class ListOptions(Options):
    """The options of `alignattn list`."""

    what: tuple[str, ...] = option(
        WHAT, f"{', '.join(WHAT)} (default: all).", choices=WHAT, positional=True, metavar="WHAT"
    )


def print_lists(options: ListOptions) -> None:
    """Print the requested lists and their sources."""
    numbers: dict[str, int] = {}
    for what in options.what:
        header, rows = _read_list(what)
        lines = []
        for cells, sources in rows:
            cited = ((numbers.setdefault(source, len(numbers) + 1), place) for source, place in sources if source)
            lines.append([*cells, ", ".join(f"[{number}] {place}".rstrip() for number, place in cited)])
        print(render_table([*header, "source"], lines, left=len(header) + 1), end="\n\n")
    for source, number in numbers.items():
        print(f"[{number}] {source}")


def _read_list(what: str) -> tuple[Sequence[str], list[tuple[Sequence[str], list[Source]]]]:
    """Return the header of a list, and the cells and sources of each line."""

    def source_of(entry: Entry) -> Source:
        return str(entry.reference or ""), entry.place or ""

    rows: list[tuple[Sequence[str], list[Source]]] = []
    match what:
        case "slots":
            for slot, choices in SLOTS.items():
                for name, entry in choices.items():
                    values = {
                        option.name: "|".join(map(str, option.choices)) or PLACEHOLDERS[option.types[0]] or "true|false"
                        for option in entry.options
                    }
                    usage = " ".join(f"{option}={value}" for option, value in values.items())
                    rows.append(((slot, name, entry.description, usage), [source_of(entry)]))
            return ("slot", "choice", "what it is", "options"), rows
        case "presets":
            for name, config in PRESETS.items():
                entries = [SLOTS[slot][getattr(config, slot)] for slot in config.filled_slots or ("normalizer",)]
                rows.append(((name, config.describe_slots() or "plain attention"), list(map(source_of, entries))))
            return ("preset", "choices"), rows
        case "tasks":
            for name, task in TASKS.items():
                rows.append(((name, task.kind, task.description), [(f"{task.citation}; licence: {task.licence}", "")]))
            return ("task", "kind", "description"), rows
        case "models":
            for name, model in MODELS.items():
                rows.append(((name, model.description), [source_of(model)]))
            for name, packaged in PACKAGED.items():
                rows.append(((name, f"{packaged.hub_id}, of the PyPI package {packaged.package}"), []))
            rows.append((("another name", "a pretrained encoder: a folder, or an id on the Hub"), []))
            return ("model", "what it is"), rows
        case _:
            for name, path in TABLES.items():
                table = yaml.safe_load(path.read_text(encoding="utf-8"))
                rows.append(((name, table["title"]), [(table.get("published_source", ""), "")]))
            return ("table", "title"), rows


COMMAND = Command(
    "list",
    "list the slots, presets, tasks, models and tables, with their sources",
    ListOptions,
    run="alignattn.commands.list:print_lists",
    examples=("alignattn list slots presets",),
)
