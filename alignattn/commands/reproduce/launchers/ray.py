"""Runs on a Ray cluster, or on one that is started here for the purpose."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from alignattn.commands.reproduce.folder import record_failure
from alignattn.commands.reproduce.launchers.worker import FAILED, run_in_process
from alignattn.utils.errors import check_installed
from alignattn.utils.ray_cluster import gpu_or_core, ray_cluster


class RayLauncher:
    """Executes each run as a Ray task with a GPU, a share of one, or a core if there is no GPU.

    The folders must be on storage that all machines of the cluster share, and alignattn must be installed on each.

    Args:
        processes: the number of parallel runs; None = as many as the cluster has room for.
        address: the address of the cluster, as for `ray.init`; None starts a cluster on this machine.
        gpu_share: the share of a GPU of each run; None = a whole GPU, if there are any.
    """

    def __init__(self, processes: int | None, address: str | None, gpu_share: float | None = None) -> None:
        # Fail early if the extra is missing.
        check_installed("ray", "ray", "--launcher ray")
        self.processes, self.address, self.gpu_share = processes, address, gpu_share

    def launch(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        """Execute the runs of prepared folders, and yield each with the exit code of its worker as it ends."""
        with ray_cluster(self.address) as ray:
            yield from self._run_all(ray, folders)

    def _run_all(self, ray: Any, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        # Ray must not silently retry a killed run: its folder keeps the reason.
        task = ray.remote(**gpu_or_core(ray, self.gpu_share), max_retries=0)(run_in_process)
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
