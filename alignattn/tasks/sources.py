"""Where rows are read from: the Hub, a data folder, a single file. Nothing is checked here but that it reads.

Every reader returns a `datasets.Dataset` and raises `AlignAttnError` when there is nothing to return.
"""

import csv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import datasets
import pyarrow as pa

from alignattn.support.compression import BROKEN, COMPRESSIONS, plain_suffix, read_whole
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.files import check_file
from alignattn.support.json_records import parse_json
from alignattn.support.library_bars import without_library_bars
from alignattn.support.network import say_hub
from alignattn.support.parquet import check_parquet
from alignattn.tasks.class_folders import read_class_folder
from alignattn.tasks.separated import SEPARATORS, read_separated
from alignattn.tasks.tags.conll import read_conll
from alignattn.tasks.task import CONLL, TEXT_FILE, TRAIN, Task
from alignattn.tasks.texts.stories import read_babi

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


def read_file(
    path: Path, cache_dir: str | None = None, *, encoding: str | None = None, name: str | None = None
) -> datasets.Dataset:
    """Reads a user's rows: one file, whose extension says its format, or a folder of texts with a folder a class.

    CSV, TSV, JSON lines (or one JSON array) and CoNLL may be compressed, as `rows.csv.gz`; Parquet is by itself.

    Args:
        path: of the file or folder.
        cache_dir: where `datasets` keeps what it read of Parquet; a folder of this process when None.
        encoding: of text; UTF-8 when None.
        name: that a file of text is called by in what is said of it; its path when None.
    """
    called = path if name is None else Path(name)
    if path.is_dir():
        return datasets.Dataset.from_dict(read_class_folder(path, encoding))
    check_file(path)
    suffix = plain_suffix(path)
    if suffix not in _EXTENSIONS:
        raise AlignAttnError(
            f"cannot tell the format of {path}: its name must end in {', '.join(_EXTENSIONS)}, or "
            f"{_COMPRESSED} behind one"
        )
    try:
        if suffix == _PARQUET:
            return _read_parquet(path, cache_dir)
        columns = _TEXT_READERS[suffix](called, read_whole(path, encoding))
        return datasets.Dataset.from_dict(columns, on_mixed_types="use_json")
    except AlignAttnError:
        raise
    except UnicodeDecodeError as error:
        raise AlignAttnError(
            f"cannot read {called} as {suffix[1:].upper()}: {_reason(error)}; give its --encoding, such as cp1252 or "
            "utf-16"
        ) from error
    except (OSError, ValueError, csv.Error, pa.ArrowException, datasets.exceptions.DatasetsError, *BROKEN) as error:
        kind = suffix[1:].upper()
        raise AlignAttnError(f"cannot read {called} as {kind}: {_reason(error)}; correct the file") from error


def _read_json(path: Path, text: str) -> dict[str, list[Any]]:
    # The builder of `datasets` guesses: "2020-01-01" becomes a date, and a first `null` crashes Python.
    rows = parse_json(text) if text.lstrip().startswith("[") else list(_json_lines(text, path))
    if not rows:
        raise _no_rows(path)
    for number, row in enumerate(rows, start=1):
        if not isinstance(row, dict):
            raise AlignAttnError(f"row {number} of {path} is {row!r} and no JSON object: correct the file")
    names = {name: None for row in rows for name in row}  # a dict keeps the order of the file
    return {name: [_storable(row.get(name)) for row in rows] for name in names}


def _read_separated_as(suffix: str, path: Path, text: str) -> dict[str, list[Any]]:
    return dict(read_separated(path, text, suffix))


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
_TEXT_READERS: Mapping[str, Callable[[Path, str], dict[str, list[Any]]]] = {
    **{suffix: partial(_read_separated_as, suffix) for suffix in SEPARATORS},
    ".json": _read_json,
    ".jsonl": _read_json,
    CONLL: read_conll,
    TEXT_FILE: read_babi,
}
_EXTENSIONS = (*_TEXT_READERS, _PARQUET)
_COMPRESSED = ", ".join(COMPRESSIONS)


@contextmanager
def _quiet_datasets() -> Iterator[None]:
    """Silences `datasets`, which logs an error that it also raises, and draws a bar for the shortest file."""
    verbosity = datasets.logging.get_verbosity()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)
    try:
        with without_library_bars():
            yield
    finally:
        datasets.logging.set_verbosity(verbosity)


def _no_rows(path: Path) -> AlignAttnError:
    return AlignAttnError(f"{path} is empty: give a file that holds rows")


def _reason(error: BaseException) -> str:
    """What went wrong, on one line; `datasets` hides it behind "an error occurred while generating"."""
    if isinstance(error, datasets.exceptions.DatasetGenerationError) and error.__cause__ is not None:
        error = error.__cause__
    return one_line(error).rstrip(".") or type(error).__name__
