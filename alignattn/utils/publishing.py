"""Names without local paths, for published files: model cards, results, tables."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

ABSOLUTE_PATH = re.compile(r"(?<![\w.:/+-])(?:/[\w.@+~-]+){2,}")
HUB_SNAPSHOT = re.compile(r"/(?:models|datasets)--([^/]+)/snapshots/")


def publishable(value: Any) -> Any:
    """Return a value, nested lists and dicts included, without absolute paths.

    A path in the Hub's cache becomes its Hub id, any other absolute path its last part. Relative paths stay.
    """
    if isinstance(value, dict):
        return {name: publishable(item) for name, item in value.items()}
    if isinstance(value, list):
        return [publishable(item) for item in value]
    if not isinstance(value, str | PurePath) or not Path(value).is_absolute():
        return value
    return short_path(str(value), 1)


def short_path(path: str, parts: int = 2) -> str:
    """Return the last parts of a path; for a path in the Hub's cache, its Hub id."""
    downloaded = HUB_SNAPSHOT.search(path)
    if downloaded:
        return downloaded.group(1).replace("--", "/")
    return "/".join(part for part in Path(path).parts[-parts:] if part != "/")


def publishable_text(text: str) -> str:
    """Return a text with absolute paths shortened to their last two parts (many end in `model` or `data`)."""
    return ABSOLUTE_PATH.sub(lambda path: short_path(path[0]), text)


def published_names(paths: Sequence[str]) -> list[str]:
    """Return distinct short names of paths or Hub ids; absolute paths keep as many last parts as needed to differ."""
    names = [publishable(path) for path in paths]
    if len(set(names)) == len(names):
        return names
    ends = map("/".join, distinct_ends(list(map(Path, paths))))
    return [end if Path(path).is_absolute() else path for path, end in zip(paths, ends, strict=True)]


def distinct_ends(paths: Sequence[Path]) -> list[tuple[str, ...]]:
    """Return the last n parts of each path, n the minimum at which all differ; one part if two paths are equal."""
    whole = [path.resolve().parts for path in paths]
    for count in range(1, max(map(len, whole)) + 1):
        ends = [parts[-count:] for parts in whole]
        if len(set(ends)) == len(ends):
            return ends
    return [parts[-1:] for parts in whole]
