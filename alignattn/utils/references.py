"""The papers of `references.bib`, which the registries cite."""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

BIBLIOGRAPHY = Path(__file__).with_name("references.bib")


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
    entries = BIBLIOGRAPHY.read_text(encoding="utf-8").strip().split("\n\n")
    return {entry.partition("{")[2].partition(",")[0]: Reference(entry) for entry in entries}
