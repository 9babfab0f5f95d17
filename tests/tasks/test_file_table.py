"""A table of files: the content of each with its rows or the refusal in one line, and what standard error says."""

import bz2
import csv
import gzip
import io
import json
import lzma
import re
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from alignattn.tasks.reading import read_file, read_rows
from alignattn.utils.errors import AlignAttnError


@dataclass(frozen=True)
class Case:
    """A file and what reading it gives.

    Attributes:
        name: the name of the file.
        content: its content, UTF-8 if it is text.
        rows: its columns; None if it is refused.
        refusal: a pattern of the one-line refusal, which also names the file.
        says: a pattern of what standard error says; empty = nothing.
        encoding: as for `read_file`.
    """

    name: str
    content: str | bytes
    rows: dict[str, Any] | None = None
    refusal: str = ""
    says: str = ""
    encoding: str | None = None


def table(*names: str, **columns: list[Any]) -> dict[str, Any]:
    """Columns by name; `names` stand for keywords that Python does not allow."""
    return dict(zip(names or columns, columns.values(), strict=True))


# Separated tables

ROWS = {
    "text": ['a, "b"; c', "naïve\nline", "tab\there", "x" * 200_000, '"whole"', "| 007 NA"],
    "y": ["no", "yes", "no", "yes", "yes", "no"],
}
RECORDS = [dict(zip(ROWS, row, strict=True)) for row in zip(*ROWS.values(), strict=True)]


def separated(separator: str) -> str:
    file = io.StringIO(newline="")
    csv.writer(file, delimiter=separator).writerows([list(ROWS), *map(list, zip(*ROWS.values(), strict=True))])
    return file.getvalue()


UNQUOTED = {"text": ['He said "no', '"No" he said', "a, b; c", "7"], "y": ["no", "yes", "no", "yes"]}
GOOD = {"text": ["good", "bad", "fine", "poor"], "label": ["pos", "neg", "pos", "neg"]}
CSV = "text,label\ngood,pos\nbad,neg\nfine,pos\npoor,neg\n"

