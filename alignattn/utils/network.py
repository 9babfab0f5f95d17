"""What leaves this machine is said: no call to the network without a line that tells to where."""

import socket
import sys
from collections.abc import Collection
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, is_offline_mode

LOCAL_REPORTERS = frozenset({"tensorboard", "dvclive"})
"""Values of `--report_to` that write files on this machine."""


def say_reports(reporters: str | Collection[str] | None) -> None:
    """Say that a run's numbers go to services by their own packages, which know where these are.

    Args:
        reporters: as transformers resolves `--report_to`; those that write local files alone are not named.
    """
    if services := sorted(set(reporters or ()) - LOCAL_REPORTERS):
        names = " and ".join(services)
        print(f"sending the losses and options of this run to {names}, as its own package is set up", file=sys.stderr)


@cache
def log_download(what: str) -> None:
    """Say, once for each thing, that the Hub is asked for it, unless the Hub is switched off (`HF_HUB_OFFLINE`).

    Where nobody knows the Hub's address, as without a network, it is switched off for this process.

    Args:
        what: such as a model, or a split of a data set.
    """
    if is_offline_mode():
        return
    if not _is_known(constants.ENDPOINT):
        print(f"{constants.ENDPOINT} is out of reach: {what} must be on this machine already", file=sys.stderr)
        # Its client would try each file six times, half a minute long.
        constants.HF_HUB_OFFLINE = True
        return
    print(f"asking {constants.ENDPOINT} for {what}", file=sys.stderr)


def _is_known(url: str) -> bool:
    """Whether the host of an address has one on the network, as far as can be told: a proxy may know more."""
    if getproxies():
        return True
    try:
        return bool(socket.getaddrinfo(urlsplit(url).hostname, None))
    except OSError:
        return False


@cache
def say_download(what: str, where: str) -> None:
    """Say, once for each thing, that something is downloaded from elsewhere than the Hub.

    Args:
        what: such as a graph, and by which package.
        where: the host that is asked.
    """
    print(f"asking {where} for {what}", file=sys.stderr)


@cache
def say_push(what: str, repository: str) -> None:
    """Say, once for each thing, that it is sent to the Hub, unless the Hub is switched off (`HF_HUB_OFFLINE`).

    Args:
        what: such as the folder of a run.
        repository: where it goes.
    """
    if not is_offline_mode():
        print(f"sending {what} to {repository} at {constants.ENDPOINT}", file=sys.stderr)
