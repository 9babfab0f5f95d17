"""Pushing a finished run to the Hub: model, tokenizer, card, results and predictions, without paths of this machine."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from huggingface_hub import HfApi, constants, is_offline_mode

from alignattn.finetuning.card import CARD_FILE, quoted
from alignattn.finetuning.logs import STATE_FILE
from alignattn.finetuning.lora import ADAPTER_FOLDER
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import (
    CALIBRATION_FOLDER,
    CALIBRATION_ROWS_FILE,
    CONFIG_FILE,
    DATA_FILE,
    PREDICTIONS_FILE,
    RESULTS_FILE,
    TASK_FILE,
)
from alignattn.training.checkpoints import MODEL_FILES
from alignattn.utils.console import announce
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import read_json, read_text, read_yaml, to_json, write_text
from alignattn.utils.paths import publishable

PUBLISHED = (
    *(CARD_FILE, CONFIG_FILE, RESULTS_FILE, PREDICTIONS_FILE, STATE_FILE, TASK_FILE, DATA_FILE),
    f"{CALIBRATION_FOLDER}/{CALIBRATION_ROWS_FILE}",
    *(pattern for name in MODEL_FILES for pattern in (name, f"{ADAPTER_FOLDER}/{name}")),
)
"""The pushed files. Checkpoints, `training_args.bin` (a pickle) and `report.html` (it quotes rows) stay here."""

NAMING_PATHS = (CONFIG_FILE, RESULTS_FILE, STATE_FILE, TASK_FILE)
"""Files of a run that name data and models, some by local paths."""

NAMING_MODELS = ("config.json", "tokenizer_config.json", "adapter_*.json")
MODEL_NAMES = ("_name_or_path", "name_or_path", "base_model_name_or_path")
"""Files of transformers and peft that name a model, and the fields in which; other values may look like a path."""


def open_repository(options: RunOptions) -> str:
    """Create the repository that the options name, unless it exists, and return its full name.

    Raises:
        AlignAttnError: if the Hub cannot be reached or refuses.
    """
    values = options.values
    name = values["hub_model_id"] or options.output_dir.absolute().name
    if not is_offline_mode():
        announce(f"sending {options.output_dir} to {name} at {constants.ENDPOINT}")
    with hub_errors("--push_to_hub: the repository could not be opened"):
        api = HfApi(token=values["hub_token"])
        return api.create_repo(name, private=values["hub_private_repo"], exist_ok=True).repo_id


def push_run(options: RunOptions, repo_id: str) -> None:
    """Push the folder of a run that finished in this or an earlier call, with a card that names the repository.

    Args:
        options: the options of the run.
        repo_id: the repository that `open_repository` returned.
    """
    folder = options.output_dir
    with TemporaryDirectory() as staged, hub_errors(f"{folder} has the finished run, but the push failed"):
        stage(folder, Path(staged))
        # The card, which the user may have changed, loads the model from its local folder.
        line = f"path = {quoted(repo_id)}"
        card = re.sub(r'^path = ".*"$', lambda _: line, read_text(folder / CARD_FILE), flags=re.MULTILINE)
        write_text(Path(staged) / CARD_FILE, card)
        HfApi(token=options.values["hub_token"]).upload_folder(
            repo_id=repo_id,
            folder_path=staged,
            commit_message="End of training",
            revision=options.values["hub_revision"],
        )


def stage(folder: Path, staged: Path) -> Path:
    """Fill `staged` with links to the pushed files of a run's folder, or copies without local paths; return it."""
    for source in sorted(path for pattern in PUBLISHED for path in folder.glob(pattern) if path.is_file()):
        target = staged / source.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.name == CONFIG_FILE:
            write_text(target, yaml.safe_dump(publishable(read_yaml(source)), allow_unicode=True))
        elif source.name in NAMING_PATHS:
            write_text(target, to_json(publishable(read_json(source)), indent=2) + "\n")
        elif any(fnmatch(source.name, pattern) for pattern in NAMING_MODELS):
            content = read_json(source)
            content |= {name: publishable(content[name]) for name in MODEL_NAMES if name in content}
            write_text(target, to_json(content, indent=2) + "\n")
        else:
            target.unlink(missing_ok=True)
            target.symlink_to(source.resolve())
    return staged


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn exceptions of the Hub's client into an `AlignAttnError` of one line that begins with `what`."""
    try:
        yield
    except AlignAttnError:
        raise
    # As in alignattn.tasks.rows: the client raises the exceptions of the HTTP library that it is built on.
    except Exception as error:
        reason = one_line(error).rstrip(".") or type(error).__name__
        raise AlignAttnError(
            f"{what}: {reason} (log in with `hf auth login` or give --hub_token, then run the same command again, "
            "or leave --push_to_hub out)"
        ) from error
