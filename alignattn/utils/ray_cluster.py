"""A Ray cluster: one at an address, or one that is started here for the purpose."""

import logging
import math
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alignattn.utils.errors import AlignAttnError, install_extra, one_line

SECONDS_TO_ANSWER = 20.0
"""In which a cluster says how it is, Ray's own start included."""

CLIENT_SCHEME, NEWEST = "ray://", "auto"
"""Of addresses that Ray finds or gives up by itself in half a minute."""

GPU_PARTS = 10_000
"""Ray counts any resource in such parts, and refuses what is no whole number of them."""

ROUNDING = 1e-6
"""Of a product that is meant to be whole."""


def import_ray() -> Any:
    """Return Ray, which is an extra."""
    try:
        import ray
    except ImportError as error:
        raise AlignAttnError(f"--launcher ray needs Ray: {install_extra('ray')}") from error
    return ray


@contextmanager
def ray_cluster(address: str | None) -> Iterator[Any]:
    """Yield Ray, connected to a cluster until the context ends.

    Args:
        address: of the cluster, as `ray.init` takes it; None starts one on this machine.
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
    """Return what a worker takes of the cluster: a GPU of its own, or a core where there are none.

    Args:
        ray: connected to the cluster.
        share: of a GPU, which others then have the rest of, down to what Ray counts in: of thirds, three fit. None =
            the whole, if there is one.

    Raises:
        AlignAttnError: if a share of a GPU is asked for, and there are none.
    """
    if ray.cluster_resources().get("GPU"):
        return {"num_gpus": 1 if share is None else math.floor(share * GPU_PARTS + ROUNDING) / GPU_PARTS}
    if share is not None:
        raise AlignAttnError(f"--gpu_share {share}: no machine of this Ray cluster has a GPU: leave it out")
    return {"num_cpus": 1}


def check_answers(address: str) -> None:
    """Refuse an address where no Ray cluster answers `ray status` in time.

    `ray.init` would try it for minutes, and may then end the process; another process can be ended.
    """
    print(f"asking the Ray cluster at {address}", file=sys.stderr)
    command = [sys.executable, "-m", "ray.scripts.scripts", "status", "--address", address]
    try:
        subprocess.run(command, timeout=SECONDS_TO_ANSWER, capture_output=True, check=True)  # noqa: S603  # no shell
    except subprocess.SubprocessError as error:
        raise AlignAttnError(f"no Ray cluster answers at {address}: give another --ray_address") from error
