"""Where rows are read from: the Hub, a data folder, a single file. Nothing is checked here but that it reads.

Every reader returns a `datasets.Dataset` and raises `AlignAttnError` when there is nothing to return.
"""

import csv
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa

from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.files import check_file
from alignattn.support.json_records import parse_json
from alignattn.support.network import say_hub
from alignattn.support.parquet import check_parquet
from alignattn.tasks.tags.conll import read_conll
from alignattn.tasks.task import CONLL, TRAIN, Task

LEAST_INTEGER, LARGEST_INTEGER = -(2**63), 2**63 - 1
"""That a column holds."""

_OTHER_SOURCES = "give --data_dir DIR (Parquet files on disk) or --train_file FILE (your own rows)"


def hub_origin(task: Task, split: str) -> str:
    """How an error names a split of the Hub."""
    config = f" ({task.sources.config})" if task.sources.config else ""
    return f"split {split!r} of {task.sources.hub}{config}"


def read_hub(task: Task, split: str, cache_dir: str | None) -> datasets.Dataset:
    """Reads one split of a task from the Hub, or from the `datasets` cache when the Hub is out of reach."""
    sources = task.sources
    if split == TRAIN and task.train_rows_of:
        raise AlignAttnError(
            f"task {task.name!r} has no rows to train on: give those of {task.train_rows_of} as --train_file FILE, and "
            "its own as --validation_file FILE"
        )
    if not sources.hub:
        file = Path(sources.folder) / f"{split}.parquet"
        raise AlignAttnError(f"task {task.name!r} is not on the Hub: give --data_dir DIR with {file}")
    say_hub(hub_origin(task, split))
    try:
        return datasets.load_dataset(
            sources.hub, sources.config or None, split=split, revision=sources.revision, cache_dir=cache_dir
        )
    # The Hub's client raises classes of whichever HTTP library it is built on, beside OSError, ValueError and
    # those of `datasets`. Whatever stopped the download, the user has the same ways out.
    except Exception as error:
        raise AlignAttnError(
            f"cannot load {hub_origin(task, split)} from the Hub: {_reason(error)}; {_OTHER_SOURCES}"
        ) from error


def split_path(task: Task, split: str, data_dir: str | Path) -> Path:
    """The file of one split below a data folder: `<data_dir>/glue/mrpc/train.parquet`."""
    folder = Path(data_dir) / task.sources.folder
    if not folder.is_dir():
        raise AlignAttnError(
            f"no data for task {task.name!r}: there is no folder {folder}; "
            "put <split>.parquet files there, or leave out --data_dir to use the Hub"
        )
    path = folder / f"{split}.parquet"
    if not path.is_file():
        present = ", ".join(sorted(file.stem for file in folder.glob("*.parquet"))) or "no split at all"
        raise AlignAttnError(
            f"task {task.name!r} has no {split!r} split in {folder} (there: {present}): put {path.name} "
            "there, leave out --data_dir to use the Hub, or give --train_file FILE (your own rows)"
        )
    return path


def own_file(task: Task, split: str) -> Path:
    """The file of one split of a task that names its own."""
    files = task.sources.files
    if split not in files:
        raise AlignAttnError(
            f"task {task.name!r} has no {split!r} split (there: {', '.join(files)}): add its file to sources.files"
        )
    return Path(files[split])


def read_file(path: Path, cache_dir: str | None = None) -> datasets.Dataset:
    """Reads one CSV, JSON lines (or one JSON array), Parquet or CoNLL file; the extension says which."""
    suffix = path.suffix.lower()
    if suffix not in _EXTENSIONS:
        raise AlignAttnError(f"cannot tell the format of {path}: its name must end in {', '.join(_EXTENSIONS)}")
    check_file(path)
    try:
        if suffix == _PARQUET:
            return _read_parquet(path, cache_dir)
        return datasets.Dataset.from_dict(_TEXT_READERS[suffix](path), on_mixed_types="use_json")
    except AlignAttnError:
        raise
    except (OSError, ValueError, csv.Error, pa.ArrowException, datasets.exceptions.DatasetsError) as error:
        kind = suffix[1:].upper()
        raise AlignAttnError(f"cannot read {path} as {kind}: {_reason(error)}; correct the file") from error


