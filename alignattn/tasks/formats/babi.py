"""Stories with questions in the format of bAbI (Weston et al. 2015)."""

import re
from pathlib import Path

from alignattn.tasks.formats.file_rows import TextRows
from alignattn.utils.errors import AlignAttnError, shown

STORY, QUESTION, ANSWER = "story", "question", "answer"
"""The columns of rows."""

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
