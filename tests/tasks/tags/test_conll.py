"""Files in the format of CoNLL-2003."""

from pathlib import Path

import pytest

from alignattn.support.errors import AlignAttnError
from alignattn.tasks.sources import read_file

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
German JJ I-NP B-MISC

-DOCSTART- -X- O
# SYM O O
1996-08-22 CD I-NP O


"""
TOKENS = [["EU", "rejects", "German"], ["#", "1996-08-22"]]
TAGS = [["B-ORG", "O", "B-MISC"], ["O", "O"]]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.conll"


def test_first_and_last_column_of_every_sentence(path: Path) -> None:
    path.write_text(CONLL_2003)
    assert read_file(path)[:] == {"tokens": TOKENS, "ner_tags": TAGS}


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text.replace(" ", "\t"),
        lambda text: text.replace(" ", " \t "),
        lambda text: text.replace("\n", " \n"),
        lambda text: text.replace("\n", "\r\n"),
        lambda text: "\ufeff" + text,
        lambda text: text.rstrip("\n"),
        lambda text: "\n\n" + text.replace("\n\n", "\n \t\n\n"),
        lambda text: text.replace("MISC\n\n", "MISC\n"),  # the document's start ends a sentence too
    ],
    ids=["tabs", "mixed", "trailing blanks", "CRLF", "byte order mark", "no last newline", "blank lines", "no blank"],
)
def test_layout_makes_no_difference(path: Path, change) -> None:  # type: ignore[no-untyped-def]
    path.write_bytes(change(CONLL_2003).encode())
    assert read_file(path)[:] == {"tokens": TOKENS, "ner_tags": TAGS}


@pytest.mark.parametrize("token", ["中", "a\u00a0b", "\u3000", "\u2028", "\x85", "\x0c", '"'])
def test_only_blanks_tabs_and_newlines_separate(path: Path, token: str) -> None:
    path.write_text(f"{token} O\n", encoding="utf-8")
    assert read_file(path)[:] == {"tokens": [[token]], "ner_tags": [["O"]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"EU B-ORG\nsays O\n\nno\n", "line 4 of .*x.conll has a token and no tag: 'no'"),
        (b"EU NNP B-ORG\n\nsays O\n", "line 3 of .*x.conll has 2 columns, most lines 3: 'says O'"),
        (b"", "x.conll holds no sentence"),
        (b"-DOCSTART- O\n\n\n", "x.conll holds no sentence"),
        ("Köln B-LOC\n".encode("latin-1"), "x.conll, row 1: column .tokens. holds the byte 0xf6.*--encoding"),
    ],
)
def test_faults_are_named(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    with pytest.raises(AlignAttnError, match=message) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)


def test_missing_file(path: Path) -> None:
    with pytest.raises(AlignAttnError, match=r"there is no file .*x\.conll"):
        read_file(path)
