"""A run on the Hub: what of its folder is pushed, and one line for all that may go wrong there."""

import json
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
from alignattn.utils.json_records import read_json
from alignattn.utils.network import log_push
from alignattn.utils.publishing import publishable

PUBLISHED = (
    *(CARD_FILE, CONFIG_FILE, RESULTS_FILE, PREDICTIONS_FILE, STATE_FILE, TASK_FILE, DATA_FILE),
    f"{CALIBRATION_FOLDER}/{CALIBRATION_ROWS_FILE}",
    *MODEL_FILES,
)
"""The files of a run's folder that are pushed: this package's, and those of the model and its tokenizer or processor.

`training_args.bin` is not among them: unpickling it would run any code in it.
"""

RESUMED = (*PUBLISHED, "optimizer.pt", "scheduler.pt", "scaler.pt", "rng_state*.pth")
"""The files of a checkpoint that `--hub_strategy` pushes for resuming."""

NAMING_PATHS = (CONFIG_FILE, RESULTS_FILE, STATE_FILE, TASK_FILE)
"""Files of a run that name data and models, some by paths of this machine."""

NAMING_MODELS = ("config.json", "tokenizer_config.json", "adapter_*.json")
"""Files of transformers and peft with a model's name in the fields `MODEL_NAMES`; others may look like a path."""

MODEL_NAMES = ("_name_or_path", "name_or_path", "base_model_name_or_path")

STAGING_FOLDER = "_push"
"""Files in the run's folder that the Trainer pushes while it trains."""

NOT_OPENED = "--push_to_hub: the repository could not be opened"
NOT_PUSHED = "has the finished run, but the push failed"


def push_run(result: RunResult, options: RunOptions) -> None:
    """Push the folder of a finished run, in this call or an earlier one, with a card that names the repository.

    `Trainer.push_to_hub` does not serve: it saves the model once more over the finished run's, which a kill would tear,
    and writes a card of its own, which knows no results.
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
        # A card that the user changed still loads the model from where it lay.
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
    """Fill a folder with what of another is pushed, and return it: links to files, and copies without local paths.

    Args:
        folder: of a run or a checkpoint.
        staged: the folder to fill.
        patterns: of the names of the files to push; or a path below the folder.
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
    return json.dumps(content, indent=2) + "\n"


def clear_staged(folder: Path) -> None:
    """Remove what was staged in a run's folder."""
    shutil.rmtree(folder / STAGING_FOLDER, ignore_errors=True)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one line that begins with `what`."""
    try:
        yield
    except AlignAttnError:
        raise
    # As in alignattn.tasks.reading: the client raises classes of whichever HTTP library it is built on.
    except Exception as error:
        reason = one_line(error).rstrip(".") or type(error).__name__
        raise AlignAttnError(
            f"{what}: {reason} (log in with `hf auth login` or give --hub_token, then run the same command again, "
            "or leave --push_to_hub out)"
        ) from error