TABLES = {
    "commas": Case("t.csv", separated(","), ROWS),
    "tabs": Case("t.tsv", separated("\t"), ROWS),
    "semicolons": Case("t.csv", separated(";"), ROWS, says="t.csv: its columns seem to be separated by semicolons\n"),
    "bars": Case("t.CSV", separated("|"), ROWS, says="separated by vertical bars"),
    "tabs in CSV": Case("t.csv", separated("\t"), ROWS, says="separated by tabs"),
    "commas in TSV": Case("t.tsv", separated(","), ROWS, says="separated by commas"),
    "one column": Case("t.csv", "text\na;b\nc;d\n", {"text": ["a;b", "c;d"]}),
    "one column, empty": Case("t.csv", 'text\na\n""\n\n  \nb\n', {"text": ["a", "", "b"]}),
    "as written": Case(
        "t.csv", "text,y\nNA,null\n007,none\n1e3,nan\n", table(text=["NA", "007", "1e3"], y=["null", "none", "nan"])
    ),
    "long field": Case("t.csv", f"text\n{'a cat ' * 50_000}\n", {"text": ["a cat " * 50_000]}),
    "unquoted tabs": Case(
        "t.tsv",
        "\n".join("\t".join(row) for row in [UNQUOTED, *zip(*UNQUOTED.values(), strict=True)]) + "\n",
        UNQUOTED,
        says="double quotes are read as text",
    ),
    # Read as quotes, they would make one row with a text of two lines.
    "quotes that would join lines": Case(
        "t.tsv", 'text\ty\n"a\tno\nb"\tyes\n', table(text=['"a', 'b"'], y=["no", "yes"]), says="are read as text"
    ),
    "spam.csv": Case("t.csv", "text,label,,,\ngood,pos,,,\nbad,neg,,,\nfine,pos,,,\npoor,neg,,,\n", GOOD),
    "short rows": Case("t.csv", "text,label, ,\ngood,pos\nbad,neg,,\nfine,pos,\npoor,neg\n", GOOD),
    "last comma": Case("t.csv", "text,label\ngood,pos,\nbad,neg,\nfine,pos,\npoor,neg,\n", GOOD),
    "empty in the middle": Case("t.csv", "text,,label\ngood,,pos\nbad,,neg\n\n   \nfine,,pos\npoor,,neg\n", GOOD),
    "index of pandas": Case("t.csv", ",text\n7,a\n8,b\n", {"Unnamed: 0": ["7", "8"], "text": ["a", "b"]}),
    "spreadsheet": Case(
        "t.csv",
        "sep=;\r\ntext;label;\r\ngood;pos;\r\nbad;neg;\r\nfine;pos;\r\npoor;neg;\r\n",
        GOOD,
        says="semicolons",
    ),
    "unnamed values": Case(
        "t.csv",
        "v1,v2,,\nham,a,,\nspam,b, cut off,here\nham,c,,\n",
        table(
            *("v1", "v2", "Unnamed: 2", "Unnamed: 3"),
            a=["ham", "spam", "ham"],
            b=["a", "b", "c"],
            c=["", " cut off", ""],
            d=["", "here", ""],
        ),
        says="1 row, the first of them row 2, with values in unnamed columns",
    ),
    "column twice": Case("t.csv", "text,label,label\na,b,c\n", refusal="duplicate columns: text, label, label; rename"),
    "column twice, unnamed": Case("t.csv", "text,label,label,,\na,b,c,,\n", refusal="duplicate columns"),
    "header alone": Case("t.tsv", "text\ty\n", refusal=r"is empty except for its header \('text', 'y'\)"),
    "no byte": Case("t.csv", b"", refusal="is empty: give a file"),
    "too many values": Case("t.tsv", "text\ty\na\tb\tc\n", refusal="row 1: it has 3 values, and the header has 2"),
    "too few values": Case("t.csv", CSV + "a\n", refusal="row 5: it has 1 value, and the header has 2"),
    "comma in a text": Case("t.csv", CSV + "a, b,pos\n", refusal="row 5: .* texts that hold a comma in double quotes"),
    "text after a quote": Case("t.csv", CSV + '"a" b,pos\n', refusal="line 6, row 5: it has double quotes that do not"),
    "open quote": Case("t.csv", CSV + '"a,pos\n', refusal=r"line 6, row 5: .*\(1 bad of 5 rows\)"),
    "open quote, lines after it": Case(
        "t.csv", 'text,y\n"a,no\nb,no\nc,yes\n', refusal=r"line 2, row 1: it has double quotes.*\(1 bad of 3 rows\)"
    ),
    "parts of a broken field": Case(
        "t.csv",
        'text,y\n"one\ntwo "quoted" three",pos\nb,neg\n',
        refusal=r"line 2, row 1: .*; line 3, row 2: .*\(2 bad of 3 rows\); correct them",
    ),
    "quote in the header": Case("t.csv", '"text" x,y\na,b\n', refusal="cannot read the header"),
    "header again": Case("t.csv", 'text,y\na,b\n "Text",Y\n', refusal="row 2: it repeats the header"),
}

# JSON

