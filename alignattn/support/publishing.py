"""How what leaves this machine names what lies on it."""

import re
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

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
    downloaded = HUB_SNAPSHOT.search(str(value))
    return downloaded.group(1).replace("--", "/") if downloaded else Path(value).name


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
