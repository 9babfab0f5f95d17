"""Tagged sentences in the format of the CoNLL-2003 shared task (Tjong Kim Sang & De Meulder 2003)."""

import re
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

from alignattn.support.errors import AlignAttnError

TOKENS, TAGS = "tokens", "ner_tags"
"""The columns that a file is read into."""

_DOCUMENT_START = "-DOCSTART-"
# Not str.split(): it also splits at characters that a token may be, such as the no-break and ideographic spaces.
_SEPARATOR = re.compile(r"[ \t]+")
_BLANKS = " \t\r"


def read_conll(path: Path, text: str) -> dict[str, list[list[str]]]:
    """Reads one token a line, its columns separated by blanks or tabs; a blank line ends a sentence.

    The first column is the token and the last its tag. A `-DOCSTART-` line ends a sentence and is left out. There
    are no comments: a line that starts with `#` has the token `#`.

    Args:
        path: of the file, for messages.
        text: what it holds.

    Returns:
        `tokens` and `ner_tags`, a list of texts a sentence.
    """
    sentences = [list(lines) for in_sentence, lines in groupby(_columns(path, text), key=bool) if in_sentence]
    if not sentences:
        raise AlignAttnError(f"{path} holds no sentence: give a file with a token and its tag a line")
    return {
        TOKENS: [[columns[0] for columns in sentence] for sentence in sentences],
        TAGS: [[columns[-1] for columns in sentence] for sentence in sentences],
    }


def _columns(path: Path, text: str) -> Iterator[list[str]]:
    """The columns of every line; none of a line that stands between sentences."""
    width = 0
    for number, line in enumerate(text.split("\n"), start=1):
        line = line.strip(_BLANKS)
        columns = _SEPARATOR.split(line) if line else []
        if not columns or columns[0] == _DOCUMENT_START:
            yield []
            continue
        if len(columns) == 1:
            raise AlignAttnError(
                f"line {number} of {path} has a token and no tag: {line!r}; add its tag as the last column"
            )
        width = width or len(columns)
        if len(columns) != width:
            raise AlignAttnError(
                f"line {number} of {path} has {len(columns)} columns, the lines before it {width}: {line!r}; "
                "give every token the same columns"
            )
        yield columns
