"""The words of the demo's sentence-pair task: two genres (`genres/*.yaml`) and their small taxonomies.

The labels of `alignattn.commands.demo.data` are only as right as these tables, so each keeps to these rules:

* a `Taxon`'s narrow terms are kinds of its broad term, always (every harpist is a musician);
* two activities of a genre are never done at once by one person: each takes both hands, and in the business
  genre the whole morning;
* two narrow places of a genre never hold one person at once; a broad place holds exactly its narrow places;
* a modifier is intersective, so it survives a change of noun: a blind harpist is a blind musician, where a
  small elephant is not a small animal;
* a verb between two people says nothing about the other direction: "thank", not "chase" or "meet".
"""

import random
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import NamedTuple

import yaml


@dataclass(frozen=True)
class Taxon:
    """A broad term and some of the narrow terms under it (there may be others)."""

    broad: str
    narrow: tuple[str, ...]


def terms(taxa: tuple[Taxon, ...]) -> list[str]:
    """All broad and narrow terms."""
    return [term for taxon in taxa for term in (taxon.broad, *taxon.narrow)]


@cache
def members_of(term: str | None, taxa: tuple[Taxon, ...]) -> frozenset[str]:
    """What a term may refer to: None leaves everything open, and a broad term has unnamed kinds too."""
    chosen = [taxon for taxon in taxa if term in (None, taxon.broad)]
    if not chosen:
        return frozenset([str(term)])
    return frozenset(name for taxon in chosen for name in (*taxon.narrow, f"another {taxon.broad}"))


def step_up_or_down(term: str, taxa: tuple[Taxon, ...], rng: random.Random) -> str:
    """A narrow term's broad one, or a narrow term of a broad one."""
    taxon = next(taxon for taxon in taxa if term == taxon.broad or term in taxon.narrow)
    return rng.choice(taxon.narrow) if term == taxon.broad else taxon.broad


class Verb(NamedTuple):
    """The three forms a clause between two people needs."""

    base: str
    past: str
    participle: str


@dataclass(frozen=True)
class Genre:
    """The words of one genre.

    `singular`, `plural` and `negated` are what precedes an activity: "was", "were", "was not".
    A modifier is a format string with one hole for the noun.
    """

    name: str
    people: tuple[Taxon, ...]
    modifiers: tuple[str, ...]
    activities: tuple[Taxon, ...]
    places: tuple[Taxon, ...]
    times: tuple[str, ...]
    verbs: tuple[Verb, ...]
    topics: tuple[str, ...]
    favour: Verb
    oppose: Verb
    singular: str
    plural: str
    negated: str


def _read_genre(name: str) -> Genre:
    words = yaml.safe_load((resources.files(__package__) / "genres" / f"{name}.yaml").read_text(encoding="utf-8"))
    for kind in ("people", "activities", "places"):
        words[kind] = tuple(Taxon(broad, tuple(narrow)) for broad, narrow in words[kind].items())
    for kind in ("modifiers", "times", "topics"):
        words[kind] = tuple(words[kind])
    verbs = {"verbs": tuple(Verb(*forms) for forms in words["verbs"])}
    return Genre(name=name, **words | verbs | {side: Verb(*words[side]) for side in ("favour", "oppose")})


GENRES = {name: _read_genre(name) for name in ("fiction", "business")}
