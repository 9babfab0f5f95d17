"""Registries: a name maps to an entry, whose target is imported on first use; and the papers that they cite."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, TypeVar

from alignattn.utils.errors import unknown
from alignattn.utils.options import Option


@dataclass(frozen=True)
class Reference:
    """A paper, by its BibTeX entry with one field per line."""

    bibtex: str

    def __str__(self) -> str:
        fields = dict(re.findall(r"^ *(\w+) *= *\{(.*)\},?$", self.bibtex, re.MULTILINE))
        title = re.sub("[{}]", "", fields["title"])
        names = [author.partition(",")[0] for author in fields["author"].split(" and ")]
        authors = " & ".join(names) if len(names) < 3 else f"{names[0]} et al."
        return f'{authors} {fields["year"]}, "{title}", {fields.get("booktitle") or fields["journal"]}'


@cache
def references() -> dict[str, Reference]:
    """Return the papers by their BibTeX keys."""
    entries = Path(__file__).with_name("references.bib").read_text(encoding="utf-8").strip().split("\n\n")
    return {entry.partition("{")[2].partition(",")[0]: Reference(entry) for entry in entries}


@dataclass(frozen=True)
class Entry:
    """An entry of a registry.

    Attributes:
        target: `module:name`; a module that starts with a dot is relative to the registry's package.
        description: a few words.
        work: key of the paper in `references.bib`.
        place: place in the paper, for example `eq. 2`.
        options: keyword arguments of the target.
    """

    target: str
    description: str
    work: str | None = None
    place: str | None = None
    options: Sequence[Option] = ()

    @property
    def reference(self) -> Reference | None:
        """The paper."""
        return None if self.work is None else references()[self.work]

    @property
    def citation(self) -> str:
        """The paper and the place in it, on one line; empty without a paper."""
        return ", ".join(str(part) for part in (self.reference, self.place) if part)


E = TypeVar("E", bound=Entry)


class Registry(dict[str, E]):
    """Entries by name.

    Args:
        kind: what the entries are, for messages, for example `normalizer`.
        entries: by name, in listing order.
        package: base of relative targets.
    """

    def __init__(self, kind: str, entries: Mapping[str, E], package: str | None = None) -> None:
        super().__init__(entries)
        self.kind = kind
        self._package = package

    def load(self, name: str) -> Any:
        """Import the target of a name."""
        if name not in self:
            raise unknown(self.kind, name, self)
        target = self[name].target
        return resolve_name(f"{self._package}{target}" if target.startswith(".") else target)
