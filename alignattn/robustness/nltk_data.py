"""The NLTK data that the recipes need: from a folder, NLTK's own folders, or NLTK's server."""

import sys
from collections.abc import Iterable
from io import StringIO
from pathlib import Path

from alignattn.utils.errors import AlignAttnError, one_line

PACKAGES = {
    "stopwords": ("corpora", "a few kB"),
    "wordnet": ("corpora", "11 MB"),
    # NLTK before 3.9 read a pickle of another name; this one is JSON.
    "averaged_perceptron_tagger_eng": ("taggers", "1.5 MB"),
    "universal_tagset": ("taggers", "20 kB"),
}
"""Folder and size of each package that a recipe may need."""


def prepare_nltk(folder: Path | None, packages: Iterable[str]) -> None:
    """Ensure that NLTK finds packages of `PACKAGES`.

    Args:
        folder: searched first; if it is given, nothing is downloaded.
        packages: their names.
    """
    import nltk

    if folder is not None and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    missing = [name for name in packages if not _is_found(name)]
    if not missing:
        return
    if folder is not None:
        raise AlignAttnError(f"--nltk_data {folder} lacks {data_places(missing)} (zipped or not): put it there")
    _download(missing)


def data_places(packages: Iterable[str]) -> str:
    """Return the paths of packages in a folder of NLTK data."""
    return ", ".join(f"{PACKAGES[name][0]}/{name}" for name in packages)


def _is_found(package: str) -> bool:
    import nltk

    for suffix in ("", ".zip"):
        try:
            nltk.data.find(f"{PACKAGES[package][0]}/{package}{suffix}")
        except LookupError:
            continue
        return True
    return False


def _download(packages: list[str]) -> None:
    import nltk

    server = nltk.downloader.Downloader()
    folder = server.default_download_dir()
    sizes = ", ".join(f"{name} ({PACKAGES[name][1]})" for name in packages)
    print(f"fetching NLTK's {sizes} from {server.url} to {folder}", file=sys.stderr)
    for name in packages:
        try:
            # Quiet or not, it prints what it then raises.
            nltk.download(name, download_dir=folder, quiet=True, raise_on_error=True, print_error_to=StringIO())
        except (OSError, ValueError) as error:
            raise AlignAttnError(
                f"NLTK's {name} could not be downloaded ({one_line(error)}): "
                f"give a folder that holds {data_places(packages)} with --nltk_data"
            ) from error
