"""Log every use of the network: one line that names the host."""

import socket
import sys
from collections.abc import Collection
from functools import cache
from urllib.parse import urlsplit
from urllib.request import getproxies

from huggingface_hub import constants, is_offline_mode

LOCAL_REPORTERS = frozenset({"tensorboard", "dvclive"})
"""Values of `--report_to` that only write local files."""


def log_reports(reporters: str | Collection[str] | None) -> None:
    """Log which services receive the losses and options of a run.

    Args:
        reporters: as transformers resolves `--report_to`; `LOCAL_REPORTERS` are not logged.
    """
    if services := sorted(set(reporters or ()) - LOCAL_REPORTERS):
        names = " and ".join(services)
        print(f"sending the losses and options of this run to {names}, as its package is configured", file=sys.stderr)


def is_known(address: str) -> bool:
    """Return whether the host of an address can be resolved, here or by a proxy."""
    # Behind a proxy the host is not resolved here; with `NO_PROXY` alone there is no proxy.
    try:
        return bool(getproxies().keys() - {"no"} or socket.getaddrinfo(urlsplit(address).hostname, None))
    except OSError:
        return False


@cache
def log_download(what: str) -> None:
    """Log once that something is requested from the Hub, unless `HF_HUB_OFFLINE` is set.

    If the Hub's host cannot be resolved, offline mode is switched on for this process.

    Args:
        what: what is requested, for example a model or a split of a data set.
    """
    if is_offline_mode():
        return
    if not is_known(constants.ENDPOINT):
        print(f"{constants.ENDPOINT} is out of reach: {what} must be on this machine already", file=sys.stderr)
        # The client would retry each file six times, for half a minute.
        constants.HF_HUB_OFFLINE = True
        return
    print(f"asking {constants.ENDPOINT} for {what}", file=sys.stderr)


@cache
def log_request(what: str, where: str) -> None:
    """Log once that something is downloaded from a host other than the Hub."""
    print(f"asking {where} for {what}", file=sys.stderr)


@cache
def log_push(what: str, repository: str) -> None:
    """Log once that something is pushed to a repository of the Hub, unless `HF_HUB_OFFLINE` is set."""
    if not is_offline_mode():
        print(f"sending {what} to {repository} at {constants.ENDPOINT}", file=sys.stderr)
