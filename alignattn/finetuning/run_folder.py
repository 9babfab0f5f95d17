"""The folder of a run, read without torch: whether it is one, its options, its task and its data."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from alignattn.attention.config import ALL_ROWS
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import (
    CONFIG_FILE,
    DATA_FILE,
    RESULTS_FILE,
    RUN_FOLDER,
    SEED_FOLDER_PREFIX,
    TASK_FILE,
    has_begun,
    read_result,
)
from alignattn.tasks import Task
from alignattn.tasks.definitions import get_task, read_definition
from alignattn.training.methods import prediction_method
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_json, read_yaml
from alignattn.utils.options import read_options_file, resolve
from alignattn.utils.paths import digest_of, distinct_ends, input_folder, model_digest, publishable

MODEL_CONFIG_FILE = "config.json"
"""transformers' name of the file with a saved model's config."""

REGRESSION = "regression"
"""Value of `problem_type` in a saved config, for a model of scores."""

MODEL_OPTION = "model"
WITHOUT_ROWS = (MODEL_OPTION, "embeddings", "features")
"""Options whose files hold no rows."""

ROW_FILES = ("train_file", "validation_file")
FILE_OPTIONS = (*ROW_FILES, "embeddings", "features")

ANOTHER_FOLDER = "give another --output_dir"
"""Advice for a folder of another run."""

NEWEST_CHECKPOINT = (None, True, "True", "true", "last")
"""Values of `--resume_from_checkpoint` that mean the latest checkpoint."""

OptionsT = TypeVar("OptionsT", bound=RunOptions)

OF_ONE_RUN = frozenset({"seed", "run_name", "use_cpu"})
"""Options in which the runs of one recipe differ: the seed, the name, and what executes them."""


@dataclass(frozen=True)
class FinishedRun:
    """A finished run.

    Attributes:
        folder: the folder of the run.
        options: the options that it was made with.
        task: the task of its model, with its labels.
    """

    folder: Path
    options: RunOptions
    task: Task

    def check_has_classes(self, what: str = "a temperature") -> None:
        """Refuse a run whose rows do not have one class each, for a feature that needs probabilities of classes.

        Args:
            what: the refused feature, for the message.
        """
        if not self.task.has_classes:
            raise AlignAttnError(
                f"{what} is for probabilities of classes, one class per row, and task {self.task.name!r} has none"
            )


def read_finished_run(folder: Path, option: str) -> FinishedRun:
    """Return the finished run in a folder.

    Args:
        folder: the folder that the user gave.
        option: the option that gave it, for the message.
    """
    check_finished(folder, option)
    result = read_result(folder)
    assert result is not None
    options = read_run_options(folder)
    task: Any = options.task
    config = read_json(folder / MODEL_CONFIG_FILE)
    if task is None or not getattr(task, "labels", True):
        # The saved model knows the labels that the training rows defined.
        names = {} if config.get("problem_type") == REGRESSION else config.get("id2label") or {}
        labels = tuple(names[number] for number in sorted(names, key=int))
        task = options.data.own_task(labels) if task is None else replace(task, labels=labels)
    return FinishedRun(folder, options, replace(task, name=result.task))


def warn_plain(folder: Path, options: RunOptions) -> None:
    """Warn on standard error if a run's results are not of its plain model alone.

    Args:
        folder: the folder of the run, whose model predicts in one forward without dropout.
        options: the options that it was made with.
    """
    method = prediction_method(options.training)
    if method is not None:
        print(f"{folder}: its results use {method.label}; here its plain model predicts, in one pass", file=sys.stderr)


def check_finished(folder: Path, option: str) -> None:
    """Refuse a folder without a finished run; `option` is the option that gave it, for the message."""
    check_run_folder(option, folder)
    if not (folder / RESULTS_FILE).is_file():
        raise AlignAttnError(f"{option} {folder} has no {RESULTS_FILE}, so it has not finished: run its command again")


def check_run_folder(label: str, value: str | Path) -> None:
    """Refuse a folder that is not a run's; the `place` of an option, with its label and value."""
    input_folder(label, str(value))
    folder = Path(value)
    below = folder / RUN_FOLDER
    if (below / CONFIG_FILE).is_file():
        raise AlignAttnError(
            f"{label} {folder} is not a run folder of alignattn finetune, but contains one: give {below}"
        )
    if not (folder / CONFIG_FILE).is_file():
        seeds = seed_folders(folder)
        others = f" (its seeds: {', '.join(path.name for path in seeds)})" if len(seeds) > 1 else ""
        choice = f": give the folder of a seed, such as {seeds[0]}{others}" if seeds else ""
        raise AlignAttnError(
            f"{label} {folder} is not a run folder of alignattn finetune, because it has no {CONFIG_FILE}{choice}"
        )


