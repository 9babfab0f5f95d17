"""A sentence-pair inference task that the package generates itself, for `make demo`.

Each row is a premise, a hypothesis and one of MNLI's labels, under SNLI's convention that both sentences speak
of the same people and, unless they name different times, of the same moment:

* 0, entailment: where the premise is true, the hypothesis is true;
* 1, neutral: where the premise is true, the hypothesis may be true or false;
* 2, contradiction: where the premise is true, the hypothesis is false.

No rule guesses a label. A sentence denotes the set of possible worlds in which it is true, each kind of sentence
below says what its worlds are, and `relation` reads the label off the two sets. Hypernyms, modifiers, places,
negation, quantifiers and numbers, and the monotonicity that negation and quantifiers turn round, all follow from
that; the words, and what is assumed of them, are in `alignattn.demo_vocabulary`.

Rows are drawn hypothesis first: only hypotheses for which a premise of every label turns up are used, and the label
is chosen afterwards, so the hypothesis alone tells nothing about it.
"""

import os
import random
from collections.abc import Callable, Collection, Hashable, Sequence, Set
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import combinations, product
from pathlib import Path
from typing import Protocol, Self

from alignattn.demo_vocabulary import GENRES, Genre, Taxon, Verb
from alignattn.errors import AlignAttnError

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2
LABEL_NAMES = ("entailment", "neutral", "contradiction")
IN_DOMAIN, OUT_OF_DOMAIN = "fiction", "business"
TASK_FOLDER = "demo"

# How many premises are tried before a hypothesis is given up: enough for each label to turn up nearly always.
PREMISE_ATTEMPTS = 60
LARGEST_COUNT = 12  # above every number a sentence names, so that "at least six" does not become "exactly six"
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five", 6: "six"}
IRREGULAR_PLURALS = {"thief": "thieves"}


@dataclass(frozen=True)
class Row:
    """One example; `label` as in the module's description."""

    premise: str
    hypothesis: str
    label: int


def relation(premise: Set[Hashable], hypothesis: Set[Hashable]) -> int:
    """The label of two sentences, given the worlds in which each is true (the premise's must not be empty)."""
    if premise <= hypothesis:
        return ENTAILMENT
    return NEUTRAL if premise & hypothesis else CONTRADICTION


def overlap_cells(first: Set[Hashable], second: Set[Hashable]) -> list[tuple[bool, bool]]:
    """The regions (in first, in second) that something can lie in; something can always lie outside both."""
    candidates = {(True, True): first & second, (True, False): first - second, (False, True): second - first}
    return [cell for cell, members in candidates.items() if members] + [(False, False)]


# Terms of a taxonomy


@lru_cache(maxsize=None)
def _members(term: str | None, taxa: tuple[Taxon, ...]) -> frozenset[str]:
    """What a term may refer to; nothing said (None) leaves all open, and a broad term has unnamed kinds too."""
    chosen = [taxon for taxon in taxa if term in (None, taxon.broad)]
    if not chosen:
        return frozenset([str(term)])
    return frozenset(name for taxon in chosen for name in (*taxon.narrow, f"another {taxon.broad}"))


def _terms(taxa: tuple[Taxon, ...]) -> list[str]:
    return [term for taxon in taxa for term in (taxon.broad, *taxon.narrow)]


def _step_up_or_down(term: str, taxa: tuple[Taxon, ...], rng: random.Random) -> str:
    """A narrow term's broad one, or a narrow term of a broad one."""
    taxon = next(taxon for taxon in taxa if term == taxon.broad or term in taxon.narrow)
    return rng.choice(taxon.narrow) if term == taxon.broad else taxon.broad


# Parts of a sentence


