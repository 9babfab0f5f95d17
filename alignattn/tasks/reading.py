"""Reading of rows from a user's file or folder. Only readability is checked here."""

import csv
import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.tasks.formats import TableForm, TextRows
from alignattn.tasks.formats.babi import read_babi
from alignattn.tasks.formats.conll import read_conll
from alignattn.tasks.formats.json_rows import read_json_rows
from alignattn.tasks.formats.separated import SEPARATORS, read_separated
from alignattn.tasks.names import CONLL, LABEL, TEXT, TEXT_FILE
from alignattn.utils.console import without_library_bars
from alignattn.utils.errors import AlignAttnError, list_bad_rows, listing, one_line, plural
from alignattn.utils.files import BROKEN, BYTE_ORDER_MARK, COMPRESSIONS, plain_suffix, read_whole
from alignattn.utils.parquet import check_parquet, without_bad_texts
from alignattn.utils.paths import check_file, digest_of

PARQUET = ".parquet"
_TEXT_READERS: Mapping[str, Callable[[Path, str], TextRows]] = {
    **{suffix: partial(read_separated, suffix=suffix) for suffix in SEPARATORS},
    ".json": read_json_rows,
    ".jsonl": read_json_rows,
    CONLL: read_conll,
    TEXT_FILE: read_babi,
}
_EXTENSIONS = (*_TEXT_READERS, PARQUET)

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
"""Half of a surrogate pair, which no encoding can write."""

ENCODING_ADVICE = "save it as UTF-8, or give its --encoding, such as cp1252"
"""Advice for bytes that are not of the encoding; some commands have no such option."""
_BYTE = range(0xDC80, 0xDD00)
"""The surrogates that stand for undecodable bytes under `errors="surrogateescape"`."""


@dataclass(frozen=True)
class FileRows:
    """The rows of a file.

    Attributes:
        dataset: all rows; None for what cannot be read.
        problems: what is wrong with an unreadable row, by its index from 0.
        value_problems: what is wrong with an unreadable value, by column and index.
        form: how the file holds them, if it is a separated table.
        lines: the line where each row begins, from 1; empty if the reader does not know it.
    """

    dataset: datasets.Dataset
    problems: Mapping[int, str] = field(default_factory=dict)
    value_problems: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    form: TableForm = field(default_factory=TableForm)
    lines: Sequence[int] = ()

    def problems_in(self, columns: Iterable[str]) -> dict[int, str]:
        """Return the problem of each row if only these columns are read."""
        found = {index: text for name in columns for index, text in self.value_problems.get(name, {}).items()}
        return found | dict(self.problems)


def file_rows(rows: TextRows, *, path: Path | str, is_decoded: bool) -> FileRows:
    """Return rows as a dataset, in which all text is valid Unicode.

    Args:
        rows: the rows of a file.
        path: the path of the file, for messages.
        is_decoded: whether the whole file could be decoded; otherwise surrogates stand for undecodable bytes.
    """
    value_problems: dict[str, dict[int, str]] = {}
    for name, values in rows.columns.items():
        if _LONE_SURROGATE.search(name):
            advice = "correct the file" if is_decoded else ENCODING_ADVICE
            raise AlignAttnError(f"{path} has a column {name!r}, whose name is not valid text: {advice}")
        for index, value in enumerate(values):
            surrogate = _first_surrogate(value)
            if surrogate is None:
                continue
            values[index] = None
            problem = f"holds \\u{surrogate:04x}, half of a character, which is not valid text"
            if not is_decoded and surrogate in _BYTE:
                byte = surrogate - _BYTE.start + 0x80
                problem = f"holds the byte 0x{byte:02x}, which the encoding cannot decode ({ENCODING_ADVICE})"
            value_problems.setdefault(name, {})[index] = f"column {name!r} {problem}"
    return FileRows(dataset_of(rows.columns), rows.problems, value_problems, rows.form, rows.lines)


