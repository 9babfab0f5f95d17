"""The ways in which a file of a format can be damaged, as hypothesis strategies that start from an intact file."""

import json
import string
import struct
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import yaml
from hypothesis import strategies as st

DEPTH = 20_000
"""Levels of nesting: twenty times the recursion limit of Python."""

LARGEST = 2**63
LONG_FIELD = 200_000
"""Characters; the standard library's CSV reader accepts 131,072 by default."""

ABSURD_TEXTS = (
    *("", " ", "\t", "\n", "\0", "a\0b", "\udce9", "\ud83d", "\u200b", "nan", "-inf", "1e999", "9" * 5000, "１"),
    *("1_0", "0x10", "1e-3", "true", "None", "null", "~", "/", "..", "-", "--", "=", "{}", "[", "{" * 5000, "x" * 9999),
    *("../../etc", "a=b=c", "a=[", "a=" + "[" * 5000, "\u202eabc", "\N{FACE WITH TEARS OF JOY}", '{"a": NaN}', "!!x"),
)
ABSURD_NUMBERS = (0, -1, 1, LARGEST, -LARGEST - 1, 10**400, 0.5, -0.0, 1e308, 5e-324, float("inf"), float("nan"))
ABSURD_OBJECTS = (None, True, False, [], {}, [[]], [None], [{}], {"a": 1}, {"": [{}]})

texts = st.sampled_from(ABSURD_TEXTS) | st.text(st.characters(codec=None), max_size=20)
values = st.recursive(
    st.sampled_from((*ABSURD_NUMBERS, *ABSURD_OBJECTS)) | st.integers() | st.floats() | texts,
    lambda children: st.lists(children, max_size=3) | st.dictionaries(texts, children, max_size=3),
    max_leaves=4,
)
"""JSON values to put in place of valid ones."""