@dataclass(frozen=True)
class Person:
    """A noun and at most one modifier."""

    noun: str
    modifier: str = "{}"

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        modifier = rng.choice(genre.modifiers) if rng.random() < 0.4 else "{}"
        return cls(rng.choice(_terms(genre.people)), modifier)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """Generalise or specialise; never another noun or modifier, which could be somebody else."""
        noun = _step_up_or_down(self.noun, genre.people, rng) if rng.random() < 0.35 else self.noun
        modifier = self.modifier
        if rng.random() < 0.35:
            modifier = rng.choice(genre.modifiers) if modifier == "{}" else "{}"
        return replace(self, noun=noun, modifier=modifier)

    def members(self, genre: Genre) -> frozenset[tuple[str, bool]]:
        """Kinds of people, each with and without the pair's modifier (a pair names at most one)."""
        has_modifier = (True, False) if self.modifier == "{}" else (True,)
        return frozenset(product(_members(self.noun, genre.people), has_modifier))

    def text(self) -> str:
        return self.modifier.format(self.noun)

    def plural(self) -> str:
        if self.noun.endswith("man"):
            return self.modifier.format(f"{self.noun[:-3]}men")
        return self.modifier.format(IRREGULAR_PLURALS.get(self.noun, f"{self.noun}s"))


@dataclass(frozen=True)
class Event:
    """An activity and perhaps a place."""

    activity: str
    place: str | None

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        place = rng.choice(_terms(genre.places)) if rng.random() < 0.6 else None
        return cls(rng.choice(_terms(genre.activities)), place)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """Another activity or place excludes this one, a broader one follows from it, a narrower one adds to it."""
        activity, place = self.activity, self.place
        match rng.choice(("keep", "keep", "step", "change")):
            case "step":
                activity = _step_up_or_down(activity, genre.activities, rng)
            case "change":
                activity = rng.choice(_terms(genre.activities))
        match rng.choice(("keep", "keep", "step", "change")):
            case "step" if place is not None:
                place = _step_up_or_down(place, genre.places, rng)
            case "change" | "step":
                place = rng.choice((None, *_terms(genre.places)))
        return replace(self, activity=activity, place=place)

    def members(self, genre: Genre) -> frozenset[tuple[str, str]]:
        """The (activity, place) pairs that this may be; somebody is in exactly one of them."""
        return frozenset(
            product(_members(self.activity, genre.activities), _members(self.place, genre.places))
        )

    def text(self) -> str:
        return self.activity if self.place is None else f"{self.activity} {self.place}"


# Kinds of sentence


class Sentence(Protocol):
    """What the drawing of rows needs of a kind of sentence."""

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self: ...

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """A related sentence of the same kind, as its premise."""

    def label_from(self, premise: Self, genre: Genre) -> int:
        """The label of this sentence as the hypothesis."""

    def text(self, genre: Genre) -> str: ...


@dataclass(frozen=True)
class Scene:
    """"the blind harpist was (not) playing a harp in the forest"."""

    person: Person
    event: Event
    negated: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        return cls(Person.draw(genre, rng), Event.draw(genre, rng), rng.random() < 0.4)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        negated = self.negated != (rng.random() < 0.3)
        return replace(self, person=self.person.vary(genre, rng), event=self.event.vary(genre, rng), negated=negated)

    def label_from(self, premise: Self, genre: Genre) -> int:
        """Negation covers the event and never the person, whom both sentences take for granted."""
        cells = overlap_cells(premise.event.members(genre), self.event.members(genre))
        premise_worlds = {cell for cell in cells if cell[0] != premise.negated}
        label = relation(premise_worlds, {cell for cell in cells if cell[1] != self.negated})
        return label if label != ENTAILMENT else _label_of_description(premise.person, self.person, genre)

    def text(self, genre: Genre) -> str:
        auxiliary = genre.negated if self.negated else genre.singular
        return f"the {self.person.text()} {auxiliary} {self.event.text()}"


def _label_of_description(premise: Person, hypothesis: Person, genre: Genre) -> int:
    """A broader description of the same person follows; a narrower one adds something that need not hold."""
    return ENTAILMENT if premise.members(genre) <= hypothesis.members(genre) else NEUTRAL