def dataset_of(columns: Mapping[str, Any]) -> datasets.Dataset:
    """Return columns of values as a dataset; a column of mixed types holds JSON.

    `datasets` takes a text of such a column for JSON if it can: it would read "01" as 1, "-" as 0 and "null" as None.
    So each value of the column, texts too, is written as JSON first.
    """
    dataset = datasets.Dataset.from_dict(columns, on_mixed_types="use_json")
    features = dict(dataset.features)
    mixed = [name for name, feature in features.items() if "Json(" in repr(feature)]
    if not mixed:
        return dataset
    written = {name: [None if value is None else json.dumps(value) for value in columns[name]] for name in mixed}
    features |= dict.fromkeys(mixed, datasets.Json())
    return datasets.Dataset.from_dict({**columns, **written}, features=datasets.Features(features))


def _first_surrogate(value: Any) -> int | None:
    """The code of the first lone surrogate in a JSON value."""
    if isinstance(value, str):
        match = None if value.isascii() else _LONE_SURROGATE.search(value)
        return None if match is None else ord(match[0])
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, list):
        return next((found for item in value if (found := _first_surrogate(item)) is not None), None)
    return None


def read_class_folder(folder: Path, encoding: str | None = None) -> FileRows:
    """Return the texts of a folder, each with the name of its class folder, in the order of the names.

    Files that are not read are counted on standard error.

    Args:
        folder: a folder with one folder per class.
        encoding: the encoding of the texts.
    """
    files = class_files(folder, "text", (TEXT_FILE,), example=f"pos/1{TEXT_FILE}")
    try:
        read = [read_whole(path, encoding) for path, _ in files]
    except (OSError, ValueError, *BROKEN) as error:
        raise AlignAttnError(f"cannot read a text of {folder}: {one_line(error)}; {ENCODING_ADVICE}") from error
    columns = {TEXT: [text for text, *_ in read], LABEL: [name for _, name in files]}
    rows = file_rows(TextRows(dict(columns)), path=folder, is_decoded=all(is_decoded for _, is_decoded, _ in read))
    problems = dict(rows.value_problems.get(TEXT, {})) | {
        index: "it is empty" for index, (text, *_) in enumerate(read) if not text.strip()
    }
    return replace(
        rows, problems={index: f"{files[index][0].relative_to(folder)}: {text}" for index, text in problems.items()}
    )


def class_files(folder: Path, noun: str, endings: Sequence[str], *, example: str) -> list[tuple[Path, str]]:
    """Return the files in the class folders of a folder, each with the name of its class, in the order of the names.

    Files that are not read are counted on standard error.

    Args:
        folder: a folder with one folder per class.
        noun: the content of a file, for messages.
        endings: the endings of the files to read.
        example: an example of such a file, for messages.

    Raises:
        AlignAttnError: if there is no such file.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [
        (path, class_folder.name)
        for class_folder in classes
        for path in sorted(class_folder.iterdir())
        if path.is_file() and plain_suffix(path) in endings and not path.name.startswith(".")
    ]
    kinds = listing(endings)
    read = {path for path, _ in files}
    below = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file() and path not in read)
    others = [str(path) for path in below if not any(part.startswith(".") for part in path.parts)]
    remark = []
    if others:
        remark.append(
            f"{plural(len(others), 'file')} not read, such as {', '.join(others[:3])}: {noun}s are {kinds} files "
            "directly in the folder of their class"
        )
    if empty := [path.name for path in classes if path.name not in {name for _, name in files}]:
        remark.append(f"{listing(empty)} contain no {kinds} file, so they are not classes")
    remarks = "; ".join(remark)
    if not files:
        raise AlignAttnError(
            f"{folder} is a folder without {noun}s: give a file, or a folder with one folder per class and one "
            f"{kinds} file per {noun}, such as {example}{f' ({remarks})' if remarks else ''}"
        )
    if remarks:
        print(f"{folder}: {remarks}", file=sys.stderr)
    return files


def read_file(path: Path, *, encoding: str | None = None) -> datasets.Dataset:
    """Read a user's rows as `read_rows` does, and refuse bad ones."""
    rows = read_rows(path, encoding=encoding)
    problems = rows.problems_in(rows.dataset.column_names)
    list_bad_rows(problems, str(path), len(rows.dataset), skip=None, lines=rows.lines)
    return rows.dataset


