"""Generated stories with questions in the style of bAbI (Weston et al. 2015)."""

import random
from collections.abc import Iterator

from alignattn.tasks.formats.babi import ANSWER, QUESTION, STORY

PERSONS = ("Mary", "John", "Daniel", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
GOES, TAKES, LEAVES = (
    ("moved to", "went to", "journeyed to", "travelled to", "went back to"),
    ("took", "got", "grabbed", "picked up"),
    ("left", "dropped", "discarded", "put down"),
)
"""Verbs of the stories; those with one supporting fact use only the first row."""
QUESTIONS_A_STORY = 5


def made_stories(supporting_facts: int, count: int, seed: int) -> dict[str, list[str]]:
    """Return random stories in the columns of `read_babi`: persons move and, with two supporting facts, carry things.

    Args:
        supporting_facts: the number of sentences that an answer needs: 1 to find a person, 2 to find a thing.
        count: the number of rows.
        seed: the seed of the random choices.
    """
    draw = random.Random(seed)  # noqa: S311  # no secret
    rows: list[tuple[str, str, str]] = []
    while len(rows) < count:
        rows += _story(draw, supporting_facts)
    columns = zip(*rows[:count], strict=True)
    return {name: list(values) for name, values in zip((STORY, QUESTION, ANSWER), columns, strict=True)}


def _story(draw: random.Random, supporting_facts: int) -> Iterator[tuple[str, str, str]]:
    """The questions of one story, each with the sentences before it."""
    place_of: dict[str, str] = {}
    holder_of: dict[str, str | None] = {}
    left_at: dict[str, str] = {}
    facts: list[str] = []

    def happens() -> None:
        person = draw.choice(PERSONS)
        free = [
            thing
            for thing in THINGS
            if holder_of.get(thing) is None and left_at.get(thing, place_of.get(person)) == place_of.get(person)
        ]
        held = [thing for thing in THINGS if holder_of.get(thing) == person]
        may = ["go", *(["take"] if free else []), *(["leave"] if held else [])]
        deed = draw.choice(may) if supporting_facts > 1 and person in place_of else "go"
        if deed == "go":
            place_of[person] = draw.choice([place for place in PLACES if place != place_of.get(person)])
            facts.append(f"{person} {draw.choice(GOES)} the {place_of[person]}.")
        else:
            thing = draw.choice(free if deed == "take" else held)
            holder_of[thing] = person if deed == "take" else None
            left_at[thing] = place_of[person]
            facts.append(f"{person} {draw.choice(TAKES if deed == 'take' else LEAVES)} the {thing}.")

    def known() -> list[str]:
        return list(place_of) if supporting_facts == 1 else list(holder_of)

    for _ in range(QUESTIONS_A_STORY):
        happens()
        happens()
        while not known():
            happens()
        asked = draw.choice(known())
        holder = holder_of.get(asked)
        answer = place_of[asked] if asked in place_of else left_at[asked] if holder is None else place_of[holder]
        the = "" if asked in place_of else "the "
        yield " ".join(facts), f"Where is {the}{asked}?", answer
