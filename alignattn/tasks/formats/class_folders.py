"""A folder with a folder of texts per class, such as `reviews/pos/1.txt`."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from alignattn.tasks.formats.file_rows import FileRows, TextRows, file_rows
from alignattn.tasks.names import LABEL, TEXT, TEXT_FILE
from alignattn.utils.errors import AlignAttnError, listing, one_line, plural
from alignattn.utils.files import BROKEN, plain_suffix, read_whole


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
        raise AlignAttnError(f"cannot read a text of {folder}: {one_line(error)}; give its --encoding") from error
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
