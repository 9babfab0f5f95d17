"""Where runs are run: each in a process of its own, on this machine or on a Ray cluster."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol


class Launcher(Protocol):
    """Runs the runs of prepared folders."""

    def launch(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        """Run all of them, and yield each folder and the exit code of its worker as it ends, in any order.

        Args:
            folders: of `alignattn.commands.reproduce.folder`, prepared, on storage that every machine shares.
        """
        ...