TOY = [dict(zip(GOOD, row, strict=True)) for row in zip(*GOOD.values(), strict=True)]
LINES = "".join(json.dumps(record) + "\n" for record in TOY)
JSON = {
    "list": Case("t.jsonl", json.dumps(TOY), GOOD),
    "pretty": Case("t.json", json.dumps(TOY, indent=2), GOOD),
    "data": Case("t.jsonl", json.dumps({"data": TOY}), GOOD),
    "data beside others": Case("t.json", json.dumps({"version": 1, "data": TOY, "splits": ["a"]}, indent=1), GOOD),
    "one name": Case("t.json", json.dumps({"rows": TOY}), GOOD),
    "objects": Case("t.jsonl", "\n".join(json.dumps(record, indent=2) for record in TOY), GOOD),
    "first pretty": Case("t.json", "\n".join([json.dumps(TOY[0], indent=2), *map(json.dumps, TOY[1:])]), GOOD),
    "one line": Case("t.jsonl", " ".join(map(json.dumps, TOY)), GOOD),
    "JSON, CRLF": Case("t.json", "\ufeff" + LINES.replace("\n", "\r\n\r\n"), GOOD),
    "lines": Case("t.jsonl", "\n".join(map(json.dumps, RECORDS)), ROWS),
    "lines in .json": Case("t.json", LINES, GOOD),
    "no dates": Case(
        "t.jsonl", '{"t": "2020-01-01"}\n{"t": "2021\u2028next"}', {"t": ["2020-01-01", "2021\u2028next"]}
    ),
    "missing values": Case("t.jsonl", '{"a": null, "b": 1}\n{"a": "x"}', {"a": [None, "x"], "b": [1, None]}),
    "large integer": Case("t.jsonl", '{"a": 1180591620717411303424}', {"a": ["1180591620717411303424"]}),
    "no row": Case("t.json", "[]", refusal="is empty"),
    "blank lines": Case("t.jsonl", "\n \n", refusal="is empty"),
    # Texts that are JSON by themselves, or nearly, beside other values.
    **{
        f"mixed {values}": Case("t.jsonl", "\n".join(json.dumps({"a": value}) for value in values), {"a": values})
        for values in (
            *(["-", 1, None], ["01", 1], ["null", 1], ["NaN", 2.5], ["true", True], ['"quoted"', 1], ["12", "x", 8]),
            *([["2019", "-"], ["in", 2020]], [{"text": ["1912"]}, {"text": [1913]}], [{"a": "01"}, {"b": 1}]),
        )
    },
    "cut list": Case("t.json", json.dumps(TOY, indent=1)[:-3], refusal=r"is not JSON: .*line \d+"),
    "cut objects": Case("t.json", json.dumps(TOY[0], indent=1) + '{\n"text": "a\n', refusal=r"is not JSON: .*line \d+"),
    "list without commas": Case("t.json", "[" + LINES + "]", refusal=r"is not JSON: .*line \d+"),
    "other text": Case("t.json", "no JSON", refusal=r"is not JSON: .*line \d+"),
    "broken line": Case(
        "t.jsonl", LINES + '{"text": "a", "label": \n', refusal="line 5, row 5: it is not JSON: Expecting value"
    ),
    "nested": Case(
        "t.jsonl", LINES + '{"text": ' + "[" * 9999 + "]" * 9999 + "}\n", refusal="row 5: .*nested too deeply"
    ),
    "a list as a row": Case(
        "t.jsonl", LINES + '["a", "pos"]\n', refusal="row 5: it is .'a', 'pos'., not a JSON object"
    ),
    "lists alone": Case("t.json", "[[1], [2]]", refusal="has no rows: it is .1., not a JSON object"),
    "half of a character": Case(
        "t.jsonl", LINES + '{"text": "a \\ud83d b", "label": "pos"}\n', refusal=r"row 5: column 'text' holds .ud83d"
    ),
    "half, in a list": Case("t.json", '[{"text": ["\\ud83d"]}]', refusal="row 1: column 'text' holds"),
    "half, in a key": Case("t.jsonl", '{"text": {"\\ud83d": 1}}\n', refusal="row 1: column 'text' holds"),
    "half, in a name": Case("t.jsonl", '{"\\ud83d": 1}\n', refusal="whose name is not valid text: correct the file"),
}

# Encodings, compression, Parquet, other files


def parquet(columns: Any) -> bytes:
    file = io.BytesIO()
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), file)
    return file.getvalue()


def not_utf_8() -> pa.Table:
    texts = pa.array([b"good", b"\xff"], pa.binary())
    return pa.table({"text": pa.Array.from_buffers(pa.string(), len(texts), texts.buffers()), "y": ["a", "b"]})


