"""Stories with questions in the format and the style of bAbI (Weston et al. 2015): read from a file, or generated."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from alignattn.tasks.formats import TextRows
from alignattn.utils.errors import AlignAttnError, shown

STORY, QUESTION, ANSWER = "story", "question", "answer"
"""The columns of rows."""

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

_NUMBERED = re.compile(r"(\d+)(?:[^\S\t]+|(?=\t))(.*)")


def read_babi(path: Path, text: str) -> TextRows:
    """Read stories of lines such as `1 Mary moved to the bathroom.` and `3 Where is Mary? <tab>bathroom<tab>1`.

    A line numbered 1 begins a story. Each question is a row with the sentences before it.

    Args:
        path: the path of the file, for messages.
        text: its content.

    Returns:
        The columns `story`, `question` and `answer`.
    """
    rows: list[tuple[str, str, str]] = []
    facts: list[str] = []
    start, is_asked = 1, True

    def check_asked() -> None:
        if not is_asked:
            raise AlignAttnError(
                f"the story of {path} that begins in line {start} has no question: add one, or remove the story"
            )

    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        # A tab marks the place of an answer, even of a missing one.
        found = _NUMBERED.fullmatch(line.lstrip().rstrip(" \r"))
        if found is None:
            raise AlignAttnError(
                f"line {number} of {path} is not a line of a bAbI story, {shown(line)}: write a number and a "
                "sentence (a table needs the ending .csv or .tsv)"
            )
        if int(found[1]) == 1:
            check_asked()
            facts, start, is_asked = [], number, False
        sentence, *rest = (part.strip() for part in found[2].split("\t"))
        if not rest:
            facts.append(sentence)
            continue
        if not rest[0] or not sentence:
            raise AlignAttnError(f"line {number} of {path} has a question without an answer: {shown(line)}")
        is_asked = True
        rows.append((" ".join(facts), sentence, rest[0]))
    check_asked()
    if not rows:
        raise AlignAttnError(f"{path} has no story: give numbered lines, and a question with its answer after a tab")
    columns = zip(*rows, strict=True)
    return TextRows({name: list(values) for name, values in zip((STORY, QUESTION, ANSWER), columns, strict=True)})


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
