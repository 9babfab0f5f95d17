"""A finished run on the Hub, and one line for all that may go wrong there."""

from collections.abc import Iterator
from contextlib import contextmanager

from huggingface_hub import HfApi
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from alignattn.runs.card import model_card, write_model_card
from alignattn.runs.options import RunOptions
from alignattn.runs.results import RunResult
from alignattn.support.errors import AlignAttnError, one_line

LEFT_OUT = ["_*", f"{PREFIX_CHECKPOINT_DIR}-*"]
"""What `Trainer.push_to_hub` leaves out, too."""

NOT_OPENED = "--push_to_hub: the repository could not be opened"
NOT_PUSHED = "holds the finished run, which could not be pushed"


def push_run(result: RunResult, options: RunOptions) -> None:
    """Push the folder of a finished run, in this call or an earlier one, with a card that names the repository.

    `Trainer.push_to_hub` does not serve: it saves the model once more over the finished run's, which a kill would tear,
    and writes a card of its own, which knows no results.

    Raises:
        AlignAttnError: if the Hub cannot be reached or refuses it.
    """
    folder, values = options.output_dir, options.values
    api, token = HfApi(), values["hub_token"]
    name = values["hub_model_id"] or folder.absolute().name
    with hub_errors(NOT_OPENED):
        repo_id = api.create_repo(name, token=token, private=values["hub_private_repo"], exist_ok=True).repo_id
    write_model_card(folder, model_card(result, options, repo_id))
    with hub_errors(f"{folder} {NOT_PUSHED}"):
        api.upload_folder(
            repo_id=repo_id,
            folder_path=folder,
            commit_message="End of training",
            token=token,
            ignore_patterns=LEFT_OUT,
            revision=values["hub_revision"],
        )


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn what the Hub's client raises into one line that begins with `what`.

    Raises:
        AlignAttnError: in its place.
    """
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