CITIES, CITY_ROWS = "text,y\nKöln,yes\nOslo,no\n", {"text": ["Köln", "Oslo"], "y": ["yes", "no"]}
GZIP = gzip.compress(CSV.encode() * 99)
COMPRESSED = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": partial(pa.compress, codec="zstd", asbytes=True),
}
FILES = {
    **{
        f"{name}{suffix}": Case(f"{name}{suffix}", compress(content.encode()), ROWS)
        for suffix, compress in COMPRESSED.items()
        for name, content in (("t.csv", separated(",")), ("t.tsv", separated("\t")), ("t.jsonl", json.dumps(RECORDS)))
    },
    **{
        f"{encoding} given": Case("t.csv", CITIES.encode(encoding), CITY_ROWS, encoding=encoding)
        for encoding in ("cp1252", "utf-16", "utf-8")
    },
    **{
        f"mark in {encoding}": Case(
            "t.csv", ("\ufeff" + CSV).encode(encoding.replace("-sig", "")), GOOD, encoding=encoding
        )
        for encoding in ("utf-8", "utf-8-sig", "utf-16", "utf-16-le")
    },
    "cp1252 not given": Case(
        "t.csv", CITIES.encode("cp1252"), refusal="row 1: column 'text' holds the byte 0xf6.*--encoding"
    ),
    "in JSON": Case("t.jsonl", b'{"text": "\xe4"}', refusal="row 1: column 'text' holds the byte 0xe4.*--encoding"),
    "in the header": Case(
        "t.csv",
        "tëxt,y\na,b\n".encode("latin-1"),
        refusal="whose name is not valid text: save it as UTF-8, or give its --encoding",
    ),
    "UTF-16 not given": Case("t.csv", CSV.encode("utf-16"), refusal="give --encoding utf-16"),
    "UTF-16-LE not given": Case("t.csv", CSV.encode("utf-16-le"), refusal="give --encoding utf-16-le"),
    "UTF-16-BE not given": Case("t.csv", CSV.encode("utf-16-be"), refusal="utf-16-be"),
    "UTF-16 wrongly given": Case(
        "t.csv", CITIES[:-2], refusal="as CSV: .*; save it as UTF-8, or give its --encoding", encoding="utf-16"
    ),
    "gzip without its ending": Case("t.csv", gzip.compress(CSV.encode()), refusal=r"its name must end in \.gz"),
    "spreadsheet as CSV": Case("t.csv", b"PK\x03\x04" + bytes(range(256)), refusal="ZIP archive or a spreadsheet"),
    "no gzip": Case("t.csv.gz", b"no gzip", refusal="cannot read .* as CSV"),
    "cut gzip": Case("t.csv.gz", GZIP[:-9], refusal="cannot read .* as CSV: .*; correct the file"),
    "no xz": Case("t.csv.xz", b"no xz", refusal="cannot read .* as CSV"),
    "cut xz": Case("t.csv.xz", lzma.compress(CSV.encode())[:-9], refusal="cannot read .* as CSV"),
    "no bz2": Case("t.csv.bz2", b"no bz2", refusal="cannot read .* as CSV"),
    "no zst": Case("t.jsonl.zst", b"no zst", refusal="cannot read .* as JSONL"),
    "empty in gzip": Case("t.csv.gz", gzip.compress(b""), refusal="is empty"),
    "gzip of what": Case("t.gz", gzip.compress(b"text"), refusal="cannot tell the format"),
    "ZIP": Case("t.zip", b"", refusal="cannot tell the format"),
    "unknown ending": Case(
        "t.dat", CSV, refusal=r"must end in \.csv, \.tsv, \.json, \.jsonl, \.conll, \.txt, \.parquet"
    ),
    "story": Case(
        "t.txt", "1 A is in.\n2 Where?\tin\t1\n", {"story": ["A is in."], "question": ["Where?"], "answer": ["in"]}
    ),
    "no story": Case("t.txt", "text,y\nu,0\n", refusal="line 1 of .*bAbI"),
    "Parquet": Case("t.parquet", parquet(ROWS), ROWS),
    "Parquet, a pattern": Case("t[1].parquet", parquet({"text": ["a"]}), {"text": ["a"]}),
    "Parquet, another pattern": Case("t?.parquet", parquet({"text": ["a"]}), {"text": ["a"]}),
    "Parquet without rows": Case("t.parquet", parquet({"text": pa.array([], pa.string())}), refusal="is empty"),
    "no Parquet": Case("t.parquet", "no Parquet file at all", refusal="cannot read .* as PARQUET"),
    "Parquet, not UTF-8": Case("t.parquet", parquet(not_utf_8()), refusal="row 2: column 'text' is not valid UTF-8"),
    "Parquet, column twice": Case(
        "t.parquet", parquet(pa.Table.from_arrays([[1], [2]], names=["a", "a"])), refusal="duplicate columns: a, a"
    ),
}