@dataclass(frozen=True)
class Encounter:
    """"the duke thanked the maid", "the maid was (not) thanked by the duke"."""

    agent: Person
    patient: Person
    verb: Verb
    negated: bool
    passive: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        agent, patient = (Person(rng.choice(_terms((taxon,)))) for taxon in rng.sample(genre.people, 2))
        return cls(agent, patient, rng.choice(genre.verbs), rng.random() < 0.4, rng.random() < 0.5)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        agent, patient = self.agent.vary(genre, rng), self.patient.vary(genre, rng)
        if rng.random() < 0.4:
            agent, patient = patient, agent
        negated, passive = self.negated != (rng.random() < 0.4), rng.random() < 0.5
        return replace(self, agent=agent, patient=patient, negated=negated, passive=passive)

    def label_from(self, premise: Self, genre: Genre) -> int:
        """Thanking is a fact of its own in each direction, so a swap of the roles leaves everything open."""
        if not premise.agent.members(genre) & self.agent.members(genre):
            return NEUTRAL
        if premise.negated != self.negated:
            return CONTRADICTION
        return max(
            _label_of_description(premise.agent, self.agent, genre),
            _label_of_description(premise.patient, self.patient, genre),
        )

    def text(self, genre: Genre) -> str:
        agent, patient = f"the {self.agent.text()}", f"the {self.patient.text()}"
        if self.passive:
            return f"{patient} was {'not ' if self.negated else ''}{self.verb.participle} by {agent}"
        return f"{agent} {f'did not {self.verb.base}' if self.negated else self.verb.past} {patient}"


@dataclass(frozen=True)
class Quantified:
    """"every harpist was playing a harp": a quantifier over the noun and the event."""

    quantifier: str
    person: Person
    event: Event

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        return cls(rng.choice(tuple(QUANTIFIERS)), Person.draw(genre, rng), Event.draw(genre, rng))

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        quantifier = rng.choice(tuple(QUANTIFIERS)) if rng.random() < 0.6 else self.quantifier
        return type(self)(quantifier, self.person.vary(genre, rng), self.event.vary(genre, rng))

    def label_from(self, premise: Self, genre: Genre) -> int:
        nouns = overlap_cells(premise.person.members(genre), self.person.members(genre))
        events = overlap_cells(premise.event.members(genre), self.event.members(genre))
        return _label_of_quantifiers(premise.quantifier, self.quantifier, tuple(nouns), tuple(events))

    def text(self, genre: Genre) -> str:
        if self.quantifier == "some":
            return f"some {self.person.plural()} {genre.plural} {self.event.text()}"
        return f"{self.quantifier} {self.person.text()} {genre.singular} {self.event.text()}"


# Each is true or false of the people the noun picks out, given as "is of the event" truth values, at least one.
QUANTIFIERS: dict[str, Callable[[Collection[bool]], bool]] = {
    "every": all,
    "some": any,
    "no": lambda facts: not any(facts),
    "not every": lambda facts: not all(facts),
}


@lru_cache(maxsize=None)
def _label_of_quantifiers(
    premise: str, hypothesis: str, nouns: tuple[tuple[bool, bool], ...], events: tuple[tuple[bool, bool], ...]
) -> int:
    """A world is the set of kinds of individual that exist in it; either noun has somebody in every world.

    That somebody is what "every harpist" takes for granted, and without it "every" and "no" could both be true.
    """
    kinds = [(noun, event) for noun, event in product(nouns, events) if any(noun)]
    sets = (world for size in range(1, len(kinds) + 1) for world in combinations(kinds, size))
    worlds = [world for world in sets if all(any(noun[side] for noun, _ in world) for side in (0, 1))]
    true_in = [
        {world for world in worlds if QUANTIFIERS[quantifier]([event[side] for noun, event in world if noun[side]])}
        for side, quantifier in enumerate((premise, hypothesis))
    ]
    return relation(*true_in)


