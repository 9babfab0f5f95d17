"""A Ray cluster: one at an address, or one that is started here for the purpose."""

import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from alignattn.utils.errors import AlignAttnError, install_extra, one_line

CLUSTER_ADDRESS = re.compile(r"(?:ray://)?(?P<host>.+):(?P<port>\d+)")
SECONDS_TO_ANSWER = 10.0
MOMENT_SECONDS = 0.001

HTTP2_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])
"""Of a client of gRPC, which Ray speaks: the preface and empty settings (RFC 9113, sections 3.4 and 6.5)."""

FRAME_HEADER_BYTES, FRAME_TYPE, SETTINGS = 9, 3, 4
"""Of the answer: the settings of a server, whose frame has this number at this place of its header."""

GPU_PARTS = 10_000
"""Ray counts any resource in such parts, and refuses what is no whole number of them."""

ROUNDING = 1e-6
"""Of a product that is meant to be whole."""

ENCRYPTED_VARIABLE = "RAY_USE_TLS"
"""Where it is 1, Ray answers nobody who does not encrypt."""


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
    _check_listening(address)
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


def _check_listening(address: str | None) -> None:
    """Refuse an address at which no gRPC answers: Ray would try it for minutes, and may then end the process."""
    parts = CLUSTER_ADDRESS.fullmatch(address or "")
    if parts is None:
        return
    print(f"asking the Ray cluster at {address}", file=sys.stderr)
    try:
        place = (parts["host"].strip("[]"), int(parts["port"]))
        with socket.create_connection(place, SECONDS_TO_ANSWER) as connection:
            answers = os.environ.get(ENCRYPTED_VARIABLE) == "1" or _speaks_http2(connection)
    except (OSError, OverflowError, UnicodeError) as error:
        raise AlignAttnError(f"no Ray cluster at {address}: {one_line(error)}: give another --ray_address") from error
    if not answers:
        raise AlignAttnError(f"no Ray cluster at {address}: who listens there is none: give another --ray_address")


def _speaks_http2(connection: socket.socket) -> bool:
    connection.sendall(HTTP2_GREETING)
    answer, until = b"", time.monotonic() + SECONDS_TO_ANSWER
    while len(answer) < FRAME_HEADER_BYTES:
        connection.settimeout(max(until - time.monotonic(), MOMENT_SECONDS))
        part = connection.recv(FRAME_HEADER_BYTES - len(answer))
        if not part:
            return False
        answer += part
    return answer[FRAME_TYPE] == SETTINGS
