"""Files in the format of CoNLL-2003."""

import pytest

from alignattn.tasks.reading import read_file, read_rows
from alignattn.utils.errors import AlignAttnError

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
def path(tmp_path):
    return tmp_path / "x.conll"


def test_first_and_last_column_of_every_sentence_are_read(path):
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
def test_layout_makes_no_difference(path, change):
    path.write_bytes(change(CONLL_2003).encode())
    assert read_file(path)[:] == {"tokens": TOKENS, "ner_tags": TAGS}


@pytest.mark.parametrize("token", ["中", "a\u00a0b", "\u3000", "\u2028", "\x85", "\x0c", '"'])
def test_only_blanks_tabs_and_newlines_separate(path, token):
    path.write_text(f"{token} O\n", encoding="utf-8")
    assert read_file(path)[:] == {"tokens": [[token]], "ner_tags": [["O"]]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"EU B-ORG\nsays O\n\nno\n", "x.conll, row 2: line 4 has a token without a tag: 'no'"),
        (b"EU NNP B-ORG\n\nsays O\n", "x.conll, row 2: line 3 has 2 columns, most lines 3: 'says O'"),
        (b"", "x.conll has no sentence"),
        (b"-DOCSTART- O\n\n\n", "x.conll has no sentence"),
        ("Köln B-LOC\n".encode("latin-1"), "x.conll, row 1: column .tokens. holds the byte 0xf6.*--encoding"),
    ],
)
def test_faults_are_named(path, content, message):
    path.write_bytes(content)
    with pytest.raises(AlignAttnError, match=message) as caught:
        read_file(path)
    assert "\n" not in str(caught.value)


def test_missing_file(path):
    with pytest.raises(AlignAttnError, match=r"there is no file .*x\.conll"):
        read_file(path)


SENTENCES = [["EU", "rejects", "it"], ["German", "call"]]
SENTENCE_TAGS = [["B-ORG", "O", "O"], ["B-MISC", "O"]]


def lines(form, first=1, *, restarts=True):
    """The sentences, with a line of `form` per word: its number `n`, its sentence's `s`, the word `w`, its tag `t`."""
    text, number = "", first
    for sentence, (words, tags) in enumerate(zip(SENTENCES, SENTENCE_TAGS, strict=True)):
        number = first if restarts else number
        for word, tag in zip(words, tags, strict=True):
            text += form.format(n=number, s=sentence, w=word, t=tag) + "\n"
            number += 1
        text += "\n"
    return text


@pytest.mark.parametrize(
    "text",
    [
        lines("{n} {w} {t}"),
        lines("{n}\t{w}\tNN\t{t}", 0),
        lines("{n} {w} {t}", restarts=False),
        "1-2 EUs _\n" + lines("{n} {w} {t}").replace("\n2 rejects", "\n1.1 not _\n2 rejects"),
        lines("{n}\t{w}\t_\tN\tN\t_\t0\troot\t_\t{t}"),
        "1 -DOCSTART- O\n\n" + lines("{n} {w} {t}"),
    ],
    ids=["from 1", "from 0", "through the file", "several words or none", "tags in the last of ten", "document"],
)
def test_a_column_that_counts_the_words_is_left_out(path, text, capsys):
    path.write_text(text)
    assert read_file(path)[:] == {"tokens": SENTENCES, "ner_tags": SENTENCE_TAGS}
    assert "numbers the words" in capsys.readouterr().err


@pytest.mark.parametrize(
    "comment",
    [
        "# text = EU rejects it",
        "# text = O",
        "# id 59 domain=train",
        "# sent 1",
        "#begin document (a/b); part 000",
        "# a word apart",
        "#\thttp://example.org [2009-10-17]",
    ],
)
@pytest.mark.parametrize("form", ["{w} N x {t}", "{w}\tN\tx\t{t}", "{w} {t}"])
def test_comments_are_left_out_and_reported(path, comment, form, capsys):
    path.write_text(f"{comment}\n" + lines(form).replace("\n\n", f"\n\n{comment}\n"))
    assert read_file(path)[:] == {"tokens": SENTENCES, "ner_tags": SENTENCE_TAGS}
    assert "are read as comments" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("# SYM O\nit PRP O\n", ["#", "it"]),
        ("# #\n300 CD\nis VBZ\n", ["#", "300", "is"]),
        ("#fail #\nagain R\n", ["#fail", "again"]),
        ("#fail O\n#id B-X\nit O\n", ["#fail", "#id", "it"]),
        ("it PRP\n# #\n", ["it", "#"]),
        ("# O\n", ["#"]),
    ],
)
def test_tokens_may_begin_like_comments(path, text, tokens):
    path.write_text(text)
    assert read_file(path)["tokens"][:] == [tokens]


def test_a_hashtag_without_a_tag_is_no_comment(path):
    path.write_text("#fail\nit O\n")
    with pytest.raises(AlignAttnError, match="line 1 has a token without a tag"):
        read_file(path)


def test_a_token_between_tabs_may_contain_blanks(path):
    path.write_text("New York\tB-LOC\nis\tO\n\n-DOCSTART- O\n\n10 000 000\tO\n")
    assert read_file(path)["tokens"][:] == [["New York", "is"], ["10 000 000"]]


@pytest.mark.parametrize("text", [lines("{w} {t}").replace("\n", "\r"), lines("\ufeff{w} {t}")], ids=["CR", "marks"])
def test_odd_line_ends_and_marks(path, text):
    path.write_bytes(text.encode())
    assert read_file(path)[:] == {"tokens": SENTENCES, "ner_tags": SENTENCE_TAGS}


@pytest.mark.parametrize(
    "text",
    [
        lines("{n}\t{w}\t_\tN\tN\t_\t0\troot\t_\t_"),
        lines("{n}\t{w}\t{w}\tN\tN\t_\t0\troot\t_\tSpaceAfter=No"),
        lines("{n}\t{w}\t{t}\t-\t-"),
        lines("{w} _"),
        lines("{w} {t} 0.{n}"),
        lines("{w} {t} {w}"),
        lines("a/b/c 0 {n} {w} {t}"),
        lines("{s} {w} {t}"),
        lines("{s}-{n}\t{w}\t{t}"),
        lines("{t}\t{w}"),
        lines("{w} N {t}").replace(" N ", " N\t"),
        "".join(f"word {number}\n" for number in range(30)),
    ],
    ids=["X", "U", "UNER", "none", "scores", "words", "2012", "sentences", "WebAnno", "first", "blanks", "many"],
)
def test_columns_other_than_words_and_tags_are_refused(path, text):
    path.write_text(text)
    with pytest.raises(AlignAttnError, match=r"x\.conll.* column"):
        read_file(path)


@pytest.mark.parametrize(
    "form",
    ["{w} _", "{w} 0.{n}", "{w} {w}", "{n}\t{w}\t{w}\tN\tN\t_\t0\troot\t_\tSpaceAfter=No"],
    ids=["none", "scores", "words", "U"],
)
def test_a_file_to_predict_may_hold_anything_in_its_last_column(path, form):
    path.write_text(lines(form))
    with pytest.raises(AlignAttnError, match="last column"):
        read_rows(path)
    assert read_rows(path, is_labelled=False).dataset["tokens"][:] == SENTENCES
