"""`python WORDS` in a process forked from one that has already imported the libraries of runs, which takes seconds.

A test of how a process starts (its imports, the environment that it reads, the files in its home) needs a process that
really starts, by `subprocess`.
"""

import gc
import multiprocessing
import os
import runpy
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

TWO_PROCESSES = [
    *("torch.distributed.run", "--nproc_per_node", "2"),
    *("--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"),
]
"""A launcher of two processes."""

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(
    [
        *("alignattn.finetuning.run", "alignattn.finetuning.predictor", "alignattn.commands.reproduce.command"),
        "transformers.models.bert.modeling_bert",
    ]
)


class Python:
    """`python WORDS`, started as `subprocess.Popen` starts it.

    Args:
        words: a script, or `-m` and a module, and its arguments.
        environment: variables in addition to those of this process.
        leads: whether it leads a process group, which is killed by its id.
        first: called in the process before anything else.
    """

    def __init__(
        self,
        words: Sequence[object],
        *,
        environment: Mapping[str, str] | None = None,
        leads: bool = False,
        first: Callable[[], None] | None = None,
    ) -> None:
        self.words = [str(word) for word in words]
        folder = Path(tempfile.mkdtemp(dir=os.environ["ALIGNATTN_TESTS_HOME"]))
        self._out, self._error = folder / "out.txt", folder / "error.txt"
        variables = os.environ | (environment or {})
        given = (self.words, variables, self._out, self._error, leads, first)
        self._process = _CONTEXT.Process(target=_child, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        """Return its exit code; None while it runs."""
        return self._process.exitcode

    def printed(self) -> str:
        """Return what it has printed so far."""
        return self._out.read_text() if self._out.exists() else ""

    def finish(self) -> subprocess.CompletedProcess[str]:
        """Wait for its end, however long it takes: the limit of `make test` ends a test that hangs."""
        self._process.join()
        assert self._process.exitcode is not None
        error = self._error.read_text() if self._error.exists() else ""
        return subprocess.CompletedProcess(self.words, self._process.exitcode, self.printed(), error)


def run_python(*words: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` to its end; the options are those of `Python`."""
    return Python(words, **options).finish()


def run_two_processes(*words: object) -> subprocess.CompletedProcess[str]:
    """Run `python WORDS` in two processes of one group on the CPU, with the variables that `torchrun` sets.

    Returns the first process, after both ended.
    """
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    group = {"WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": port, "CUDA_VISIBLE_DEVICES": ""}
    both = [Python(words, environment=group | {"RANK": rank, "LOCAL_RANK": rank}) for rank in "01"]
    first, second = (process.finish() for process in both)
    assert first.returncode == second.returncode, first.stderr + second.stderr
    return first


def launched(launcher: Sequence[str], words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run `alignattn WORDS` on the CPU by a launcher, a module with its options, which starts processes itself."""
    root = str(Path(__file__).resolve().parent.parent)
    environment = {"PYTHONPATH": root, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return run_python("-m", *launcher, "-m", "alignattn", *words, environment=environment)


def _child(
    words: Sequence[str],
    environment: Mapping[str, str],
    out: Path,
    error: Path,
    leads: bool,
    first: Callable[[], None] | None,
) -> None:
    from alignattn.commands.reproduce.launchers import worker

    # The garbage collector touches the objects that it examines, which copies the pages shared with the forked process.
    gc.freeze()
    if leads:
        os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for path, descriptor in ((out, 1), (error, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), descriptor)
    # Runs of a table are forked from this process, too, which has imported the libraries.
    vars(worker)["subprocess"] = SimpleNamespace(run=_run_forked, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    if first is not None:
        first()
    _run(words)


def _run(words: Sequence[str]) -> None:
    import torch

    torch.set_num_threads(1)
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(words)
        runpy.run_path(words[0], run_name="__main__")


def _run_forked(
    command: Sequence[str], *, stdout: IO[str], env: Mapping[str, str], **_: Any
) -> subprocess.CompletedProcess[str]:
    """Do as `subprocess.run` does with a Python that prints everything to one file."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.environ.update(env)
            os.dup2(stdout.fileno(), 1)
            os.dup2(stdout.fileno(), 2)
            _run(command[1:])
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return subprocess.CompletedProcess(list(command), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
