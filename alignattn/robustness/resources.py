"""The linguistic resources of an attack: the recipes' originals, downloaded once after a message, or local files.

TextAttack's own download of the counter-fitted vectors contains pickles, which are never opened here. The same vectors
are plain text in their authors' repository.
"""

import os
import shutil
import sys
import urllib.request
import zipfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from http.client import HTTPException
from io import StringIO
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from huggingface_hub import constants, is_offline_mode, try_to_load_from_cache

from alignattn.models.packaged import NAMES, model_source
from alignattn.robustness import UNIVERSAL_SENTENCE_ENCODER
from alignattn.utils.console import is_known
from alignattn.utils.errors import AlignAttnError, in_megabytes, install_extra, one_line
from alignattn.utils.files import replacing
from alignattn.utils.parquet import read_parquet
from alignattn.utils.paths import cache_folder, check_file, digest_of, digest_of_files, model_digest

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

DIGEST_LENGTH = 8
TFHUB = "https://tfhub.dev"
"""Where TensorFlow Hub has the Universal Sentence Encoder."""

USERS = {
    "word_swaps": ("textfooler", "textbugger"),
    "word_distance": ("textfooler",),
    "sentence_encoder": ("textfooler", "textbugger", "bae"),
    "masked_language_model": ("bae",),
    "nltk_data": ("textfooler", "textbugger", "bae"),
}
"""The recipes that use each resource."""

NEIGHBOR_COLUMNS = {"word": pa.string(), "neighbors": pa.list_(pa.string())}


@dataclass(frozen=True)
class Resources:
    """The resources of one attack; by default the recipes' originals.

    Attributes:
        word_vectors: word vectors, as text (`word v1 … vd` per line) or npz, instead of the counter-fitted ones.
        neighbors: a Parquet file of neighbour lists (`word`, `neighbors`, nearest first), instead of word vectors.
            Without vectors TextFooler's limit on the distance of two words is left out.
        synonyms: "wordnet" for WordNet's synonyms instead of word vectors, likewise without that limit.
        sentence_encoder: "use" for the Universal Sentence Encoder, or the folder of a Hugging Face encoder.
        mlm: the folder of a masked-language model instead of bert-base-uncased.
        nltk_data: a folder of NLTK data; otherwise NLTK's own folders are searched, then NLTK's server.
    """

    word_vectors: Path | None = None
    neighbors: Path | None = None
    synonyms: str | None = None
    sentence_encoder: str | Path = UNIVERSAL_SENTENCE_ENCODER
    mlm: Path | None = None
    nltk_data: Path | None = None

    def __post_init__(self) -> None:
        if sum(source is not None for source in (self.word_vectors, self.neighbors, self.synonyms)) > 1:
            raise AlignAttnError("give one of word_vectors, neighbors and synonyms")

    @property
    def has_vectors(self) -> bool:
        """Whether words have vectors and thus distances."""
        return self.neighbors is None and self.synonyms is None

    @property
    def encoder_folder(self) -> Path | None:
        """The folder of the sentence encoder; None for the Universal Sentence Encoder."""
        is_original = self.sentence_encoder == UNIVERSAL_SENTENCE_ENCODER
        return None if is_original else Path(model_source(str(self.sentence_encoder)))

    def check(self, recipes: Collection[str] = ()) -> None:
        """Check the local resources, and that the originals of these recipes are here or can be fetched.

        Nothing is loaded or downloaded yet.
        """
        for option, file in (("--word_vectors", self.word_vectors), ("--neighbors", self.neighbors)):
            if file is not None:
                check_file(file, f"give another to {option}")
        if self.neighbors is not None:
            table, columns = read_parquet(self.neighbors, "give another to --neighbors"), NEIGHBOR_COLUMNS
            for name, dtype in columns.items():
                if name not in table.column_names or not _is_like(table.schema.field(name).type, dtype):
                    present = ", ".join(f"{field.name} ({field.type})" for field in table.schema)
                    raise AlignAttnError(
                        f"--neighbors {self.neighbors} lacks a column {name!r} of type {dtype}: it has {present}"
                    )
            if table.num_rows == 0:
                raise AlignAttnError(f"--neighbors {self.neighbors} has no words")
            words, lists = (table[name] for name in columns)
            if words.null_count or lists.null_count or pc.list_flatten(lists).null_count:
                raise AlignAttnError(
                    f"--neighbors {self.neighbors} has a null: give a word and a list of neighbors in each row"
                )
        if self.encoder_folder is not None:
            _check_model("--sentence_encoder", self.encoder_folder, f"{UNIVERSAL_SENTENCE_ENCODER} or the folder")
        if self.mlm is not None:
            _check_model("--mlm", self.mlm, "the folder")
        if self.nltk_data is not None and not self.nltk_data.is_dir():
            raise AlignAttnError(f"--nltk_data {self.nltk_data}: there is no such folder")
        needs_vectors = self.has_vectors and self.word_vectors is None and not (cache_folder() / VECTORS_FILE).is_file()
        needs_encoder = self.encoder_folder is None and "TFHUB_CACHE_DIR" not in os.environ
        needs_bert = self.mlm is None and not isinstance(try_to_load_from_cache(BERT, constants.CONFIG_NAME), str)
        for part, is_needed, name, address, remedy in (
            ("word_swaps", needs_vectors, VECTORS_FILE, VECTORS_URL, "--word_vectors, --neighbors or --synonyms"),
            ("sentence_encoder", needs_encoder, "the Universal Sentence Encoder", TFHUB, "--sentence_encoder"),
            ("masked_language_model", needs_bert, BERT, constants.ENDPOINT, "--mlm"),
        ):
            is_used = is_needed and not set(recipes).isdisjoint(USERS[part])
            if is_used and (is_offline_mode() or not is_known(address)):
                raise AlignAttnError(
                    f"{name} is not on this machine, and {address} is out of reach (or HF_HUB_OFFLINE is set): give "
                    f"{remedy}"
                )

    def describe(self, recipe: str) -> dict[str, str]:
        """Return the resource of each part of a recipe in words.

        A local resource has its name (for a folder, the last two parts of its path) and the start of its SHA-256.
        """
        return {part: resource for part, resource in self._descriptions.items() if recipe in USERS[part]}

    @cached_property
    def _descriptions(self) -> Mapping[str, str]:
        """The resource of each part, with digests of whole models and large files, computed once."""
        vectors = "the counter-fitted vectors of Mrkšić et al. (2016)"
        if self.word_vectors is not None:
            vectors = _named_file(self.word_vectors)
        swaps = f"nearest neighbours by cosine in {vectors}"
        if self.neighbors is not None:
            longest = max(len(words) for words in read_neighbors(self.neighbors).values())
            swaps = f"neighbour lists of at most {longest} words, {_named_file(self.neighbors)}"
        elif self.synonyms is not None:
            swaps = "WordNet synonyms"
        without = "left out (no vectors), so TextFooler's limit of 0.5 on the cosine of two words is not applied"
        encoder = "Universal Sentence Encoder"
        if self.encoder_folder is not None:
            encoder = f"{named_model(self.encoder_folder)}, mean over its real tokens"
        nltk_data, folder = "NLTK's own", self.nltk_data
        if folder is not None:
            packages = (folder / kind / name for name, (kind, _) in NLTK_PACKAGES.items())
            files = (path for place in packages for path in (place.with_name(f"{place.name}.zip"), *place.rglob("*")))
            digest = digest_of_files({path.relative_to(folder).as_posix(): path for path in files if path.is_file()})
            nltk_data = f"sha256 {digest[:DIGEST_LENGTH]}"
        return {
            "word_swaps": swaps,
            "word_distance": vectors if self.has_vectors else without,
            "sentence_encoder": encoder,
            "masked_language_model": BERT if self.mlm is None else named_model(self.mlm),
            "nltk_data": nltk_data,
        }


