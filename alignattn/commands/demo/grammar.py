"""The sentences of the demo's inference task and what they mean.

No rule guesses a label. A sentence denotes the set of possible worlds in which it is true, each kind of
sentence below says what its worlds are, and `relation` reads the label off the two sets. Hypernyms,
modifiers, places, negation, quantifiers and numbers, and the monotonicity that negation and quantifiers turn
round, all follow from that; the words, and what is assumed of them, are in `alignattn.commands.demo.vocabulary`.
"""

import random
from collections.abc import Callable, Collection, Hashable, Set
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations, product
from typing import Any, Protocol, Self, TypeVar

from alignattn.commands.demo.vocabulary import Genre, Verb, members_of, step_up_or_down, terms

ENTAILMENT, NEUTRAL, CONTRADICTION = 0, 1, 2

Region = tuple[bool, bool]  # inside the premise's set, inside the hypothesis's set
Individual = tuple[Region, Region]  # of the two nouns, of the two events

# Above every number that a sentence names, lest "at least five" come to mean "exactly five".
LARGEST_COUNT = 12
NUMBER_WORDS = {2: "two", 3: "three", 4: "four", 5: "five"}
IRREGULAR_PLURALS = {"thief": "thieves"}

# How difficult the task is: how often a sentence has a part, and how often and how far its premise differs.
MODIFIED, PLACED, TIMED, NEGATED, PASSIVE = 0.3, 0.6, 0.4, 0.25, 0.3
OTHER_NOUN, OTHER_TIME, ROLES_SWAPPED = 0.4, 0.4, 0.25
CHANGES = (0, 1, 1, 2)  # the number of parts that differ, each number as often as it stands here


def relation(premise: Set[Hashable], hypothesis: Set[Hashable]) -> int:
    """The label of two sentences, given the worlds in which each is true (the premise in one at least)."""
    if premise <= hypothesis:
        return ENTAILMENT
    return NEUTRAL if premise & hypothesis else CONTRADICTION


def overlap_cells(first: Set[Hashable], second: Set[Hashable]) -> list[Region]:
    """The regions that something can lie in; something can always lie outside both sets."""
    candidates = {(True, True): first & second, (True, False): first - second, (False, True): second - first}
    return [cell for cell, members in candidates.items() if members] + [(False, False)]


SentenceT = TypeVar("SentenceT")


def _change_some(sentence: SentenceT, rng: random.Random, **new_parts: Callable[[], Any]) -> SentenceT:
    """The sentence with none, one or two of the named parts made new."""
    changed = rng.sample(list(new_parts), rng.choice(CHANGES))
    return replace(sentence, **{part: new_parts[part]() for part in changed})  # type: ignore[type-var]


# Parts of a sentence


@dataclass(frozen=True)
class _Person:
    """A noun and at most one modifier."""

    noun: str
    modifier: str = "{}"

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        modifier = rng.choice(genre.modifiers) if rng.random() < MODIFIED else "{}"
        return cls(rng.choice(terms(genre.people)), modifier)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """Generalise or specialise; never another noun or modifier, which could be somebody else."""
        if rng.random() < OTHER_NOUN:
            return replace(self, noun=step_up_or_down(self.noun, genre.people, rng))
        return replace(self, modifier=rng.choice(genre.modifiers) if self.modifier == "{}" else "{}")

    def members(self, genre: Genre) -> frozenset[tuple[str, bool]]:
        """Kinds of people, each with and without the pair's modifier (a pair names at most one)."""
        has_modifier = (True, False) if self.modifier == "{}" else (True,)
        return frozenset(product(members_of(self.noun, genre.people), has_modifier))

    def text(self) -> str:
        return self.modifier.format(self.noun)

    def plural(self) -> str:
        if self.noun.endswith("man"):
            return self.modifier.format(f"{self.noun[:-3]}men")
        return self.modifier.format(IRREGULAR_PLURALS.get(self.noun, f"{self.noun}s"))


@dataclass(frozen=True)
class _Event:
    """An activity and perhaps a place."""

    activity: str
    place: str | None

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        place = rng.choice(terms(genre.places)) if rng.random() < PLACED else None
        return cls(rng.choice(terms(genre.activities)), place)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """Make the activity or the place broader or narrower, or change it."""
        match rng.choice(("step", "activity", "place", "place")):
            case "step":
                return replace(self, activity=step_up_or_down(self.activity, genre.activities, rng))
            case "activity":
                return replace(self, activity=rng.choice(terms(genre.activities)))
            case _:
                return replace(self, place=rng.choice((None, None, *terms(genre.places))))

    def members(self, genre: Genre) -> frozenset[tuple[str, str]]:
        """The (activity, place) pairs that this may be; somebody is in exactly one of them."""
        return frozenset(product(members_of(self.activity, genre.activities), members_of(self.place, genre.places)))

    def text(self) -> str:
        return self.activity if self.place is None else f"{self.activity} {self.place}"


