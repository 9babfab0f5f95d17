"""A folder of texts: a folder a class, a file a text, as `reviews/pos/1.txt`."""

from pathlib import Path

from alignattn.support.compression import plain_suffix, read_whole
from alignattn.support.errors import AlignAttnError, one_line

TEXT, LABEL = "text", "label"
"""The columns that it is read into."""

TEXT_FILE = ".txt"


def read_class_folder(folder: Path, encoding: str | None = None) -> dict[str, list[str]]:
    """Return the texts of a folder and the names of the folders they lie in, in the order of their names.

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
    if not files:
        raise AlignAttnError(
            f"{folder} is a folder and no file: give a file, or a folder that holds one for each class with a "
            f"{TEXT_FILE} file a text, as pos/1{TEXT_FILE}"
        )
    try:
        texts = [read_whole(path, encoding) for path, _ in files]
    except (OSError, ValueError) as error:
        raise AlignAttnError(f"cannot read a text of {folder}: {one_line(error)}; give its --encoding") from error
    return {TEXT: texts, LABEL: [name for _, name in files]}
