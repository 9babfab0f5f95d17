"""Tables of the registries, with numbered references to papers and data sets."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import yaml

from alignattn.attention.choices import SLOTS
from alignattn.attention.config import PRESETS
from alignattn.commands.list import ListOptions
from alignattn.finetuning.tables import TABLES
from alignattn.models import MODELS
from alignattn.models.packaged import PACKAGED
from alignattn.tasks import TASKS
from alignattn.utils.option import PLACEHOLDERS, Option
from alignattn.utils.registry import Entry
from alignattn.utils.text_tables import render_table

Listing = tuple[Sequence[str], Sequence[tuple[str, str]]]
"""The cells of a line, and its sources, each with the place in the source."""


def print_lists(options: ListOptions) -> None:
    """Print the requested lists and their sources."""
    numbers: dict[str, int] = {}
    for what in options.what:
        header, rows = LISTS[what]
        lines = [[*cells, _cite(sources, numbers)] for cells, sources in rows()]
        print(render_table([*header, "source"], lines, left=len(header) + 1), end="\n\n")
    for source, number in numbers.items():
        print(f"[{number}] {source}")


def _cite(sources: Sequence[tuple[str, str]], numbers: dict[str, int]) -> str:
    cited = ((numbers.setdefault(source, len(numbers) + 1), place) for source, place in sources if source)
    return ", ".join(f"[{number}] {place}".rstrip() for number, place in cited)


def _source(entry: Entry) -> tuple[str, str]:
    return str(entry.reference or ""), entry.place or ""


def _slots() -> Iterator[Listing]:
    for slot, choices in SLOTS.items():
        for name, entry in choices.items():
            yield (slot, name, entry.description, " ".join(map(_usage, entry.options))), [_source(entry)]


def _usage(option: Option) -> str:
    """Return the form of a choice's option, such as `window=N`."""
    values = "|".join(map(str, option.choices)) or PLACEHOLDERS[option.types[0]] or "true|false"
    return f"{option.name}={values}"


def _presets() -> Iterator[Listing]:
    for name, config in PRESETS.items():
        entries = [SLOTS[slot][getattr(config, slot)] for slot in config.filled_slots or ("normalizer",)]
        yield (name, config.describe_slots() or "plain attention"), list(map(_source, entries))


def _tasks() -> Iterator[Listing]:
    for name, task in TASKS.items():
        yield (name, task.kind, task.description), [(f"{task.citation}; licence: {task.licence}", "")]


def _models() -> Iterator[Listing]:
    for name, entry in MODELS.items():
        yield (name, entry.description), [_source(entry)]
    for name, packaged in PACKAGED.items():
        yield (name, f"{packaged.hub_id}, of the PyPI package {packaged.package}"), []
    yield ("another name", "a pretrained encoder: a folder, or an id on the Hub"), []


def _tables() -> Iterator[Listing]:
    for name, path in TABLES.items():
        table = yaml.safe_load(path.read_text(encoding="utf-8"))
        yield (name, table["title"]), [(table.get("published_source", ""), "")]


LISTS: Mapping[str, tuple[Sequence[str], Callable[[], Iterator[Listing]]]] = {
    "slots": (("slot", "choice", "what it is", "options"), _slots),
    "presets": (("preset", "choices"), _presets),
    "tasks": (("task", "kind", "description"), _tasks),
    "models": (("model", "what it is"), _models),
    "tables": (("table", "title"), _tables),
}
