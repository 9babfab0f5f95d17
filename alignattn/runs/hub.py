"""A run on the Hub: what of its folder is pushed, and one line for all that may go wrong there."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import HfApi
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR
from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

from alignattn.runs.card import CARD_FILE, model_card, quoted, write_model_card
from alignattn.runs.folders import STATE_FILE
from alignattn.runs.options import TASK_FILE, RunOptions
from alignattn.runs.results import CONFIG_FILE, RESULTS_FILE, RunResult
from alignattn.support.errors import AlignAttnError, one_line
from alignattn.support.files import read_text, read_yaml, write_text
from alignattn.support.json_records import read_json
from alignattn.support.publishing import publishable

LEFT_OUT = ("_*", f"{PREFIX_CHECKPOINT_DIR}-*")
"""What `Trainer.push_to_hub` leaves out, too."""

NAMING_PATHS = (CONFIG_FILE, RESULTS_FILE, STATE_FILE, TASK_FILE, ADAPTER_CONFIG_NAME)
"""Files of a run that name data and models, some by where they lie on this machine."""

STAGING_FOLDER = "_push"
"""Of what the Trainer pushes while it trains, in the run's folder: left out by its name."""

NOT_OPENED = "--push_to_hub: the repository could not be opened"
NOT_PUSHED = "holds the finished run, which could not be pushed"


def push_run(result: RunResult, options: RunOptions) -> None:
    """Push the folder of a finished run, in this call or an earlier one, with a card that names the repository.

    `Trainer.push_to_hub` does not serve: it saves the model once more over the finished run's, which a kill would tear,
    and writes a card of its own, which knows no results.
    """
    folder, values = options.output_dir, options.values
    api, token = HfApi(), values["hub_token"]
    name = values["hub_model_id"] or folder.absolute().name
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
            ignore_patterns=list(LEFT_OUT),
            revision=values["hub_revision"],
        )


def stage(folder: Path, staged: Path) -> Path:
    """Fill a folder with what of another is pushed, and return it: links to files, and copies without local paths."""
    for source in filter(Path.is_file, folder.rglob("*")):
        place = source.relative_to(folder)
        if any(fnmatch(place.parts[0], pattern) for pattern in LEFT_OUT):
            continue
        target = staged / place
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name in NAMING_PATHS:
            write_text(target, _published_text(source))
        else:
            target.symlink_to(source.resolve())
    return staged


def _published_text(file: Path) -> str:
    if file.name == CONFIG_FILE:
        published: str = yaml.safe_dump(publishable(read_yaml(file)), allow_unicode=True)
        return published
    return json.dumps(publishable(read_json(file)), indent=2) + "\n"


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
    # As in alignattn.tasks.sources: the client raises classes of whichever HTTP library it is built on.
    except Exception as error:
        reason = one_line(error).rstrip(".") or type(error).__name__
        raise AlignAttnError(
            f"{what}: {reason} (log in with `hf auth login` or give --hub_token, then give the same command "
            "again; without --push_to_hub it needs no Hub)"
        ) from error
