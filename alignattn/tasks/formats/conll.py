"""Tagged sentences in the format of the CoNLL-2003 shared task (Tjong Kim Sang & De Meulder 2003)."""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path

from alignattn.tasks.formats import TextRows
from alignattn.tasks.labels import parse_label
from alignattn.tasks.names import TAGS, TOKENS
from alignattn.utils.errors import AlignAttnError, plural, shown

_DOCUMENT_START = "-DOCSTART-"
# Not str.split(), which also splits at characters that a token may be, such as no-break and ideographic spaces.
_BLANK = re.compile(r"[ \t]+")
_BLANKS = " \t\r\ufeff"
_NAMED_COMMENT = re.compile(r"#\s*[\w.:-]+\s+=\s")
"""As in CoNLL-U: `# text = It works`."""
_OF_ENTITIES = re.compile(r"O|[BIESLUM]-\S+")
_COUNT, _PART = re.compile(r"\d+"), re.compile(r"\d+[-.]\d+")
"""The number of a word, and the number of several words (`1-2`) or of an unwritten word (`1.1`)."""
_ADVICE = "the first column must be the word and the last its tag"


@dataclass(frozen=True)
class _Line:
    """A line that is not empty: its number from 1, its text, its columns."""

    number: int
    text: str
    columns: list[str]


def read_conll(path: Path, text: str, *, is_labelled: bool = True) -> TextRows:
    """Read one token per line, with columns separated by blanks or tabs; a blank line ends a sentence.

    The first column is the token and the last its tag. `-DOCSTART-` lines and comments at the start of a sentence are
    left out; a line that starts with `#` and has a tag like others is a token. An index column is left out, and so are
    its lines of several words or none (`1-2`, `1.1`). Comments and an index are reported on standard error. Files whose
    first column holds no words, or whose last column holds no tags, are refused.

    Args:
        path: the path of the file, for messages.
        text: its content.
        is_labelled: whether the last column must hold tags; otherwise it may hold anything.

    Returns:
        `tokens` and `ner_tags`, a list of texts per sentence; a sentence is bad if a line has more or fewer columns.
    """
    lines = _lines(path, text)
    # Comments count only if there is nothing else.
    widths = Counter(len(line.columns) for line in lines if line.columns and not line.text.startswith("#"))
    widths = widths or Counter(len(line.columns) for line in lines if line.columns)
    width = max(widths, key=lambda columns: widths[columns], default=0)
    groups = groupby(lines, key=lambda line: bool(line.columns))
    sentences = _without_comments(path, [list(group) for in_sentence, group in groups if in_sentence], width)
    problems = {index: problem for index, lines in enumerate(sentences) if (problem := _problem(lines, width))}
    good = [[] if index in problems else lines for index, lines in enumerate(sentences)]
    rows = _words(path, [[line.columns for line in lines] for lines in good], is_labelled=is_labelled)
    kept = [index for index, row in enumerate(rows) if index in problems or (row and row[0][0] != _DOCUMENT_START)]
    if not kept:
        raise AlignAttnError(f"{path} has no sentence: give a file with one token and its tag per line")
    rows = [rows[index] for index in kept]
    _check_columns(path, [row for row in rows if row], is_labelled=is_labelled)
    columns = {
        TOKENS: [[columns[0] for columns in row] or None for row in rows],
        TAGS: [[columns[-1] for columns in row] or None for row in rows],
    }
    return TextRows(columns, {place: problems[index] for place, index in enumerate(kept) if index in problems})


def _lines(path: Path, text: str) -> list[_Line]:
    """The lines; those between sentences have no columns."""
    # Files of classic Mac OS end lines with a carriage return.
    text = text if "\n" in text else text.replace("\r", "\n")
    lines = [line.strip(_BLANKS) for line in text.split("\n")]
    written = [line for line in lines if line and not line.startswith(_DOCUMENT_START)]
    tokens = [line for line in written if not line.startswith("#")] or written
    has_tabs = bool(tokens) and all("\t" in line for line in tokens)
    if has_tabs:
        # In a line with tabs, a token may contain blanks.
        widths = {len(_BLANK.split(line)) - len(_tabbed(line)) for line in tokens}
        if len(tokens) > 1 and len(widths) == 1 and widths != {0}:
            raise AlignAttnError(
                f"{path} has tabs and blanks between the columns of every line, as {shown(tokens[0])}: separate all "
                "columns by tabs"
            )
    columns = [_tabbed(line) if has_tabs else _BLANK.split(line) for line in lines]
    return [
        _Line(number, line, [] if not line or of_line[0].startswith(_DOCUMENT_START) else of_line)
        for number, (line, of_line) in enumerate(zip(lines, columns, strict=True), start=1)
    ]


def _tabbed(line: str) -> list[str]:
    return [column.strip(" ") for column in line.split("\t")]


