"""Runs on this machine: one after another, or one for each GPU."""

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from queue import SimpleQueue

import torch

from alignattn.commands.reproduce.launchers.worker import run_in_process

THREADS_VARIABLE = "OMP_NUM_THREADS"
DEVICES_VARIABLE = "CUDA_VISIBLE_DEVICES"


class LocalLauncher:
    """Executes runs in parallel, each on one GPU if there are any.

    Args:
        processes: the number of parallel runs, at least one; None = one per GPU, or one without a GPU.
    """

    def __init__(self, processes: int | None) -> None:
        gpus = torch.cuda.device_count()
        at_once = processes or gpus or 1
        self.places = [_place(index, gpus, at_once) for index in range(at_once)]

    def launch(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        """Execute the runs of prepared folders, and yield each with the exit code of its worker as it ends."""
        free: SimpleQueue[Mapping[str, str]] = SimpleQueue()
        for place in self.places:
            free.put(place)

        def run(folder: Path) -> int:
            place = free.get()
            try:
                return run_in_process(folder, place)
            finally:
                free.put(place)

        with ThreadPoolExecutor(len(self.places)) as pool:
            runs = {pool.submit(run, folder): folder for folder in folders}
            try:
                for finished in as_completed(runs):
                    yield runs[finished], finished.result()
            finally:
                # If the caller stops, as by an interrupt, no further run starts.
                pool.shutdown(wait=True, cancel_futures=True)


def _place(index: int, gpus: int, processes: int) -> dict[str, str]:
    """Return the environment variables of one of the places: its GPU, or its share of the cores."""
    if gpus:
        visible = os.environ.get(DEVICES_VARIABLE, ",".join(map(str, range(gpus)))).split(",")
        return {DEVICES_VARIABLE: visible[index % gpus]}
    if processes > 1 and THREADS_VARIABLE not in os.environ:
        return {THREADS_VARIABLE: str(max(1, (os.cpu_count() or 1) // processes))}
    return {}
