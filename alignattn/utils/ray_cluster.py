"""A Ray cluster: an existing one, or one started on this machine."""

import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alignattn.utils.errors import AlignAttnError, check_installed, one_line

SECONDS_TO_ANSWER = 20.0
"""Time limit of `ray status`, in seconds, including its start."""

CLIENT_SCHEME, NEWEST = "ray://", "auto"
"""Addresses that Ray resolves by itself, or rejects within half a minute."""

GPU_PARTS = 10_000
"""Ray counts shares of a resource in units of 1 / GPU_PARTS."""

ROUNDING = 1e-6
"""Tolerance for a product that should be a whole number."""


def import_ray() -> Any:
    """Import Ray, an extra."""
    check_installed("ray", "ray", "--launcher ray")
    import ray

    return ray


@contextmanager
def ray_cluster(address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster until the context ends.

    Args:
        address: the address, as for `ray.init`; None starts a cluster on this machine.
    """
    ray = import_ray()
    if address is not None and address != NEWEST and not address.startswith(CLIENT_SCHEME):
        check_answers(address)
    try:
        ray.init(address=address or "local", log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise AlignAttnError(f"no Ray cluster at {address}: {one_line(error)}") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def gpu_or_core(ray: Any, share: float | None = None) -> dict[str, float]:
    """Return the resources of a worker: a GPU or a share of one, or a core if the cluster has no GPU.

    Args:
        ray: Ray, connected to the cluster.
        share: share of a GPU, rounded down to Ray's precision; None means a whole GPU.

    Raises:
        AlignAttnError: if a share is given but the cluster has no GPU.
    """
    if ray.cluster_resources().get("GPU"):
        return {"num_gpus": 1 if share is None else math.floor(share * GPU_PARTS + ROUNDING) / GPU_PARTS}
    if share is not None:
        raise AlignAttnError(f"--gpu_share {share}: no machine of this Ray cluster has a GPU: leave it out")
    return {"num_cpus": 1}


def check_answers(address: str) -> None:
    """Refuse an address where no Ray cluster answers `ray status` in time.

    `ray.init` would try for minutes and may then end this process, so a subprocess asks.
    """
    print(f"asking the Ray cluster at {address}", file=sys.stderr)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        subprocess.run(command, timeout=SECONDS_TO_ANSWER, capture_output=True, check=True)  # noqa: S603  # no shell
    except subprocess.SubprocessError as error:
        raise AlignAttnError(f"no Ray cluster answers at {address}: give another --ray_address") from error