# CSV and JSON are parsed by the standard library. The builders of `datasets` guess: a text "NA" becomes None,
# "007" becomes 7, "2020-01-01" a date, an unquoted comma shifts the columns, a first `null` crashes Python.


def _read_csv(path: Path) -> dict[str, list[Any]]:
    with path.open(newline="", encoding="utf-8-sig") as file, _any_length():
        reader = csv.reader(file, strict=True)
        header = next(reader, [])
        rows = [row for row in reader if row]
    if not rows:
        raise _no_rows(path)
    if len(set(header)) < len(header):
        raise AlignAttnError(f"the header of {path} names a column twice: {', '.join(header)}; rename one")
    for number, row in enumerate(rows, start=1):
        if len(row) != len(header):
            raise AlignAttnError(
                f"row {number} of {path} has {len(row)} values, its header has {len(header)}: "
                "put texts that hold a comma in double quotes"
            )
    return {name: [row[index] for row in rows] for index, name in enumerate(header)}


@contextmanager
def _any_length() -> Iterator[None]:
    """Let a field of a CSV file be of any length, where Python would take 131,072 characters."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _read_json(path: Path) -> dict[str, list[Any]]:
    text = path.read_text(encoding="utf-8-sig")
    rows = parse_json(text) if text.lstrip().startswith("[") else list(_json_lines(text, path))
    if not rows:
        raise _no_rows(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise AlignAttnError(f"row {number} of {path} is {row!r} and no JSON object: correct the file")
    names = {name: None for row in rows for name in row}  # a dict keeps the order of the file
    return {name: [_storable(row.get(name)) for row in rows] for name in names}


def _storable(value: Any) -> Any:
    """A value of JSON in which integers that no column of 64 bits holds, as ids may be, are the texts that they are."""
    if isinstance(value, dict):
        return {name: _storable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_storable(item) for item in value]
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    return str(value) if is_integer and not LEAST_INTEGER <= value <= LARGEST_INTEGER else value


def _json_lines(text: str, path: Path) -> Iterator[Any]:
    # Not splitlines(), which also breaks at characters that a JSON string may hold.
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            yield parse_json(line)
        except ValueError as error:
            raise AlignAttnError(f"line {number} of {path} is not JSON: {error}; correct the file") from error


def _read_parquet(path: Path, cache_dir: str | None) -> datasets.Dataset:
    if check_parquet(path) == 0:
        raise _no_rows(path)
    # data_files by name: given a folder, `datasets` merges files that it takes for one split.
    with _quiet_datasets():
        return datasets.load_dataset(
            "parquet", data_files={"train": str(path)}, split="train", cache_dir=cache_dir or _copies().name
        )


@cache
def _copies() -> TemporaryDirectory[str]:
    """Where `datasets` puts its copies of local files, until the process ends: the user's cache is for downloads."""
    return TemporaryDirectory(prefix="alignattn-rows-", ignore_cleanup_errors=True)


_PARQUET = ".parquet"
_TEXT_READERS = {".csv": _read_csv, ".json": _read_json, ".jsonl": _read_json, CONLL: read_conll}
_EXTENSIONS = (*_TEXT_READERS, _PARQUET)


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Silences `datasets`, which logs an error that it also raises, and draws a bar for the shortest file."""
    verbosity = datasets.logging.get_verbosity()
    bars_were_on = not datasets.are_progress_bars_disabled()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.logging.set_verbosity(verbosity)
        if bars_were_on:
            datasets.enable_progress_bars()


def _no_rows(path: Path) -> AlignAttnError:
    return AlignAttnError(f"{path} is empty: give a file that holds rows")


def _reason(error: BaseException) -> str:
    """What went wrong, on one line; `datasets` hides it behind "an error occurred while generating"."""
    if isinstance(error, datasets.exceptions.DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).rstrip(".") or type(error).__name__
