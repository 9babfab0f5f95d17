"""The `alignattn` command: finds the command that is asked for, and is the one place where mistakes are caught."""

import os
import sys
from collections.abc import Sequence

from alignattn import __version__
from alignattn.commands import COMMANDS, get_command
from alignattn.support.errors import AlignAttnError, reason_of

USER_ERROR_EXIT_CODE = 2
INTERRUPTED_EXIT_CODE = 130
"""Of a shell's command that Ctrl-C ended: 128 and the number of SIGINT."""


def overview() -> str:
    """Return the commands, one a line."""
    lines = (f"  {name:<13} {get_command(name).help}" for name in COMMANDS)
    return "\n".join(
        [
            "usage: alignattn COMMAND [options]\n\ncommands:",
            *lines,
            "\n`alignattn COMMAND --help` lists the options of a command.",
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code: 0, 2 with one line for a mistake a user can mend, 130 after Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words[:1] == ["--version"]:
        print(f"alignattn {__version__}")
        return 0
    if not words or words[0] in ("-h", "--help"):
        print(overview())
        return 0 if words else USER_ERROR_EXIT_CODE
    # The image classes of transformers warn, one line each, that torchvision is missing; no text model needs it.
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        command, rest = get_command(words[0]).select(words[1:])
        command.execute(command.parse(rest))
    except AlignAttnError as error:
        print(f"alignattn: {error}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except OSError as error:
        # A full disk, a folder that may not be written: the machine's doing, and the user's to mend.
        if error.filename is None and error.strerror is None:
            raise
        print(f"alignattn: {reason_of(error)}", file=sys.stderr)
        return USER_ERROR_EXIT_CODE
    except KeyboardInterrupt:
        print("alignattn: stopped; what is written stays", file=sys.stderr)
        return INTERRUPTED_EXIT_CODE
    return 0


def entry_point() -> None:
    """Run as the installed command."""
    sys.exit(main())


if __name__ == "__main__":
    entry_point()