def read_rows(
    path: Path,
    cache_dir: str | None = None,
    *,
    encoding: str | None = None,
    read_folder: Callable[[Path, str | None], FileRows] = read_class_folder,
    is_labelled: bool = True,
) -> FileRows:
    """Read a user's rows from one file, whose ending is its format, or from a folder with one folder per class.

    CSV, TSV, JSON and CoNLL may be compressed, such as `rows.csv.gz`.

    Args:
        path: the file or folder.
        cache_dir: the cache of `datasets` for Parquet; a temporary folder of this process when None.
        encoding: the encoding of text; UTF-8 when None.
        read_folder: the reader of folders; by default it reads texts.
        is_labelled: whether the last column of CoNLL must hold tags.
    """
    if path.is_dir():
        return read_folder(path, encoding)
    check_file(path)
    suffix = plain_suffix(path)
    if suffix not in _EXTENSIONS:
        raise AlignAttnError(
            f"cannot tell the format of {path}: its name must end in {', '.join(_EXTENSIONS)}, optionally "
            f"followed by {', '.join(COMPRESSIONS)}"
        )
    try:
        if suffix == PARQUET:
            return _read_parquet(path, cache_dir)
        text, is_decoded, has_mark = read_whole(path, encoding)
        read = partial(read_conll, is_labelled=is_labelled) if suffix == CONLL else _TEXT_READERS[suffix]
        rows = file_rows(read(path, text), path=path, is_decoded=is_decoded)
        mark = BYTE_ORDER_MARK if has_mark else ""
        form = replace(rows.form, before_header=mark + rows.form.before_header, encoding=encoding or rows.form.encoding)
        return replace(rows, form=form)
    except AlignAttnError:
        raise
    except (OSError, ValueError, csv.Error, pa.ArrowException, datasets.exceptions.DatasetsError, *BROKEN) as error:
        is_encoding = isinstance(error, UnicodeDecodeError)
        advice = ENCODING_ADVICE if is_encoding else "correct the file"
        raise AlignAttnError(
            f"cannot read {path} as {suffix[1:].upper()}: {reason_of_reading(error)}; {advice}"
        ) from error


def _read_parquet(path: Path, cache_dir: str | None) -> FileRows:
    count, problems = check_parquet(path)
    if count == 0:
        raise AlignAttnError(f"{path} is empty: give a file that holds rows")
    if problems:
        table, _ = without_bad_texts(pq.read_table(path))
        return FileRows(datasets.Dataset(datasets.table.InMemoryTable(table)), value_problems=problems)
    # By the file's name: given a folder, `datasets` merges files that it considers one split. It also takes a name for
    # a pattern, so that `rows[1].parquet` would be `rows1.parquet`. Its cache knows a file by its path and its time,
    # which a copy may keep, so the configuration's name adds the content.
    files, folder = {"train": escape(str(path))}, cache_dir or _copies().name
    with without_library_bars():
        dataset = datasets.load_dataset("parquet", digest_of(path), data_files=files, split="train", cache_dir=folder)
    return FileRows(dataset)


@cache
def _copies() -> TemporaryDirectory[str]:
    """The cache of `datasets` for local files until the process ends: the user's cache is for downloads."""
    return TemporaryDirectory(prefix="alignattn-rows-", ignore_cleanup_errors=True)


def reason_of_reading(error: BaseException) -> str:
    """Return the reason of an error on one line; `datasets` hides it behind "an error occurred while generating"."""
    if isinstance(error, datasets.exceptions.DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).rstrip(".") or type(error).__name__
