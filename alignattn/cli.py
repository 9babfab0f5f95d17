"""The entry point of `alignattn`: runs a command, and turns the user's errors into a message and an exit code."""

import os
import select
import shutil
import sys
import textwrap
from collections.abc import Sequence

from alignattn import __version__
from alignattn.commands import COMMANDS, commands_with_option, get_command
from alignattn.utils.errors import OUT_OF_MEMORY, AlignAttnError, is_out_of_memory, listing, reason_of
from alignattn.utils.options import UnknownOptionError

HELP_WIDTH = 80
"""Width of the help in characters if the terminal's is unknown."""

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
"""Exit code after Ctrl-C: 128 + the number of SIGINT."""
UNREAD_EXIT_CODE = 141
"""Exit code when the reader of the output has closed the pipe, as in `| head`: 128 + the number of SIGPIPE."""

STANDARD_STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}
"""File descriptors by the name of the stream."""


def overview() -> str:
    """Return the commands, one per line."""
    start = max(map(len, COMMANDS)) + len("    ")
    width = max(shutil.get_terminal_size((HELP_WIDTH, 0)).columns, 2 * start)
    lines = (
        textwrap.fill(
            get_command(name).help, width, initial_indent=f"  {name}".ljust(start), subsequent_indent=" " * start
        )
        for name in COMMANDS
    )
    commands = "\n".join(lines)
    return (
        f"usage: alignattn COMMAND [options]\n\ncommands:\n{commands}\n\n"
        "`alignattn COMMAND --help` lists the options of a command."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0; 2, with a one-line message, for an error that the user can fix.

    After Ctrl-C it prints the message of the `KeyboardInterrupt`, if any, and returns 130; for a closed pipe, 141.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    # The image classes of transformers warn, one line each, that torchvision is missing; no text model needs it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    # Libraries draw a bar per file that they write and per pass over rows, also in logs; ours and those of downloads
    # state themselves where they are drawn.
    os.environ.setdefault("TQDM_DISABLE", "1")
    try:
        if words[:1] == ["--version"]:
            print(f"alignattn {__version__}", flush=True)
            return 0
        if not words or words[0] in ("-h", "--help"):
            print(overview(), flush=True)
            return 0 if words else USER_ERROR_EXIT_CODE
        command = get_command(words[0])
        command.execute(command.parse(words[1:]))
        if sys.stdout is not None:
            # Flush here, where an error can still be reported.
            sys.stdout.flush()
    except AlignAttnError as error:
        print(f"alignattn: {error}{_found_elsewhere(error)}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except OSError as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            return UNREAD_EXIT_CODE
        # A full disk or a missing write permission: not a bug, and the user can fix it.
        if error.filename is None and error.strerror is None:
            raise
        print(f"alignattn: {reason_of(error)}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        print(f"alignattn: {OUT_OF_MEMORY}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except KeyboardInterrupt as stop:
        print(f"alignattn: stopped; {str(stop) or 'written files are kept'}", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0


def _found_elsewhere(error: AlignAttnError) -> str:
    """Return which other commands have the unknown options, to append to the message; empty if none has."""
    if not isinstance(error, UnknownOptionError):
        return ""
    takers = {name: commands_with_option(name) for name in error.names}
    return "".join(f"; --{name} is an option of {listing(there)}" for name, there in takers.items() if there)


def _is_unread() -> bool:
    """Whether standard output is a pipe that nobody reads."""
    poll = select.poll()
    poll.register(STANDARD_STREAMS["stdout"], 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _to_nowhere(stream: str) -> None:
    """Redirect a standard stream to the null device, so that flushing its buffer at exit does not fail."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != STANDARD_STREAMS[stream]:
        os.dup2(nowhere, STANDARD_STREAMS[stream])
        os.close(nowhere)


def _open_closed_streams() -> None:
    """Open the standard streams that the caller closed: otherwise the next opened file gets a stream's descriptor."""
    for stream in STANDARD_STREAMS:
        if getattr(sys, stream) is None:
            _to_nowhere(stream)
            mode = "r" if stream == "stdin" else "w"
            setattr(sys, stream, os.fdopen(STANDARD_STREAMS[stream], mode, closefd=False))


def entry_point() -> None:
    """Run as the installed command."""
    _open_closed_streams()
    code = main()
    try:
        sys.stdout.flush()
    except OSError:
        _to_nowhere("stdout")
    sys.exit(code)


if __name__ == "__main__":
    entry_point()
