"""A Ray cluster: an existing one, or one started on this machine."""

import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alignattn.utils.errors import AlignAttnError, one_line

SECONDS_TO_ANSWER = 20.0
"""Time limit of `ray status`, in seconds, including its start."""

GPU_PARTS = 10_000
"""Ray counts shares of a resource in units of 1 / GPU_PARTS."""


@contextmanager
def ray_cluster(address: str | None) -> Iterator[Any]:
    """Yield Ray, which is installed, connected to a cluster until the context ends.

    Args:
        address: the address, as for `ray.init`; None starts a cluster on this machine.
    """
    import ray

    # Ray resolves the other addresses by itself, or rejects them within half a minute. At this one `ray.init` would try
    # for minutes and may then end this process, so a subprocess asks.
    if address is not None and address != "auto" and not address.startswith("ray://"):
        print(f"asking the Ray cluster at {address}", file=sys.stderr)
        command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
        try:
            subprocess.run(command, timeout=SECONDS_TO_ANSWER, capture_output=True, check=True)  # noqa: S603  # no shell
        except subprocess.SubprocessError as error:
            raise AlignAttnError(f"no Ray cluster answers at {address}: give another --ray_address") from error
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
        # A product that should be a whole number may be below it by rounding.
        return {"num_gpus": 1 if share is None else math.floor(share * GPU_PARTS + 1e-6) / GPU_PARTS}
    if share is not None:
        raise AlignAttnError(f"--gpu_share {share}: no machine of this Ray cluster has a GPU: leave it out")
    return {"num_cpus": 1}
