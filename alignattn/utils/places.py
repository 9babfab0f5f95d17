"""Checks of files and folders that options name, made once before the command starts.

Each function takes the option as messages call it and its value, and raises what is wrong with it.
"""

from collections.abc import Callable
from pathlib import Path

from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_file

Place = Callable[[str, str], None]
"""A function of an option's label and a value."""


def input_file(label: str, value: str) -> None:
    """Refuse a file to read that is not there."""
    check_file(Path(value), f"give another to {label}")


def no_folder(label: str, value: str) -> None:
    """Refuse a folder where a file is wanted."""
    if Path(value).is_dir():
        input_file(label, value)


def input_file_like(pattern: str) -> Place:
    """Return a check of a file to read, which for a folder suggests a file in it.

    Args:
        pattern: of the names of such files.
    """

    def place(label: str, value: str) -> None:
        files = sorted(Path(value).glob(f"**/{pattern}")) if Path(value).is_dir() else []
        if files:
            raise AlignAttnError(f"{value} is a folder: give a file, such as {files[0]}, to {label}")
        input_file(label, value)

    return place


def input_path(label: str, value: str) -> None:
    """Refuse a file or folder to read that is not there."""
    if not Path(value).is_dir():
        input_file(label, value)


def input_folder(label: str, value: str) -> None:
    """Refuse a folder to read that is not there."""
    path = Path(value)
    if not path.is_dir():
        problem = f"{value} is a file, not a folder" if path.exists() else f"there is no folder {value}"
        raise AlignAttnError(f"{problem}: give another to {label}")


def output_folder(label: str, value: str) -> None:
    """Refuse a folder to write that cannot be one, for a file has its name or that of a folder above it."""
    path = Path(value)
    file = next((place for place in (path, *path.parents) if place.exists() and not place.is_dir()), None)
    if file is not None:
        other = "is a file" if file == path else f"cannot be made: {file} is a file"
        raise AlignAttnError(f"{label} {value} {other}: give another folder")


def output_file(label: str, value: str) -> None:
    """Refuse a file to write that exists, or that cannot be one, for a folder has its name or a file its folder's."""
    path = Path(value)
    if path.exists():
        problem = "is a folder" if path.is_dir() else "already exists"
        raise AlignAttnError(f"{label} {value} {problem}: give another file")
    if path.parent != path:
        output_folder(label, str(path.parent))