def _without_comments(path: Path, sentences: Sequence[list[_Line]], width: int) -> list[list[_Line]]:
    tags = {line.columns[-1] for lines in sentences for line in lines if not line.text.startswith("#")}
    are_entities = bool(tags) and _are_entities(tags)
    comments: list[_Line] = []
    left = []
    for lines in sentences:
        count = 0
        while count < len(lines) and _is_comment(lines[count], width, tags, are_entities):
            count += 1
        comments += lines[:count]
        left.append(lines[count:])
    if comments:
        print(
            f"{path}: {plural(len(comments), 'line')} with # at the start, read as comments; the first is line "
            f"{comments[0].number}: {shown(comments[0].text)}",
            file=sys.stderr,
        )
    return [lines for lines in left if lines]


def _is_comment(line: _Line, width: int, tags: set[str], are_entities: bool) -> bool:
    if not line.text.startswith("#"):
        return False
    if _NAMED_COMMENT.match(line.text):
        return True
    if len(line.columns) != width:
        # A hashtag without a tag is not a comment.
        return len(line.columns) > 1 or not line.text[1:].isalnum()
    # A comment may have as many words as there are columns.
    last = line.columns[-1]
    return last not in tags and not _OF_ENTITIES.fullmatch(last) and (are_entities or "=" in last.strip("="))


def _problem(lines: Iterable[_Line], width: int) -> str | None:
    for line in lines:
        if len(line.columns) == 1:
            return f"line {line.number} has a token without a tag: {shown(line.text)}"
        if len(line.columns) != width:
            return f"line {line.number} has {len(line.columns)} columns, most lines {width}: {shown(line.text)}"
    return None


def _words(path: Path, sentences: list[list[list[str]]], *, is_labelled: bool) -> list[list[list[str]]]:
    """The columns of each line, without an index: the first of three or more, if it numbers the words."""
    lines = [columns for sentence in sentences for columns in sentence]
    if not lines or not all(_COUNT.fullmatch(columns[0]) or _PART.fullmatch(columns[0]) for columns in lines):
        return sentences
    # In each sentence or in the whole file.
    counts = [[int(columns[0]) for columns in rows if _COUNT.fullmatch(columns[0])] for rows in sentences]
    increase = all(before < after for row in counts for before, after in pairwise(row))
    width = max(map(len, lines))
    if width <= len((TOKENS, TAGS)) or not increase or all(len(row) <= 1 for row in counts):
        return sentences
    tags = {columns[-1] for columns in lines}
    # CoNLL-X, CoNLL-U and CoNLL-2009 have eight columns or more besides the index.
    if is_labelled and len(lines[0]) > 8 and not _are_entities(tags):
        raise AlignAttnError(
            f"{path} has the columns of CoNLL-X or CoNLL-U, whose last column has no tags: keep two columns, the word "
            "and the tag"
        )
    left_out = sum(_PART.fullmatch(columns[0]) is not None for columns in lines)
    others = f", with {plural(left_out, 'line')} of several words or none (such as 1-2 or 1.1)" if left_out else ""
    print(f"{path}: its first column numbers the words and is skipped{others}", file=sys.stderr)
    return [[columns[1:] for columns in rows if _COUNT.fullmatch(columns[0])] for rows in sentences]


def _check_columns(path: Path, sentences: Sequence[Sequence[Sequence[str]]], *, is_labelled: bool) -> None:
    """Refuse a first column that holds no words, and a last one of labelled rows that holds no tags."""
    words = [[columns[0] for columns in sentence] for sentence in sentences]
    tags = Counter(columns[-1] for sentence in sentences for columns in sentence)
    long = [row for row in words if len(row) > 1]
    if len(long) > 1 and all(len(set(row)) == 1 for row in long):
        raise AlignAttnError(
            f"{path}: its first column is the same throughout each sentence, such as {shown(long[0][0])}: {_ADVICE}"
        )
    if words and all(_PART.fullmatch(word) for row in words for word in row):
        raise AlignAttnError(f"{path}: its first column numbers the words, such as {shown(words[0][0])}: {_ADVICE}")
    firsts = {word for row in words for word in row}
    if len(firsts) > 1 and _are_entities(firsts) and not any(map(_OF_ENTITIES.fullmatch, tags)):
        raise AlignAttnError(f"{path}: its first column holds tags, such as {shown(max(firsts - {'O'}))}: {_ADVICE}")
    if not is_labelled:
        return
    if tags and set(tags) <= {"_", "-", "*"}:
        raise AlignAttnError(f"{path}: its last column is {shown(max(tags))} throughout, which is not a tag: {_ADVICE}")
    if tags and all(isinstance(parse_label(tag), float) for tag in tags):
        raise AlignAttnError(f"{path}: its last column holds numbers, such as {shown(max(tags))}: {_ADVICE}")
    if long and all(columns[0] == columns[-1] for sentence in sentences for columns in sentence):
        raise AlignAttnError(f"{path}: its last column repeats the word, such as {shown(long[0][0])}: {_ADVICE}")
    if len(tags) > max(20, tags.total() / 2):
        raise AlignAttnError(
            f"{path}: its last column holds {len(tags):,} different values in {tags.total():,} lines, too many for "
            f"tags: {_ADVICE}"
        )


def _are_entities(values: Iterable[str]) -> bool:
    return all(map(_OF_ENTITIES.fullmatch, values))
