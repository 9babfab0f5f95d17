"""The recipes' original resources, downloaded once after a message with size and destination.

TextAttack's own download of the counter-fitted vectors contains pickles, which are never opened here. The same vectors
are plain text in their authors' repository.
"""

import os
import shutil
import sys
import urllib.request
import zipfile
import zlib
from http.client import HTTPException
from pathlib import Path
from typing import Any

from alignattn.robustness.resources import BERT
from alignattn.utils.errors import AlignAttnError, in_megabytes, install_extra, one_line
from alignattn.utils.files import cache_folder, replacing
from alignattn.utils.network import log_download

VECTORS_URL = (
    "https://raw.githubusercontent.com/nmrksic/counter-fitting/master/word_vectors/counter-fitted-vectors.txt.zip"
)
VECTORS_FILE = "counter-fitted-vectors.txt"


def counter_fitted_vectors() -> Path:
    """Return the text file of the counter-fitted vectors of Mrkšić et al. (2016), downloaded if necessary."""
    path = cache_folder() / VECTORS_FILE
    if path.is_file():
        return path
    try:
        _fetch_zipped(VECTORS_URL, VECTORS_FILE, path)
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

    weights = constants.SAFETENSORS_SINGLE_FILE
    if isinstance(try_to_load_from_cache(BERT, weights), str):
        return
    log_download(f"{BERT} (440 MB, to {constants.HF_HUB_CACHE})")


def _fetch_zipped(url: str, member: str, path: Path) -> None:
    """Fetch an archive and unpack one member of it to `path`."""
    archive_path = path.with_suffix(".zip")
    print(f"asking {url} for {member}", file=sys.stderr)
    with urllib.request.urlopen(url, timeout=30.0) as answer, replacing(archive_path) as temporary:  # noqa: S310
        length = answer.headers["Content-Length"] or ""
        size = f"{in_megabytes(int(length))} zipped" if length.isdecimal() else "size unknown"
        print(f"fetching {member} ({size}) from {url} to {path}", file=sys.stderr)
        with temporary.open("wb") as file:
            shutil.copyfileobj(answer, file)
    with (
        zipfile.ZipFile(archive_path) as archive,
        archive.open(member) as packed,
        replacing(path) as temporary,
        temporary.open("wb") as file,
    ):
        shutil.copyfileobj(packed, file)
    archive_path.unlink()
