"""The words of the demo's sentence-pair task: two genres and their small taxonomies.

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
from typing import NamedTuple

VOWELS = "aeiou"


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


def with_article(noun_phrase: str) -> str:
    """`a` or `an` by the first letter; the tables hold no exception such as "hour" or "uniform"."""
    return f"{'an' if noun_phrase[0] in VOWELS else 'a'} {noun_phrase}"


def _activity(verb: str, broad: str, *narrow: str) -> Taxon:
    objects = tuple(f"{verb} {with_article(noun)}" for noun in narrow)
    return Taxon(f"{verb} {with_article(broad)}", objects)


def _regular(*bases: str) -> tuple[Verb, ...]:
    pasts = (f"{base}d" if base.endswith("e") else f"{base}ed" for base in bases)
    return tuple(Verb(base, past, past) for base, past in zip(bases, pasts, strict=True))


FICTION = Genre(
    name="fiction",
    people=(
        Taxon("musician", ("drummer", "harpist", "violinist")),
        Taxon("nobleman", ("duke", "baron", "earl")),
        Taxon("clergyman", ("bishop", "vicar", "cardinal")),
        Taxon("criminal", ("thief", "smuggler", "burglar")),
    ),
    modifiers=("blind {}", "barefoot {}", "{} with a scar", "{} with a lantern"),
    activities=(
        _activity("playing", "musical instrument", "violin", "trumpet", "harp"),
        _activity("riding", "animal", "horse", "donkey", "camel"),
        _activity("peeling", "piece of fruit", "pear", "banana", "orange"),
        _activity("feeding", "bird", "parrot", "pigeon", "owl"),
    ),
    places=(
        Taxon("indoors", ("in the kitchen", "in the cellar", "in the chapel")),
        Taxon("outdoors", ("in the forest", "in the meadow", "on the beach")),
    ),
    times=("at midnight", "at dawn", "at noon"),
    verbs=(
        *_regular("thank", "insult", "praise"),
        Verb("forgive", "forgave", "forgiven"),
    ),
    topics=("opera", "chess", "poetry", "thunderstorms", "wine", "gossip", "ghost stories", "long journeys"),
    favour=Verb("love", "loved", "loved"),
    oppose=Verb("hate", "hated", "hated"),
    singular="was",
    plural="were",
    negated="was not",
)

BUSINESS = Genre(
    name="business",
    people=(
        Taxon("scientist", ("chemist", "physicist", "biologist")),
        Taxon("doctor", ("surgeon", "cardiologist", "dermatologist")),
        Taxon("journalist", ("reporter", "columnist", "sportswriter")),
        Taxon("construction worker", ("bricklayer", "plasterer", "roofer")),
    ),
    modifiers=("Canadian {}", "bilingual {}", "{} with a beard", "{} in a suit"),
    activities=(
        _activity("reviewing", "document", "invoice", "contract", "lease"),
        _activity("repairing", "electronic device", "laptop", "printer", "router"),
        _activity("assembling", "piece of furniture", "desk", "bookcase", "wardrobe"),
        _activity("unloading", "vehicle", "truck", "van", "minibus"),
    ),
    places=(
        Taxon("in Germany", ("in Berlin", "in Munich", "in Hamburg")),
        Taxon("in France", ("in Paris", "in Lyon", "in Marseille")),
    ),
    times=("on Monday", "on Tuesday", "on Friday"),
    verbs=_regular("phone", "email", "invite", "consult"),
    topics=(
        *("the merger", "the pay cut", "the takeover", "the strike"),
        *("the new tax", "the price increase", "the relocation", "the reform"),
    ),
    favour=Verb("support", "supported", "supported"),
    oppose=Verb("oppose", "opposed", "opposed"),
    singular="spent the morning",
    plural="spent the morning",
    negated="did not spend the morning",
)

GENRES = {genre.name: genre for genre in (FICTION, BUSINESS)}