# CoNLL

CONLL_2003 = """\
-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O
German JJ I-NP B-MISC

-DOCSTART- -X- O
# SYM O O
1996-08-22 CD I-NP O


"""
CONLL_ROWS = {
    "tokens": [["EU", "rejects", "German"], ["#", "1996-08-22"]],
    "ner_tags": [["B-ORG", "O", "B-MISC"], ["O", "O"]],
}
SENTENCES = {
    "tokens": [["EU", "rejects", "it"], ["German", "call"]],
    "ner_tags": [["B-ORG", "O", "O"], ["B-MISC", "O"]],
}


def lines(form: str, first: int = 1, *, restarts: bool = True) -> str:
    """The sentences, with a line of `form` per word: its number `n`, its sentence's `s`, the word `w`, its tag `t`."""
    text, number = "", first
    for sentence, (words, tags) in enumerate(zip(*SENTENCES.values(), strict=True)):
        number = first if restarts else number
        for word, tag in zip(words, tags, strict=True):
            text += form.format(n=number, s=sentence, w=word, t=tag) + "\n"
            number += 1
        text += "\n"
    return text


COMMENTS = ("# text = EU rejects it", "# text = O", "# id 59 domain=train", "# sent 1", "# a word apart")
COMMENTS += ("#begin document (a/b); part 000", "#\thttp://example.org [2009-10-17]")
TOKENS_LIKE_COMMENTS = {
    "# SYM O\nit PRP O\n": ["#", "it"],
    "# #\n300 CD\nis VBZ\n": ["#", "300", "is"],
    "#fail #\nagain R\n": ["#fail", "again"],
    "#fail O\n#id B-X\nit O\n": ["#fail", "#id", "it"],
    "it PRP\n# #\n": ["it", "#"],
    "# O\n": ["#"],
}
NO_TAGS = {"none": "{w} _", "scores": "{w} {t} 0.{n}", "words": "{w} {t} {w}"}
NO_TAGS["U"] = "{n}\t{w}\t{w}\tN\tN\t_\t0\troot\t_\tSpaceAfter=No"
CONLL = {
    **{
        f"CoNLL, {name}": Case("t.conll", content, CONLL_ROWS)
        for name, content in {
            "as published": CONLL_2003,
            "tabs": CONLL_2003.replace(" ", "\t"),
            "mixed": CONLL_2003.replace(" ", " \t "),
            "trailing blanks": CONLL_2003.replace("\n", " \n"),
            "CRLF": CONLL_2003.replace("\n", "\r\n"),
            "byte order mark": "\ufeff" + CONLL_2003,
            "no last newline": CONLL_2003.rstrip("\n"),
            "blank lines": "\n\n" + CONLL_2003.replace("\n\n", "\n \t\n\n"),
            # The document's start ends a sentence too.
            "no blank line": CONLL_2003.replace("MISC\n\n", "MISC\n"),
        }.items()
    },
    **{
        f"CoNLL, token {token!r}": Case("t.conll", f"{token} O\n", {"tokens": [[token]], "ner_tags": [["O"]]})
        for token in ("中", "a\u00a0b", "\u3000", "\u2028", "\x85", "\x0c", '"')
    },
    **{
        f"CoNLL, index {name}": Case("t.conll", content, SENTENCES, says="its first column numbers the words")
        for name, content in {
            "from 1": lines("{n} {w} {t}"),
            "from 0": lines("{n}\t{w}\tNN\t{t}", 0),
            "through the file": lines("{n} {w} {t}", restarts=False),
            "of parts": "1-2 EUs _\n" + lines("{n} {w} {t}").replace("\n2 rejects", "\n1.1 not _\n2 rejects"),
            "of ten columns": lines("{n}\t{w}\t_\tN\tN\t_\t0\troot\t_\t{t}"),
            "after a document": "1 -DOCSTART- O\n\n" + lines("{n} {w} {t}"),
        }.items()
    },
    **{
        f"CoNLL, {comment}, {form}": Case(
            "t.conll",
            f"{comment}\n" + lines(form).replace("\n\n", f"\n\n{comment}\n"),
            SENTENCES,
            says="read as comments",
        )
        for comment in COMMENTS
        for form in ("{w} N x {t}", "{w}\tN\tx\t{t}", "{w} {t}")
    },
    **{
        f"CoNLL, no comment, {content}": Case(
            "t.conll", content, {"tokens": [tokens], "ner_tags": [[line.split()[-1] for line in content.splitlines()]]}
        )
        for content, tokens in TOKENS_LIKE_COMMENTS.items()
    },
    "CoNLL, carriage returns": Case("t.conll", lines("{w} {t}").replace("\n", "\r"), SENTENCES),
    "CoNLL, marks": Case("t.conll", lines("\ufeff{w} {t}"), SENTENCES),
    "CoNLL, blanks between tabs": Case(
        "t.conll",
        "New York\tB-LOC\nis\tO\n\n-DOCSTART- O\n\n10 000 000\tO\n",
        {"tokens": [["New York", "is"], ["10 000 000"]], "ner_tags": [["B-LOC", "O"], ["O"]]},
    ),
    **{
        f"CoNLL, {name} refused": Case("t.conll", content, refusal=" column")
        for name, content in {
            "X": lines("{n}\t{w}\t_\tN\tN\t_\t0\troot\t_\t_"),
            "UNER": lines("{n}\t{w}\t{t}\t-\t-"),
            "2012": lines("a/b/c 0 {n} {w} {t}"),
            "sentences": lines("{s} {w} {t}"),
            "WebAnno": lines("{s}-{n}\t{w}\t{t}"),
            "tags first": lines("{t}\t{w}"),
            "blanks": lines("{w} N {t}").replace(" N ", " N\t"),
            "many": "".join(f"word {number}\n" for number in range(30)),
            **{name: lines(form) for name, form in NO_TAGS.items()},
        }.items()
    },
    "CoNLL, no tag": Case(
        "t.conll", "EU B-ORG\nsays O\n\nno\n", refusal="row 2: line 4 has a token without a tag: 'no'"
    ),
    "CoNLL, hashtag without a tag": Case("t.conll", "#fail\nit O\n", refusal="line 1 has a token without a tag"),
    "CoNLL, no tag at all": Case("t.conll", "EU\nsays\n", refusal="line 1 has a token without a tag"),
    "CoNLL, columns": Case(
        "t.conll", "EU NNP B-ORG\n\nsays O\n", refusal="row 2: line 3 has 2 columns, most lines 3: 'says O'"
    ),
    "CoNLL, empty": Case("t.conll", "", refusal="has no sentence"),
    "CoNLL, no sentence": Case("t.conll", "-DOCSTART- O\n\n\n", refusal="has no sentence"),
    "CoNLL, Latin-1": Case(
        "t.conll", b"K\xf6ln B-LOC\n", refusal="row 1: column 'tokens' holds the byte 0xf6.*--encoding"
    ),
}

