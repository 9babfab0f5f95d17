"""Checks of files and folders that options name, run once before the command starts.

Each function is called with the option's label, for messages, and its value; it raises an `AlignAttnError` if the value
is unusable.
"""

from collections.abc import Callable
from pathlib import Path

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_file

Place = Callable[[str, str], None]
"""A function of an option's label and a value."""


def input_file(label: str, value: str) -> None:
    """Refuse an input file that does not exist."""
    check_file(Path(value), f"give another to {label}")


def no_folder(label: str, value: str) -> None:
    """Refuse a folder if a file is expected."""
    if Path(value).is_dir():
        input_file(label, value)


def input_file_like(pattern: str) -> Place:
    """Return a check of an input file that suggests a file if the value is a folder.

    Args:
        pattern: glob pattern of the names of suggested files.
    """

    def place(label: str, value: str) -> None:
        files = sorted(Path(value).glob(f"**/{pattern}")) if Path(value).is_dir() else []
        if files:
            raise AlignAttnError(f"{value} is a folder: give a file, such as {files[0]}, to {label}")
        input_file(label, value)

    return place


def input_path(label: str, value: str) -> None:
    """Refuse an input file or folder that does not exist."""
    if not Path(value).is_dir():
        input_file(label, value)


def input_folder(label: str, value: str) -> None:
    """Refuse an input folder that does not exist."""
    path = Path(value)
    if not path.is_dir():
        problem = f"{value} is a file, not a folder" if path.exists() else f"there is no folder {value}"
        raise AlignAttnError(f"{problem}: give another to {label}")


def output_folder(label: str, value: str) -> None:
    """Refuse an output folder that cannot be made because it, or a folder above it, is a file."""
    path = Path(value)
    file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        other = "is a file" if file == path else f"cannot be made: {file} is a file"
        raise AlignAttnError(f"{label} {value} {other}: give another folder")


def output_file(label: str, value: str) -> None:
    """Refuse an output file that exists, is a folder, or whose folder cannot be made."""
    path = Path(value)
    if path.exists():
        problem = "is a folder" if path.is_dir() else "already exists"
        raise AlignAttnError(f"{label} {value} {problem}: give another file")
    if path.parent != path:
        output_folder(label, str(path.parent))
