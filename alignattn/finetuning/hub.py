"""Pushing a run to the Hub: the files to push, and the errors of the Hub in one line."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import HfApi

from alignattn.finetuning.card import CARD_FILE, model_card, quoted, write_model_card
from alignattn.finetuning.logs import STATE_FILE
from alignattn.finetuning.lora import ADAPTER_FOLDER
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import PREDICTIONS_FILE, RESULTS_FILE, RunResult
from alignattn.finetuning.run_files import (
    CALIBRATION_FOLDER,
    CALIBRATION_ROWS_FILE,
    CONFIG_FILE,
    DATA_FILE,
    TASK_FILE,
)
from alignattn.training.checkpoints import MODEL_FILES
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import read_text, read_yaml, write_text
from alignattn.utils.json_records import read_json, to_json
from alignattn.utils.network import log_push
from alignattn.utils.publishing import publishable

PUBLISHED = (
    *(CARD_FILE, CONFIG_FILE, RESULTS_FILE, PREDICTIONS_FILE, STATE_FILE, TASK_FILE, DATA_FILE),
    f"{CALIBRATION_FOLDER}/{CALIBRATION_ROWS_FILE}",
    *MODEL_FILES,
)
"""The files of a run's folder that are pushed: those of alignattn, the model, and its tokenizer or processor.

`training_args.bin` is not among them: unpickling it would run any code in it.
"""

RESUMED = (*PUBLISHED, "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth")
"""The files of a checkpoint that `--hub_strategy` pushes for resuming."""

NAMING_PATHS = (CONFIG_FILE, RESULTS_FILE, STATE_FILE, TASK_FILE)
"""Files of a run that name data and models, some by local paths."""

NAMING_MODELS = ("config.json", "tokenizer_config.json", "adapter_*.json")
"""Files of transformers and peft that name a model in the fields `MODEL_NAMES`; other values may look like a path."""

MODEL_NAMES = ("_name_or_path", "name_or_path", "base_model_name_or_path")

STAGING_FOLDER = "_push"
"""Folder in the run's folder for the files that the Trainer pushes during training."""

NOT_OPENED = "--push_to_hub: the repository could not be opened"
NOT_PUSHED = "has the finished run, but the push failed"


def push_run(result: RunResult, options: RunOptions) -> None:
    """Push the folder of a run that finished in this or an earlier call, with a card that names the repository.

    `Trainer.push_to_hub` is not suitable: it saves the model again over that of the finished run, which an interruption
    would corrupt, and it writes its own card, which has no results.
    """
    folder, values = options.output_dir, options.values
    api, token = HfApi(), values["hub_token"]
    name = values["hub_model_id"] or folder.absolute().name
    log_push(str(folder), name)
    with hub_errors(NOT_OPENED):
        repo_id = api.create_repo(name, token=token, private=values["hub_private_repo"], exist_ok=True).repo_id
    write_model_card(folder, model_card(result, options, repo_id))
    with TemporaryDirectory() as staged, hub_errors(f"{folder} {NOT_PUSHED}"):
        stage(folder, Path(staged))
        # A card that the user changed still loads the model from its local folder.
        card = read_text(folder / CARD_FILE)
        for place in {str(folder), publishable(str(folder))}:
            card = card.replace(f"path = {quoted(place)}", f"path = {quoted(repo_id)}")
        write_text(Path(staged) / CARD_FILE, card)
        api.upload_folder(
            repo_id=repo_id,
            folder_path=staged,
            commit_message="End of training",
            token=token,
            revision=values["hub_revision"],
        )


def stage(folder: Path, staged: Path, patterns: Sequence[str] = PUBLISHED) -> Path:
    """Fill `staged` with the files of a folder to push, and return it: links to files, or copies without local paths.

    Args:
        folder: the folder of a run or a checkpoint.
        staged: the folder to fill.
        patterns: patterns of the names of the files to push, or paths relative to the folder.
    """
    for place in (folder, folder / ADAPTER_FOLDER, folder / CALIBRATION_FOLDER):
        for source in sorted(filter(Path.is_file, place.iterdir() if place.is_dir() else ())):
            relative = source.relative_to(folder)
            if not _is_named(source, patterns) and relative.as_posix() not in patterns:
                continue
            target = staged / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            if source.name in NAMING_PATHS or _is_named(source, NAMING_MODELS):
                write_text(target, _published_text(source))
            else:
                target.symlink_to(source.resolve())
    return staged


def _is_named(file: Path, patterns: Sequence[str]) -> bool:
    return any(fnmatch(file.name, pattern) for pattern in patterns)


def _published_text(file: Path) -> str:
    if file.name == CONFIG_FILE:
        published: str = yaml.safe_dump(publishable(read_yaml(file)), allow_unicode=True)
        return published
    content = read_json(file)
    if file.name in NAMING_PATHS:
        content = publishable(content)
    else:
        content |= {name: publishable(content[name]) for name in MODEL_NAMES if name in content}
    return to_json(content, indent=2) + "\n"


def clear_staged(folder: Path) -> None:
    """Remove the staged files from a run's folder."""
    shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn exceptions of the Hub's client into an `AlignAttnError` of one line that begins with `what`."""
    try:
        yield
    except AlignAttnError:
        raise
    # As in alignattn.tasks.reading: the client raises the exceptions of the HTTP library that it is built on.
    except Exception as error:
        reason = one_line(error).rstrip(".") or type(error).__name__
        raise AlignAttnError(
            f"{what}: {reason} (log in with `hf auth login` or give --hub_token, then run the same command again, "
            "or leave --push_to_hub out)"
        ) from error
