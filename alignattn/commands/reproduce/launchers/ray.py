"""Runs on a Ray cluster, or on one that is started here for the purpose."""

import re
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alignattn.commands.reproduce.folder import record_failure
from alignattn.commands.reproduce.launchers.worker import FAILED, run_in_process
from alignattn.support.errors import AlignAttnError, install_extra, one_line

CLUSTER_ADDRESS = re.compile(r"(?:ray://)?(?P<host>.+):(?P<port>\d+)")
SECONDS_TO_ANSWER = 10.0


def _check_listening(address: str | None) -> None:
    """Refuse an address at which nobody listens: Ray would try it for minutes, and may then end the process."""
    parts = CLUSTER_ADDRESS.fullmatch(address or "")
    if parts is None:
        return
    try:
        socket.create_connection((parts["host"].strip("[]"), int(parts["port"])), SECONDS_TO_ANSWER).close()
    except (OSError, OverflowError, UnicodeError) as error:
        raise AlignAttnError(f"no Ray cluster at {address}: {one_line(error)}: give another --ray_address") from error


class RayLauncher:
    """Runs each run as a Ray task with a GPU of its own, or with a core where the cluster has no GPU.

    The folders must lie on storage that all machines of the cluster share, and alignattn be installed on each.

    Args:
        processes: how many at once; as many as the cluster has room for where None.
        address: of the cluster, as `ray.init` takes it; None starts one in this process's machine.
    """

    def __init__(self, processes: int | None, address: str | None) -> None:
        try:
            import ray
        except ImportError as error:
            raise AlignAttnError(f"--launcher ray needs Ray: {install_extra('ray')}") from error
        self.ray, self.processes, self.address = ray, processes, address

    def launch(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        """Run the runs of prepared folders, and yield each with the exit code of its worker as it ends."""
        ray = self.ray
        _check_listening(self.address)
        try:
            ray.init(address=self.address or "local", log_to_driver=False, include_dashboard=False)
        except (ConnectionError, ValueError, RuntimeError) as error:
            raise AlignAttnError(f"no Ray cluster at {self.address}: {one_line(error)}") from error
        try:
            yield from self._run_all(folders)
        finally:
            ray.shutdown()

    def _run_all(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        ray = self.ray
        resources = {"num_gpus": 1} if ray.cluster_resources().get("GPU") else {"num_cpus": 1}
        # A run that was killed is not to be tried again behind our back: the folder keeps the reason.
        task = ray.remote(**resources, max_retries=0)(run_in_process)
        waiting = list(folders)
        running: dict[Any, Path] = {}
        while waiting or running:
            while waiting and (self.processes is None or len(running) < self.processes):
                folder = waiting.pop(0)
                running[task.remote(folder.resolve(), {})] = folder
            (finished,), _ = ray.wait(list(running), num_returns=1)
            folder = running.pop(finished)
            try:
                code = ray.get(finished)
            except ray.exceptions.RayError as error:
                record_failure(folder, f"the Ray task died: {error}")
                code = FAILED
            yield folder, code
