"""Reading of rows from a user's file or folder. Only readability is checked here."""

import csv
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from glob import escape
from pathlib import Path
from tempfile import TemporaryDirectory

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

from alignattn.tasks.formats.babi import read_babi
from alignattn.tasks.formats.class_folders import read_class_folder
from alignattn.tasks.formats.conll import read_conll
from alignattn.tasks.formats.file_rows import FileRows, TextRows, file_rows
from alignattn.tasks.formats.json_rows import read_json_rows
from alignattn.tasks.formats.separated import SEPARATORS, read_separated
from alignattn.tasks.names import CONLL, TEXT_FILE
from alignattn.utils.console import without_library_bars
from alignattn.utils.errors import AlignAttnError, list_bad_rows, one_line
from alignattn.utils.files import BROKEN, BYTE_ORDER_MARK, COMPRESSIONS, plain_suffix, read_whole
from alignattn.utils.parquet import check_parquet, without_bad_texts
from alignattn.utils.paths import check_file

PARQUET = ".parquet"
_TEXT_READERS: Mapping[str, Callable[[Path, str], TextRows]] = {
    **{suffix: partial(read_separated, suffix=suffix) for suffix in SEPARATORS},
    ".json": read_json_rows,
    ".jsonl": read_json_rows,
    CONLL: read_conll,
    TEXT_FILE: read_babi,
}
_EXTENSIONS = (*_TEXT_READERS, PARQUET)


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
        advice = "give its --encoding, such as cp1252 or utf-16" if is_encoding else "correct the file"
        raise AlignAttnError(f"cannot read {path} as {suffix[1:].upper()}: {reason_of(error)}; {advice}") from error


def _read_parquet(path: Path, cache_dir: str | None) -> FileRows:
    count, problems = check_parquet(path)
    if count == 0:
        raise AlignAttnError(f"{path} is empty: give a file that holds rows")
    if problems:
        table, _ = without_bad_texts(pq.read_table(path))
        return FileRows(datasets.Dataset(datasets.table.InMemoryTable(table)), value_problems=problems)
    # By the file's name: given a folder, `datasets` merges files that it considers one split. It also takes a name for
    # a pattern, so that `rows[1].parquet` would be `rows1.parquet`.
    with without_library_bars():
        dataset = datasets.load_dataset(
            "parquet", data_files={"train": escape(str(path))}, split="train", cache_dir=cache_dir or _copies().name
        )
    return FileRows(dataset)


@cache
def _copies() -> TemporaryDirectory[str]:
    """The cache of `datasets` for local files until the process ends: the user's cache is for downloads."""
    return TemporaryDirectory(prefix="alignattn-rows-", ignore_cleanup_errors=True)


def reason_of(error: BaseException) -> str:
    """Return the reason of an error on one line; `datasets` hides it behind "an error occurred while generating"."""
    if isinstance(error, datasets.exceptions.DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).rstrip(".") or type(error).__name__