def read_neighbors(path: Path) -> dict[str, list[str]]:
    """Return the neighbours of each word of a Parquet file with the columns `word` and `neighbors`, nearest first."""
    table = read_parquet(path, columns=list(NEIGHBOR_COLUMNS))
    return dict(zip(table["word"].to_pylist(), table["neighbors"].to_pylist(), strict=True))


def _is_like(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Return whether a type holds the same values as one of `NEIGHBOR_COLUMNS`; pandas writes large strings."""
    if pa.types.is_list(wanted):
        is_list = pa.types.is_list(found) or pa.types.is_large_list(found)
        return is_list and _is_like(found.value_type, wanted.value_type)
    return pa.types.is_string(found) or pa.types.is_large_string(found)


def _check_model(option: str, folder: Path, choices: str) -> None:
    if not (folder / "config.json").is_file():
        raise AlignAttnError(f"{option} {folder} has no config.json: give {choices} of a Hugging Face model")
    if not any(folder.glob("*.safetensors")):
        raise AlignAttnError(f"{option} {folder} has no weights as safetensors; other weights are never unpickled")


def named_model(folder: Path) -> str:
    """Return the identity of a model's folder: the last two parts of its path, and the start of its SHA-256."""
    return label_model(folder, model_digest(folder))


def label_model(folder: Path, digest: str) -> str:
    """Return the identity for a known digest; the last part of the path alone is often `model` or `seed-1`."""
    place = Path(*folder.resolve().parts[-2:]).as_posix()
    return f"{NAMES.get(place, place)} (sha256 {digest[:DIGEST_LENGTH]})"


def _named_file(path: Path) -> str:
    return f"{path.resolve().name} (sha256 {digest_of(path)[:DIGEST_LENGTH]})"


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
