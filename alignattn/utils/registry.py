"""Registries: a name maps to an entry, whose target is imported on first use."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any, Generic, TypeVar

from alignattn.utils.errors import unknown
from alignattn.utils.option import Option
from alignattn.utils.references import Reference, references


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


class Registry(Mapping[str, E], Generic[E]):
    """Entries by name.

    Args:
        kind: what the entries are, for messages, for example `normalizer`.
        entries: by name, in listing order.
        package: base of relative targets.
    """

    def __init__(self, kind: str, entries: Mapping[str, E], package: str | None = None) -> None:
        self.kind = kind
        self._entries = dict(entries)
        self._package = package

    def __getitem__(self, name: str) -> E:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def load(self, name: str) -> Any:
        """Import the target of a name."""
        if name not in self:
            raise unknown(self.kind, name, self)
        target = self[name].target
        return resolve_name(f"{self._package}{target}" if target.startswith(".") else target)