# Kinds of sentence


class _Sentence(Protocol):
    """What the drawing of rows needs of a kind of sentence."""

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self: ...

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """A related sentence of the same kind, as its premise."""

    def label_from(self, premise: Self, genre: Genre) -> int:
        """The label of this sentence as the hypothesis."""

    def text(self, genre: Genre) -> str: ...


@dataclass(frozen=True)
class _Scene:
    """What one person was, or was not, doing."""

    person: _Person
    event: _Event
    negated: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        return cls(_Person.draw(genre, rng), _Event.draw(genre, rng), rng.random() < NEGATED)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        return _change_some(
            self,
            rng,
            person=lambda: self.person.vary(genre, rng),
            event=lambda: self.event.vary(genre, rng),
            negated=lambda: not self.negated,
        )

    def label_from(self, premise: Self, genre: Genre) -> int:
        """Negation covers the event and never the person, whom both sentences take for granted."""
        cells = overlap_cells(premise.event.members(genre), self.event.members(genre))
        premise_worlds = {cell for cell in cells if cell[0] != premise.negated}
        label = relation(premise_worlds, {cell for cell in cells if cell[1] != self.negated})
        return label if label != ENTAILMENT else _label_of_description(premise.person, self.person, genre)

    def text(self, genre: Genre) -> str:
        auxiliary = genre.negated if self.negated else genre.singular
        return f"the {self.person.text()} {auxiliary} {self.event.text()}"


def _label_of_description(premise: _Person, hypothesis: _Person, genre: Genre) -> int:
    """A broader description of the same person follows; a narrower one adds something that need not hold."""
    return ENTAILMENT if premise.members(genre) <= hypothesis.members(genre) else NEUTRAL


@dataclass(frozen=True)
class _Encounter:
    """What one person did, or did not do, to another, in the active or the passive voice."""

    agent: _Person
    patient: _Person
    verb: Verb
    negated: bool
    passive: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        agent, patient = (_Person(rng.choice(terms((taxon,)))) for taxon in rng.sample(genre.people, 2))
        return cls(agent, patient, rng.choice(genre.verbs), rng.random() < NEGATED, rng.random() < PASSIVE)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        premise = _change_some(
            self,
            rng,
            agent=lambda: self.agent.vary(genre, rng),
            patient=lambda: self.patient.vary(genre, rng),
            negated=lambda: not self.negated,
        )
        if rng.random() < ROLES_SWAPPED:
            premise = replace(premise, agent=premise.patient, patient=premise.agent)
        return replace(premise, passive=rng.random() < PASSIVE)

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
class _Opinion:
    """What one person thought of one topic."""

    person: _Person
    topic: str
    stance: str

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        return cls(_Person.draw(genre, rng), rng.choice(genre.topics), rng.choice(tuple(STANCES)))

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        return _change_some(
            self,
            rng,
            person=lambda: self.person.vary(genre, rng),
            topic=lambda: rng.choice(genre.topics),
            stance=lambda: rng.choice(tuple(STANCES)),
        )

    def label_from(self, premise: Self, genre: Genre) -> int:
        """What somebody thinks of one topic leaves open what they think of another."""
        if premise.topic != self.topic:
            return NEUTRAL
        label = relation(STANCES[premise.stance], STANCES[self.stance])
        return label if label != ENTAILMENT else _label_of_description(premise.person, self.person, genre)

    def text(self, genre: Genre) -> str:
        verb = {
            "for": genre.favour.past,
            "against": genre.oppose.past,
            "not for": f"did not {genre.favour.base}",
            "not against": f"did not {genre.oppose.base}",
        }[self.stance]
        return f"the {self.person.text()} {verb} {self.topic}"


# Not to love is not yet to hate: one may be indifferent.
STANCES = {
    "for": {"favourable"},
    "against": {"unfavourable"},
    "not for": {"unfavourable", "indifferent"},
    "not against": {"favourable", "indifferent"},
}