@dataclass(frozen=True)
class Count:
    """"at least three harpists were playing a harp"; the bare "three", which may be a minimum, is not used."""

    bound: str
    number: int
    person: Person
    event: Event

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        bound, number = rng.choice(tuple(BOUNDS)), rng.choice(tuple(NUMBER_WORDS))
        return cls(bound, number, Person.draw(genre, rng), Event.draw(genre, rng))

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        return replace(self, bound=rng.choice(tuple(BOUNDS)), number=rng.choice(tuple(NUMBER_WORDS)))

    def counts(self) -> set[int]:
        return {count for count in range(LARGEST_COUNT + 1) if BOUNDS[self.bound](count, self.number)}

    def label_from(self, premise: Self, genre: Genre) -> int:
        """The worlds are how many of the people are of the event: noun and event are the same in a pair."""
        return relation(premise.counts(), self.counts())

    def text(self, genre: Genre) -> str:
        return f"{self.bound} {NUMBER_WORDS[self.number]} {self.person.plural()} {genre.plural} {self.event.text()}"


BOUNDS: dict[str, Callable[[int, int], bool]] = {
    "exactly": int.__eq__,
    "at least": int.__ge__,
    "at most": int.__le__,
    "more than": int.__gt__,
    "fewer than": int.__lt__,
}

KINDS: tuple[type[Sentence], ...] = (Scene, Encounter, Quantified, Count)
KIND_WEIGHTS = (4, 2, 2, 2)


@dataclass(frozen=True)
class Statement:
    """A sentence and perhaps its time, which stands first or last."""

    sentence: Sentence
    time: str | None
    time_first: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        (kind,) = rng.choices(KINDS, KIND_WEIGHTS)
        time = rng.choice(genre.times) if rng.random() < 0.4 else None
        return cls(kind.draw(genre, rng), time, rng.random() < 0.5)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """Both sentences name a time or neither does: a time left out could be taken for any time or for the same."""
        time = rng.choice(genre.times) if self.time is not None and rng.random() < 0.2 else self.time
        return replace(self, sentence=self.sentence.vary(genre, rng), time=time, time_first=rng.random() < 0.5)

    def label_from(self, premise: Self, genre: Genre) -> int:
        """What holds at one time leaves open what holds at another."""
        return self.sentence.label_from(premise.sentence, genre) if premise.time == self.time else NEUTRAL

    def text(self, genre: Genre) -> str:
        text = self.sentence.text(genre)
        if self.time is not None:
            text = f"{self.time}, {text}" if self.time_first else f"{text} {self.time}"
        return f"{text[0].upper()}{text[1:]}."


# Rows


def _draw_row(genre: Genre, label: int, rng: random.Random) -> Row:
    """A hypothesis that has premises of all three labels, with its premise of the wanted one."""
    while True:
        hypothesis = Statement.draw(genre, rng)
        hypothesis_text = hypothesis.text(genre)
        premises: dict[int, str] = {}
        for _ in range(PREMISE_ATTEMPTS):
            premise = hypothesis.vary(genre, rng)
            if (text := premise.text(genre)) != hypothesis_text:
                premises.setdefault(hypothesis.label_from(premise, genre), text)
            if len(premises) == len(LABEL_NAMES):
                return Row(premises[label], hypothesis_text, label)


def generate(num_rows: int, genre: str, seed: int) -> list[Row]:
    """Draw rows of one genre: no pair twice, labels balanced within one, the same rows for the same arguments.

    Raises:
        AlignAttnError: `num_rows` is below 1, or the genre is unknown.
    """
    if num_rows < 1:
        raise AlignAttnError(f"the number of demo rows is {num_rows}: give at least 1")
    if genre not in GENRES:
        raise AlignAttnError(f"unknown demo genre {genre!r}: choose one of {', '.join(GENRES)}")
    rng = random.Random(f"{genre} {seed}")
    rows: dict[Row, None] = {}
    while len(rows) < num_rows:
        rows[_draw_row(GENRES[genre], len(rows) % len(LABEL_NAMES), rng)] = None
    return list(rows)
