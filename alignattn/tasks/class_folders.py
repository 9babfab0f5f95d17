"""A folder of texts: a folder a class, a file a text, as `reviews/pos/1.txt`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignattn.tasks.file_rows import FileRows, TextRows, file_rows
from alignattn.utils.compression import BROKEN, plain_suffix, read_whole
from alignattn.utils.errors import AlignAttnError, listing, one_line

TEXT, LABEL = "text", "label"
"""The columns that it is read into."""

TEXT_FILE = ".txt"


NAMED_FILES = 3
"""Of those that are not read, so many are named."""


def read_class_folder(folder: Path, encoding: str | None = None) -> FileRows:
    """Return the texts of a folder and the names of the folders they lie in, in the order of their names.

    Files that are not read are counted, and that is said.

    Args:
        folder: that holds a folder for each class.
        encoding: of the texts.
    """
    classes = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    files = [
        (path, named.name)
        for named in classes
        for path in sorted(named.iterdir())
        if path.is_file() and plain_suffix(path) == TEXT_FILE
    ]
    told = _told_of_others(folder, classes, files)
    if not files:
        raise AlignAttnError(
            f"{folder} is a folder and no file: give a file, or a folder that holds one for each class with a "
            f"{TEXT_FILE} file a text, as pos/1{TEXT_FILE}{f' ({told})' if told else ''}"
        )
    if told:
        print(f"{folder}: {told}", file=sys.stderr)
    try:
        read = [read_whole(path, encoding) for path, _ in files]
    except (OSError, ValueError, *BROKEN) as error:
        raise AlignAttnError(f"cannot read a text of {folder}: {one_line(error)}; give its --encoding") from error
    columns: dict[str, list[Any]] = {TEXT: [text for text, _ in read], LABEL: [name for _, name in files]}
    rows = file_rows(TextRows(columns), path=folder, is_decoded=all(is_decoded for _, is_decoded in read))
    problems = dict(rows.value_problems.get(TEXT, {})) | {
        index: "it is empty" for index, (text, _) in enumerate(read) if not text.strip()
    }
    return replace(
        rows, problems={index: f"{files[index][0].relative_to(folder)}: {text}" for index, text in problems.items()}
    )


def _told_of_others(folder: Path, classes: Sequence[Path], files: Sequence[tuple[Path, str]]) -> str:
    """What is to be known of the files below a folder that are not read, and of classes without a text; or nothing."""
    read = {path for path, _ in files}
    below = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file() and path not in read)
    others = [str(path) for path in below if not any(part.startswith(".") for part in path.parts)]
    empty = [path.name for path in classes if path.name not in {name for _, name in files}]
    told = []
    if others:
        told.append(
            f"{len(others)} file(s) are not read, such as {', '.join(others[:NAMED_FILES])}: a text is a {TEXT_FILE} "
            "file right in the folder of its class"
        )
    if empty:
        told.append(f"no class is made of {listing(empty)}, which hold no {TEXT_FILE} file")
    return "; ".join(told)