def is_seed_folder(folder: Path) -> bool:
    """Return whether a folder's name is only a seed, such as `seed-1`."""
    return folder.resolve().name.removeprefix(SEED_FOLDER_PREFIX).isdecimal()


def seed_folders(folder: Path) -> list[Path]:
    """Return the run folders of the seeds in a folder, by seed; empty if it is not a folder of seeds."""
    seeds = (path.parent for path in folder.glob(f"*/{CONFIG_FILE}") if is_seed_folder(path.parent))
    return sorted(seeds, key=lambda path: (len(path.name), path.name))


def other_seeds(options: OptionsT) -> list[OptionsT]:
    """Return the runs of a call after its first, and those of its options that an earlier call left in its folder.

    A run checks its folder when it starts. Check these before, so that an error comes before hours of training.
    """
    if options.training.seeds is None:
        return []
    folders = [folder for folder in seed_folders(options.output_dir) if folder.name.startswith(SEED_FOLDER_PREFIX)]
    earlier = {int(folder.name.removeprefix(SEED_FOLDER_PREFIX)) for folder in folders}.difference(
        options.training.seeds
    )
    return [*options.runs()[1:], *(options.of_seed(seed) for seed in sorted(earlier))]


def check_runs_folder(label: str, value: str) -> None:
    """Refuse a path that is neither a run folder nor a folder of seeds; the `place` of an option, with its label."""
    if not seed_folders(Path(value)):
        check_run_folder(label, value)


def read_run_options(folder: Path) -> RunOptions:
    """Return the options that the run in `folder` was made with.

    Args:
        folder: the folder of the run.
    """
    values = read_options_file(RunOptions, folder / CONFIG_FILE, with_derived=True)
    # Before it was written, all rows were the default.
    return resolve(RunOptions, {"alignment_rows": ALL_ROWS, **values, "output_dir": folder})


def check_output_dir(options: RunOptions) -> None:
    """Refuse a folder that holds another run or other files, and a checkpoint of another run."""
    folder = options.output_dir
    given = options.values["resume_from_checkpoint"]
    if str(given).lower() == "false":
        raise AlignAttnError(
            f"--resume_from_checkpoint {given}: a run resumes in its folder; to begin anew, give another --output_dir"
        )
    if given not in NEWEST_CHECKPOINT:
        problem = f"--resume_from_checkpoint {given} is of another run"
        _check_same_run(options, Path(str(given)).absolute().parent, problem, "give another --resume_from_checkpoint")
    if not folder.exists():
        return
    if folder.is_dir() and not has_begun(folder):
        return
    if not (folder / CONFIG_FILE).is_file():
        raise AlignAttnError(f"{folder} exists and is not a run of alignattn: give another --output_dir")
    _check_same_run(options, folder, f"{folder} already holds another run", ANOTHER_FOLDER)


def _check_same_run(options: RunOptions, folder: Path, problem: str, advice: str) -> None:
    """Refuse options that define another run than the one in `folder`; files are compared by their content."""
    check_same_task(options, folder, advice)
    config = folder / CONFIG_FILE
    written = read_yaml(config) if config.is_file() else {}
    names = set(options.differences(written)) if written else set()
    if differing := sorted(names - options_of_same_files(options, folder)):
        raise AlignAttnError(f"{problem} (different: {', '.join(differing)}): {advice}")
    check_same_data(options, folder, advice)


def short_names(folders: Sequence[Path], option: str) -> Mapping[Path, str]:
    """Return a unique short name for each folder: as many of its last parts as needed.

    Args:
        folders: one or more folders.
        option: the option that gave them, for the message.
    """
    names = ["-".join(end) for end in distinct_ends(folders)]
    if len(set(names)) < len(names):
        raise AlignAttnError(f"{option} lists a folder twice: {' '.join(map(str, folders))}")
    return dict(zip(folders, names, strict=True))


def data_digests(options: RunOptions) -> dict[str, str]:
    """Return the SHA-256 of each existing file or folder that a run reads, by the option that names it."""
    digests = {name: digest_of(path) for name, path in _files(options).items() if path.exists()}
    model = Path(options.model.model)
    return digests | ({MODEL_OPTION: model_digest(model)} if model.is_dir() else {})


def is_run_folder(model: Path) -> bool:
    """Return whether a model is the folder of a run."""
    return (model / CONFIG_FILE).is_file()


