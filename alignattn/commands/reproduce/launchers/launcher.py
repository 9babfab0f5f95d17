"""What a launcher is, and which there are."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from alignattn.commands.reproduce import LAUNCHERS
from alignattn.support.errors import AlignAttnError


class Launcher(Protocol):
    """Runs the runs of prepared folders."""

    def launch(self, folders: Sequence[Path]) -> Iterator[tuple[Path, int]]:
        """Run all of them, and yield each folder and the exit code of its worker as it ends, in any order.

        Args:
            folders: of `alignattn.commands.reproduce.folder`, prepared, on storage that every machine shares.
        """
        ...


def make_launcher(name: str, *, processes: int | None = None, ray_address: str | None = None) -> Launcher:
    """Return a launcher.

    Args:
        name: one of `LAUNCHERS`.
        processes: how many runs at once on this machine; one for each GPU, or one, where None.
        ray_address: of a Ray cluster; an embedded one is started where None.

    Raises:
        AlignAttnError: if there is none of that name, a number is out of range, an option is another launcher's, or its
            package is missing.
    """
    if processes is not None and processes < 1:
        raise AlignAttnError(f"--processes {processes} must be at least 1")
    if name == "local":
        if ray_address is not None:
            raise AlignAttnError("--ray_address is for --launcher ray: leave it out, or choose that one")
        from alignattn.commands.reproduce.launchers.local import LocalLauncher

        return LocalLauncher(processes)
    if name == "ray":
        from alignattn.commands.reproduce.launchers.ray import RayLauncher

        return RayLauncher(processes, ray_address)
    raise AlignAttnError(f"--launcher {name!r} is unknown: choose one of {', '.join(LAUNCHERS)}")
