"""Stories with questions: files in the format of bAbI (Weston et al. 2015), and such stories made up."""

import random
import re
from collections.abc import Iterator
from pathlib import Path

from alignattn.utils.errors import AlignAttnError, shown

STORY, QUESTION, ANSWER = "story", "question", "answer"
"""The columns of rows."""

_NUMBERED = re.compile(r"(\d+)(?:[^\S\t]+|(?=\t))(.*)")

PERSONS = ("Mary", "John", "Daniel", "Sandra")
PLACES = ("bathroom", "bedroom", "garden", "hallway", "kitchen", "office")
THINGS = ("apple", "football", "milk")
GOES, TAKES, LEAVES = (
    ("moved to", "went to", "journeyed to", "travelled to", "went back to"),
    ("took", "got", "grabbed", "picked up"),
    ("left", "dropped", "discarded", "put down"),
)
"""What persons do: the world of the tasks of one and of two supporting facts."""
QUESTIONS_A_STORY = 5


def read_babi(path: Path, text: str) -> dict[str, list[str]]:
    """Read stories: `1 Mary moved to the bathroom.` a line, and of a question `3 Where is Mary? <tab>bathroom<tab>1`.

    A line numbered 1 begins a story. Each question is a row, with the sentences before it, without other questions.

    Args:
        path: of the file, for messages.
        text: what it holds.

    Returns:
        `story`, `question` and `answer`.
    """
    rows: dict[str, list[str]] = {STORY: [], QUESTION: [], ANSWER: []}
    facts: list[str] = []
    began, is_asked = 1, True
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        # A tab says where an answer is to stand, also where there is none.
        found = _NUMBERED.fullmatch(line.lstrip().rstrip(" \r"))
        if found is None:
            raise AlignAttnError(
                f"line {number} of {path} is none of a story, {shown(line)}: give a number and a sentence, as bAbI "
                "does, or name a table .csv or .tsv"
            )
        if int(found[1]) == 1:
            _check_asked(path, began, is_asked)
            facts, began, is_asked = [], number, False
        sentence, *rest = (part.strip() for part in found[2].split("\t"))
        if not rest:
            facts.append(sentence)
            continue
        if not rest[0] or not sentence:
            raise AlignAttnError(f"line {number} of {path} has a question without an answer: {shown(line)}")
        is_asked = True
        for column, value in zip(rows, (" ".join(facts), sentence, rest[0]), strict=True):
            rows[column].append(value)
    _check_asked(path, began, is_asked)
    if not rows[STORY]:
        raise AlignAttnError(f"{path} holds no story: give numbered lines, and a question with its answer after a tab")
    return rows


def _check_asked(path: Path, began: int, is_asked: bool) -> None:
    if not is_asked:
        raise AlignAttnError(
            f"the story of {path} that begins in line {began} has no question: add one, or take it out"
        )


def made_stories(supporting_facts: int, count: int, seed: int) -> dict[str, list[str]]:
    """Return rows as `read_babi` does, of a small world in which persons go about and, for two facts, carry things.

    Args:
        supporting_facts: that an answer takes: 1, where a person is; 2, where a thing is.
        count: of rows.
        seed: of what happens.
    """
    draw = random.Random(seed)  # noqa: S311  # no secret
    rows: dict[str, list[str]] = {STORY: [], QUESTION: [], ANSWER: []}
    while len(rows[STORY]) < count:
        for story, question, answer in _story(draw, supporting_facts):
            for column, value in zip(rows, (story, question, answer), strict=True):
                rows[column].append(value)
    return {column: values[:count] for column, values in rows.items()}


def _story(draw: random.Random, supporting_facts: int) -> Iterator[tuple[str, str, str]]:
    """The questions of one story, each with what was told before it."""
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
