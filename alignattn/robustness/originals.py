"""The recipes' original resources and NLTK's data, downloaded once after a message with size and destination.

TextAttack's own download of the counter-fitted vectors contains pickles, which are never opened here. The same vectors
are plain text in their authors' repository.
"""

import os
import shutil
import sys
import urllib.request
import zipfile
import zlib
from collections.abc import Iterable
from http.client import HTTPException
from io import StringIO
from pathlib import Path
from typing import Any

from alignattn.utils.console import log_download
from alignattn.utils.errors import AlignAttnError, in_megabytes, install_extra, one_line
from alignattn.utils.files import replacing
from alignattn.utils.paths import cache_folder

BERT = "bert-base-uncased"

VECTORS_URL = (
    "https://raw.githubusercontent.com/nmrksic/counter-fitting/master/word_vectors/counter-fitted-vectors.txt.zip"
)
VECTORS_FILE = "counter-fitted-vectors.txt"

NLTK_PACKAGES = {
    "stopwords": ("corpora", "a few kB"),
    "wordnet": ("corpora", "11 MB"),
    # NLTK before 3.9 read a pickle of another name; this one is JSON.
    "averaged_perceptron_tagger_eng": ("taggers", "1.5 MB"),
    "universal_tagset": ("taggers", "20 kB"),
}
"""Folder and size of each package of NLTK that a recipe may need."""


def counter_fitted_vectors() -> Path:
    """Return the text file of the counter-fitted vectors of Mrkšić et al. (2016), downloaded if necessary."""
    path = cache_folder() / VECTORS_FILE
    if path.is_file():
        return path
    archive_path = path.with_suffix(".zip")
    try:
        print(f"asking {VECTORS_URL} for {VECTORS_FILE}", file=sys.stderr)
        with urllib.request.urlopen(VECTORS_URL, timeout=30.0) as answer, replacing(archive_path) as temporary:
            length = answer.headers["Content-Length"] or ""
            size = f"{in_megabytes(int(length))} zipped" if length.isdecimal() else "size unknown"
            print(f"fetching {VECTORS_FILE} ({size}) from {VECTORS_URL} to {path}", file=sys.stderr)
            with temporary.open("wb") as file:
                shutil.copyfileobj(answer, file)
        with (
            zipfile.ZipFile(archive_path) as archive,
            archive.open(VECTORS_FILE) as packed,
            replacing(path) as temporary,
            temporary.open("wb") as file,
        ):
            shutil.copyfileobj(packed, file)
        archive_path.unlink()
    except (OSError, KeyError, HTTPException, zipfile.BadZipFile, zlib.error, EOFError) as error:
        raise AlignAttnError(
            f"the counter-fitted vectors could not be fetched from {VECTORS_URL} ({one_line(error)}): give local "
            f"ones with --word_vectors FILE, --neighbors FILE or --synonyms wordnet, or put {VECTORS_FILE} at {path}"
        ) from error
    return path


def universal_sentence_encoder(url: str) -> Any:
    """Return the Universal Sentence Encoder, downloaded by tensorflow_hub if it is not in its cache."""
    choice = "give the folder of a Hugging Face encoder with --sentence_encoder"
    try:
        import tensorflow_hub
    except ImportError as error:
        raise AlignAttnError(
            f"the Universal Sentence Encoder needs tensorflow and tensorflow_hub ({error}): "
            f"{install_extra('use')}, or {choice}"
        ) from error
    place = os.environ.get("TFHUB_CACHE_DIR", "a temporary folder (set TFHUB_CACHE_DIR for one that stays)")
    print(f"asking {url} for the Universal Sentence Encoder, about 1 GB unless it is in {place}", file=sys.stderr)
    try:
        return tensorflow_hub.load(url)
    except Exception as error:  # TensorFlow's own errors, HTTP ones and broken files have no common class
        raise AlignAttnError(f"cannot load {url} ({one_line(error)}): {choice}") from error


def announce_bert() -> None:
    """Announce the download of bert-base-uncased, if it is not in the Hub's cache."""
    from huggingface_hub import constants, try_to_load_from_cache

    if not isinstance(try_to_load_from_cache(BERT, constants.SAFETENSORS_SINGLE_FILE), str):
        log_download(f"{BERT} (440 MB, to {constants.HF_HUB_CACHE})")


def prepare_nltk(folder: Path | None, packages: Iterable[str]) -> None:
    """Ensure that NLTK finds packages of `NLTK_PACKAGES`.

    Args:
        folder: searched first; if it is given, nothing is downloaded.
        packages: their names.
    """
    import nltk

    if folder is not None and str(folder) not in nltk.data.path:
        nltk.data.path.insert(0, str(folder))
    missing = {}
    for name in packages:
        path = f"{NLTK_PACKAGES[name][0]}/{name}"
        for file in (path, f"{path}.zip"):
            try:
                nltk.data.find(file)
                break
            except LookupError:
                continue
        else:
            missing[name] = path
    if not missing:
        return
    places = ", ".join(missing.values())
    if folder is not None:
        raise AlignAttnError(f"--nltk_data {folder} lacks {places} (zipped or not): put it there")
    server = nltk.downloader.Downloader()
    destination = server.default_download_dir()
    sizes = ", ".join(f"{name} ({NLTK_PACKAGES[name][1]})" for name in missing)
    print(f"fetching NLTK's {sizes} from {server.url} to {destination}", file=sys.stderr)
    for name in missing:
        try:
            # Quiet or not, it prints what it then raises.
            nltk.download(name, download_dir=destination, quiet=True, raise_on_error=True, print_error_to=StringIO())
        except (OSError, ValueError) as error:
            raise AlignAttnError(
                f"NLTK's {name} could not be downloaded ({one_line(error)}): "
                f"give a folder that holds {places} with --nltk_data"
            ) from error