def options_of_same_files(options: RunOptions, folder: Path) -> frozenset[str]:
    """Return the options that name the same files as the run in `folder` recorded: content counts, not the path."""
    kept, mine = _kept_digests(folder / DATA_FILE).keys(), data_digests(options).keys()
    shared, apart = ({name.partition(" ")[0] for name in names} for names in (kept & mine, kept ^ mine))
    # `check_same_task` compares the definition that the folder keeps.
    keeps_task = options.keeps_task and (folder / TASK_FILE).is_file()
    # Nothing compares the pictures that a table names, so its path counts.
    of_pictures = options.task_of_rows.file_column is not None
    tables = {name for name in ROW_FILES if of_pictures and Path(str(options.values[name])).is_file()}
    return frozenset((shared - apart - {"task"} - tables) | ({"task"} if keeps_task else set()))


def check_same_task(options: RunOptions, folder: Path, advice: str = ANOTHER_FOLDER) -> None:
    """Refuse a task file that has changed since `folder` kept its definition.

    Args:
        options: the options of the requested run.
        folder: the folder of the existing run.
        advice: the end of the message.
    """
    task = options.data.task
    kept = folder / TASK_FILE
    if not kept.is_file() or task is None or not Path(task).is_file():
        return
    if read_definition(kept) != options.chosen(get_task(task)):
        raise AlignAttnError(f"{folder} holds a run of an earlier definition of {task}: {advice}")


def check_same_data(options: RunOptions, folder: Path, advice: str = ANOTHER_FOLDER) -> None:
    """Refuse files whose content is not that of the run in `folder`; missing files are ignored.

    Args:
        options: the options of the requested run.
        folder: the folder of the existing run.
        advice: the end of the message.
    """
    files = {MODEL_OPTION: Path(options.model.model), **_files(options)}
    name = first_changed_digest(data_digests(options), folder / DATA_FILE)
    if name is not None:
        raise AlignAttnError(
            f"{folder} already holds another run (--{name.partition(' ')[0]}: the content of {files[name]} differs): "
            f"{advice}"
        )


def changed_rows_file(options: RunOptions, folder: Path) -> Path | None:
    """Return the first file of rows whose content has changed since the run in `folder` was made; None if none has."""
    digests = {name: digest for name, digest in data_digests(options).items() if name not in WITHOUT_ROWS}
    name = first_changed_digest(digests, folder / DATA_FILE)
    return None if name is None else _files(options)[name]


def differences_of_runs(options: RunOptions, first: RunOptions) -> list[str]:
    """Return what distinguishes two existing runs, except the seed, the machine, the folder and where their files lie.

    Args:
        options: the options of a run, read from its folder.
        first: the options of the other run, likewise.
    """
    mine, theirs = options.to_dict(), first.to_dict()
    differing = []
    for name in sorted(set(options.differences(theirs)) - OF_ONE_RUN):
        value, other = mine.get(name), theirs.get(name)
        # Paths differ only by their last parts.
        has_same_name = False
        if isinstance(value, str) and isinstance(other, str):
            has_same_name = Path(value).exists() and Path(value).name == Path(other).name
        if not has_same_name and publishable(value) != publishable(other):
            differing.append(name)
    changed = first_changed_digest(_kept_digests(options.output_dir / DATA_FILE), first.output_dir / DATA_FILE)
    return differing if changed is None else [*differing, f"the content of {changed}"]


def changed_contents(folder: Path, other: Path) -> list[str]:
    """Return the options whose files and folders had another content for a run than for another, as both recorded."""
    return _changed_digests(_kept_digests(folder / DATA_FILE), other / DATA_FILE)


def first_changed_digest(digests: Mapping[str, str], path: Path) -> str | None:
    """Return the name of the first digest that differs from the one in a file of digests; None if none does."""
    return next(iter(_changed_digests(digests, path)), None)


def _changed_digests(digests: Mapping[str, str], path: Path) -> list[str]:
    kept = _kept_digests(path)
    return [name for name, digest in digests.items() if kept.get(name, digest) != digest]


def evaluation_digests(options: RunOptions, folder: Path, split: str) -> set[str]:
    """Return the digests of the files with a run's rows of a split, as far as the run in `folder` recorded them."""
    kept = _kept_digests(folder / DATA_FILE)
    own = "train_file" if options.data.validation_share is not None else "validation_file"
    of_split = (["task", split], ["data_dir", split])
    return {digest for name, digest in kept.items() if name == own or name.split(" ")[:2] in of_split}


def _kept_digests(path: Path) -> dict[str, str]:
    return read_json(path) if path.is_file() else {}


def _files(options: RunOptions) -> Mapping[str, Path]:
    values, task = options.values, options.task
    files = {name: Path(values[name]) for name in FILE_OPTIONS if values[name] is not None}
    if options.data.data_dir is None and task is not None:
        files |= {f"task {split}": Path(file) for split, file in task.sources.files.items()}
    if options.data.data_dir is not None and task is not None:
        files |= {f"data_dir {name}": path for name, path in task.data_files(Path(options.data.data_dir)).items()}
    return files