CASES = TABLES | JSON | FILES | CONLL


def written(folder: Path, case: Case) -> Path:
    path = folder / case.name
    path.write_bytes(case.content if isinstance(case.content, bytes) else case.content.encode())
    return path


@pytest.mark.parametrize("name", CASES)
def test_a_file_gives_its_rows_or_one_line(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    case = CASES[name]
    path = written(tmp_path, case)
    if case.rows is not None:
        assert read_file(path, encoding=case.encoding)[:] == case.rows
    else:
        with pytest.raises(AlignAttnError, match=case.refusal) as caught:
            read_file(path, encoding=case.encoding)
        assert "\n" not in str(caught.value)
        assert str(path) in str(caught.value)
    said = capsys.readouterr().err
    if case.rows is not None:
        assert re.search(case.says, said) if case.says else not said


@pytest.mark.parametrize("form", NO_TAGS.values(), ids=NO_TAGS)
def test_a_file_to_predict_may_hold_anything_in_its_last_column(tmp_path: Path, form: str) -> None:
    path = written(tmp_path, Case("t.conll", lines(form)))
    assert read_rows(path, is_labelled=False).dataset["tokens"][:] == SENTENCES["tokens"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(AlignAttnError, match=r"there is no file .*x\.conll"):
        read_file(tmp_path / "x.conll")