@st.composite
def broken_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Bytes of a file that is empty, truncated, zeroed, re-encoded, nested too deeply, or has changed bytes."""
    place = draw(st.integers(0, max(len(whole) - 1, 0)))
    before, after = whole[:place], whole[place + 1 :]
    return draw(
        st.sampled_from(
            [
                *(b"", b"\0" * 100, b"\xff\xfe" * 50, b"\xef\xbb\xbf" + whole, whole + whole, whole + b"\0"),
                *(b"[" * DEPTH, b'{"a":' * DEPTH, b"[" * DEPTH + b"]" * DEPTH, b"null", b"[]", b"{}", b"0", b"- a\n"),
                *(before, after, before + b"\0" + after, before + b"\xe9" + after, before + b"\xed\xa0\x80" + after),
                *(whole.decode("latin-1").encode("utf-16"), whole.replace(b"\n", b"\r"), whole.replace(b'"', b"'")),
            ]
        )
        | st.binary(max_size=60)
        | st.binary(min_size=1, max_size=8).map(lambda others: before + others + after)
    )


@st.composite
def broken_document(draw: st.DrawFn, whole: Any) -> Any:
    """A document of dicts and lists in which one value is replaced, removed or added."""
    document = deepcopy(whole)
    place, key = document, None
    while isinstance(place, dict | list) and place:
        names = list(place) if isinstance(place, dict) else range(len(place))
        parent, key = place, draw(st.sampled_from(names))
        place = parent[key]
        if draw(st.integers(0, 2)) == 0:
            break
    if key is None:
        return draw(values)
    how = draw(st.sampled_from(["other", "other", "other", "gone", "more"]))
    if how == "other":
        parent[key] = draw(values)
    elif how == "gone":
        del parent[key]
    elif isinstance(parent, dict):
        parent[draw(texts)] = draw(values)
    else:
        parent.append(draw(values))
    return document


def broken_json(whole: bytes) -> st.SearchStrategy[bytes]:
    documents = broken_document(json.loads(whole)).map(lambda document: json.dumps(document).encode())
    return documents | documents | broken_bytes(whole)


def broken_json_lines(whole: bytes) -> st.SearchStrategy[bytes]:
    lines = broken_document([json.loads(line) for line in whole.splitlines()])
    dumped = lines.map(lambda rows: "\n".join(map(json.dumps, rows)) if isinstance(rows, list) else json.dumps(rows))
    return dumped.map(lambda text: text.encode() + b"\n") | dumped.map(str.encode) | broken_bytes(whole)


def broken_yaml(whole: bytes) -> st.SearchStrategy[bytes]:
    documents = broken_document(yaml.safe_load(whole))
    dumped = documents.map(lambda document: yaml.safe_dump(document).encode("utf-8", "surrogatepass"))
    tagged = st.sampled_from(["!!python/object/apply:os.system ['true']", "&a [*a]", "2026-13-45", "? [a]\n: b", "*a"])
    return dumped | dumped | broken_bytes(whole) | tagged.map(lambda text: whole + b"extra: " + text.encode() + b"\n")


def broken_table(whole: bytes) -> st.SearchStrategy[bytes]:
    """A text file of lines and columns, with open quotes, long fields, too many columns or none."""
    lines = whole.decode().splitlines()
    odd = st.sampled_from(['"', '"a""', "a,b,c,d,e,f", ",,,,", "\t", " ", "x" * LONG_FIELD, "\r", "é", "\x85", "\x0b"])

    def changed(number: int, text: str) -> bytes:
        return "\n".join([*lines[:number], text, *lines[number + 1 :]]).encode("utf-8", "surrogatepass")

    return st.builds(changed, st.integers(0, len(lines)), odd | texts) | broken_bytes(whole)


COLUMNS: tuple[Callable[[int], pa.Array], ...] = (
    lambda rows: pa.array([None] * rows, pa.null()),
    lambda rows: pa.array([None] * rows, pa.string()),
    lambda rows: pa.array(["", " ", "\0"][:rows] * rows, pa.string())[:rows],
    lambda rows: pa.array([2**64 - 1] * rows, pa.uint64()),
    lambda rows: pa.array([-1] * rows, pa.int8()),
    lambda rows: pa.array([float("nan")] * rows),
    lambda rows: pa.array([0.5] * rows, pa.float16()),
    lambda rows: pa.array([b"\xff"] * rows),
    lambda rows: pa.array([True] * rows),
    lambda rows: pa.array([[]] * rows, pa.list_(pa.string())),
    lambda rows: pa.array([[None]] * rows, pa.list_(pa.float64())),
    lambda rows: pa.array([[0.5, 0.5]] * rows),
    lambda rows: pa.array([{"a": 1}] * rows),
    lambda rows: pa.array([0] * rows, pa.timestamp("ns")),
    lambda rows: pa.array([1] * rows, pa.decimal128(5)),
    lambda rows: pa.array(["a"] * rows).dictionary_encode(),
    lambda rows: pa.array([[("a", 1)]] * rows, pa.map_(pa.string(), pa.int64())),
    lambda rows: pa.array(["x" * LONG_FIELD] * rows, pa.large_string()),
)


@st.composite
def _other_columns(draw: st.DrawFn, whole: pa.Table) -> bytes:
    rows = draw(st.integers(0, 3))
    names = list(whole.column_names)
    table = whole.slice(0, rows)
    name = draw(st.sampled_from(names))
    how = draw(st.sampled_from(["other", "other", "other", "gone", "again", "no rows"]))
    if how == "other":
        table = table.set_column(names.index(name), name, draw(st.sampled_from(COLUMNS))(table.num_rows))
    elif how == "gone":
        table = table.drop_columns([name])
    elif how == "again":
        table = table.append_column(name, table[name])
    else:
        table = table.slice(0, 0)
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    return sink.getvalue().to_pybytes()


def broken_parquet(whole: bytes) -> st.SearchStrategy[bytes]:
    columns = _other_columns(pq.read_table(pa.BufferReader(whole)))
    return columns | columns | broken_bytes(whole)


def broken_safetensors(whole: bytes) -> st.SearchStrategy[bytes]:
    (length,) = struct.unpack("<Q", whole[:8])
    header, weights = json.loads(whole[8 : 8 + length]), whole[8 + length :]

    def packed(document: Any) -> bytes:
        text = json.dumps(document).encode()
        return struct.pack("<Q", len(text)) + text + weights

    lengths = st.sampled_from([0, 1, length - 1, length + 1, 2**31, LARGEST - 1, 2**64 - 1])
    other_lengths = lengths.map(lambda other: struct.pack("<Q", other) + whole[8:])
    not_finite = st.just(whole[: 8 + length] + b"\xff\xff\xff\x7f" * (len(weights) // 4))
    return broken_document(header).map(packed) | other_lengths | not_finite | broken_bytes(whole)


def broken_lines(whole: bytes) -> st.SearchStrategy[bytes]:
    """A text of lines, such as a vocabulary."""
    return broken_table(whole) | st.text(string.printable, max_size=40).map(str.encode)
