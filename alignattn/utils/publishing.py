"""How what leaves this machine names what lies on it."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/+-])(?:/[\w.@+~-]+){2,}")
HUB_SNAPSHOT = re.compile(r"/(?:models|datasets)--([^/]+)/snapshots/")


def publishable(value: Any) -> Any:
    """Return a value, at any depth of lists and dicts, without the paths of this machine.

    What was downloaded from the Hub has its id there, another absolute path its last part. Relative paths stay: they
    are relative to where the command was given.
    """
    if isinstance(value, dict):
        return {name: publishable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [publishable(item) for item in value]
    if not isinstance(value, str | PurePath) or not Path(value).is_absolute():
        return value
    return short_path(str(value), 1)


def short_path(path: str, parts: int = 2) -> str:
    """Return a path by its last parts, one that was downloaded from the Hub by its id there."""
    downloaded = HUB_SNAPSHOT.search(path)
    if downloaded:
        return downloaded.group(1).replace("--", "/")
    return "/".join(part for part in Path(path).parts[-parts:] if part != "/")


def publishable_text(text: str) -> str:
    """Return a text in which the absolute paths are short ones, of two parts since many end in `model` or `data`."""
    return ABSOLUTE_PATH.sub(lambda path: short_path(path[0]), text)


def published_names(paths: Sequence[str]) -> list[str]:
    """Return what to call paths, or ids of the Hub, beside one another: absolute ones by parts enough to differ."""
    names = [publishable(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    ends = map("/".join, distinct_ends(list(map(Path, paths))))
    return [end if Path(path).is_absolute() else path for path, end in zip(paths, ends, strict=True)]


def distinct_ends(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return of each path as many of its last parts as tell all apart; the last alone where two are one path."""
    whole = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        ends = [parts[-count:] for parts in whole]
        if len(set(ends)) == len(ends):
            return ends
    return [parts[-1:] for parts in whole]
