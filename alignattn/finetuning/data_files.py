"""Which data a run is of, by the content of its files: equal names may be of other data, in other folders or later."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.run_files import CONFIG_FILE, DATA_FILE
from alignattn.tasks.task import TRAIN
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.json_records import read_json

MODEL_FILES = ("config.json", "*.safetensors", "tokenizer*.json", "vocab.txt", "vocab.json", "merges.txt", "*.model")
"""What of a model's folder says which model it is."""

MODEL_OPTION = "model"
FILE_OPTIONS = ("train_file", "validation_file", "embeddings")


def data_digests(options: RunOptions) -> dict[str, str]:
    """Return the SHA-256 of each file or folder of a run that is there, by the option that names it."""
    digests = {name: _digest_of(path) for name, path in _files(options).items() if path.exists()}
    model = Path(options.model.model)
    return digests | ({MODEL_OPTION: model_digest(model)} if is_run_folder(model) else {})


def is_run_folder(model: Path) -> bool:
    """Return whether a model is the folder of a run."""
    return (model / CONFIG_FILE).is_file()


def model_digest(folder: Path) -> str:
    """Return the SHA-256 of a model's folder, wherever it lies: of its weights, its config and its tokenizer."""
    files = sorted({file for pattern in MODEL_FILES for file in folder.glob(pattern)}, key=lambda file: file.name)
    return _digest_of_files({file.name: file for file in files})


def is_same_start(options: RunOptions, folder: Path) -> bool:
    """Return whether the run in `folder` started from a run of the same content as the one that is asked for."""
    path = folder / DATA_FILE
    written = read_json(path).get(MODEL_OPTION) if path.is_file() else None
    return written is not None and written == data_digests(options).get(MODEL_OPTION)


def check_same_data(options: RunOptions, folder: Path) -> None:
    """Refuse files that hold other data than when the run in `folder` was made; those that are gone are not missed.

    Args:
        options: of the run that is asked for.
        folder: of the run that is there.
    """
    path = folder / DATA_FILE
    written = read_json(path) if path.is_file() else {}
    files = {MODEL_OPTION: Path(options.model.model), **_files(options)}
    for name, digest in data_digests(options).items():
        if written.get(name, digest) != digest:
            raise AlignAttnError(
                f"{folder} already holds another run (of --{name.partition(' ')[0]}: {files[name]} holds other content "
                "than then): give another --output_dir"
            )


def _files(options: RunOptions) -> Mapping[str, Path]:
    values, task = options.values, options.task
    files = {name: Path(values[name]) for name in FILE_OPTIONS if values[name] is not None}
    if options.data.data_dir is None and task is not None:
        files |= {f"task {split}": Path(file) for split, file in task.sources.files.items()}
    if options.data.data_dir is not None and task is not None:
        folder = Path(options.data.data_dir) / task.sources.folder
        files |= {f"data_dir {split}": folder / f"{split}.parquet" for split in (TRAIN, *task.evaluation_splits)}
    return files


def _digest_of(path: Path) -> str:
    """The SHA-256 of a file; of a folder that of the names and digests of its files."""
    if not path.is_dir():
        return _digest(path, *_state(path))
    files = sorted(file for file in path.rglob("*") if file.is_file())
    return _digest_of_files({file.relative_to(path).as_posix(): file for file in files})


def _digest_of_files(files: Mapping[str, Path]) -> str:
    lines = (f"{name} {_digest(file, *_state(file))}\n" for name, file in files.items())
    return hashlib.sha256("".join(lines).encode(errors="surrogateescape")).hexdigest()


def _state(path: Path) -> tuple[int, int, int]:
    """What changes with the content of a file, so that it is read once."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


@cache
def _digest(path: Path, *_: int) -> str:
    with path.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()
