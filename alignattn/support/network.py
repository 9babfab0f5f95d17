"""What leaves this machine is said: no call to the network without a line that tells to where."""

import sys
from functools import cache

from huggingface_hub import constants, is_offline_mode


@cache
def say_hub(what: str) -> None:
    """Say, once for each thing, that the Hub is asked for it, unless the Hub is switched off (`HF_HUB_OFFLINE`).

    Args:
        what: such as a model, or a split of a data set.
    """
    if not is_offline_mode():
        print(f"asking {constants.ENDPOINT} for {what}", file=sys.stderr)


@cache
def say_push(what: str, repository: str) -> None:
    """Say, once for each thing, that it is sent to the Hub, unless the Hub is switched off (`HF_HUB_OFFLINE`).

    Args:
        what: such as the folder of a run.
        repository: where it goes.
    """
    if not is_offline_mode():
        print(f"sending {what} to {repository} at {constants.ENDPOINT}", file=sys.stderr)