@dataclass(frozen=True)
class _Quantified:
    """What every, some, no or not every person of a kind was doing."""

    quantifier: str
    person: _Person
    event: _Event

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        return cls(rng.choice(tuple(QUANTIFIERS)), _Person.draw(genre, rng), _Event.draw(genre, rng))

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        return _change_some(
            self,
            rng,
            person=lambda: self.person.vary(genre, rng),
            event=lambda: self.event.vary(genre, rng),
            quantifier=lambda: rng.choice(tuple(QUANTIFIERS)),
        )

    def label_from(self, premise: Self, genre: Genre) -> int:
        nouns = overlap_cells(premise.person.members(genre), self.person.members(genre))
        events = overlap_cells(premise.event.members(genre), self.event.members(genre))
        return _label_of_quantifiers(premise.quantifier, self.quantifier, tuple(nouns), tuple(events))

    def text(self, genre: Genre) -> str:
        if self.quantifier == "some":
            return f"some {self.person.plural()} {genre.plural} {self.event.text()}"
        return f"{self.quantifier} {self.person.text()} {genre.singular} {self.event.text()}"


# Each is true or false of the people that the noun picks out, given whether each is part of the event.
QUANTIFIERS: dict[str, Callable[[Collection[bool]], bool]] = {
    "every": all,
    "some": any,
    "no": lambda facts: not any(facts),
    "not every": lambda facts: not all(facts),
}


@cache
def _label_of_quantifiers(premise: str, hypothesis: str, nouns: tuple[Region, ...], events: tuple[Region, ...]) -> int:
    """A world is the set of kinds of individual that exist in it; either noun has somebody in every world.

    "Every harpist" takes that somebody for granted; without it "every" and "no" could both be true.
    """
    kinds = [(noun, event) for noun, event in product(nouns, events) if any(noun)]
    sets = (world for size in range(1, len(kinds) + 1) for world in combinations(kinds, size))
    worlds = [world for world in sets if all(any(noun[side] for noun, _ in world) for side in (0, 1))]

    def worlds_of(quantifier: str, side: int) -> set[tuple[Individual, ...]]:
        holds = QUANTIFIERS[quantifier]
        return {world for world in worlds if holds([event[side] for noun, event in world if noun[side]])}

    return relation(worlds_of(premise, 0), worlds_of(hypothesis, 1))


@dataclass(frozen=True)
class _Count:
    """A number of people; the bare "three", which may mean "at least three", is not used."""

    bound: str
    number: int
    person: _Person
    event: _Event

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        bound, number = rng.choice(tuple(BOUNDS)), rng.choice(tuple(NUMBER_WORDS))
        return cls(bound, number, _Person.draw(genre, rng), _Event.draw(genre, rng))

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        return replace(self, bound=rng.choice(tuple(BOUNDS)), number=rng.choice(tuple(NUMBER_WORDS)))

    def counts(self) -> set[int]:
        return {count for count in range(LARGEST_COUNT + 1) if BOUNDS[self.bound](count, self.number)}

    def label_from(self, premise: Self, genre: Genre) -> int:
        """The worlds are how many of the people are of the event: noun and event are the same in a pair."""
        return relation(premise.counts(), self.counts())

    def text(self, genre: Genre) -> str:
        people = f"{NUMBER_WORDS[self.number]} {self.person.plural()}"
        return f"{self.bound} {people} {genre.plural} {self.event.text()}"


BOUNDS: dict[str, Callable[[int, int], bool]] = {
    "exactly": int.__eq__,
    "at least": int.__ge__,
    "at most": int.__le__,
}

KIND_WEIGHTS: dict[type[_Sentence], int] = {_Scene: 8, _Opinion: 6, _Encounter: 3, _Quantified: 2, _Count: 1}


@dataclass(frozen=True)
class Statement:
    """A sentence and perhaps its time, which stands first or last."""

    sentence: _Sentence
    time: str | None
    time_first: bool

    @classmethod
    def draw(cls, genre: Genre, rng: random.Random) -> Self:
        """A random statement in the words of a genre."""
        (kind,) = rng.choices(tuple(KIND_WEIGHTS), tuple(KIND_WEIGHTS.values()))
        time = rng.choice(genre.times) if kind is not _Opinion and rng.random() < TIMED else None
        return cls(kind.draw(genre, rng), time, rng.random() < 0.5)

    def vary(self, genre: Genre, rng: random.Random) -> Self:
        """A related statement, as a premise for this one.

        Both name a time or neither does: one left out could be read as any time or as the same.
        """
        time = rng.choice(genre.times) if self.time is not None and rng.random() < OTHER_TIME else self.time
        return type(self)(self.sentence.vary(genre, rng), time, rng.random() < 0.5)

    def label_from(self, premise: Self, genre: Genre) -> int:
        """The label of this statement as the hypothesis; one time leaves open what holds at another."""
        return self.sentence.label_from(premise.sentence, genre) if premise.time == self.time else NEUTRAL

    def text(self, genre: Genre) -> str:
        """The English sentence, with its capital and full stop."""
        text = self.sentence.text(genre)
        if self.time is not None:
            text = f"{self.time}, {text}" if self.time_first else f"{text} {self.time}"
        return f"{text[0].upper()}{text[1:]}."
