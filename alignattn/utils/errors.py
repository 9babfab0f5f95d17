"""The one exception for what a user can mend."""

import difflib
import errno
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

MEGABYTE = 1e6

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""What the system says of a full disk, or of a user's share of it."""

LEAST_ALIKE = 0.6
"""How like two words are, of 0 to 1, where the one may be meant by the other: what difflib takes."""

_LISTED_NAMES = 10
_SHOWN_CHARACTERS = 40
_MESSAGE_START, _MESSAGE_END = 1000, 400
"""Characters of a long message that are kept: what is wrong stands first, what to do last."""


OUT_OF_MEMORY = (
    "out of memory: fewer rows at a time (--per_device_train_batch_size, --per_device_eval_batch_size) or shorter ones "
    "(--max_length) take less"
)
_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_OF_THE_CPU = "can't allocate memory"


class AlignAttnError(ValueError):
    """A mistake a user can mend: a wrong name, a missing file, an unsupported model.

    The message is one line that says what is wrong and what to do. The command line catches this class
    once, prints that line and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        """Take a message, which may quote whatever a user gave: it becomes one line, of printable characters."""
        super().__init__(_printable_line(message))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that a device has no memory left: torch's own, or of its allocator on a CPU."""
    return type(error).__name__ in _OF_MEMORY or _OF_THE_CPU in str(error)


def unknown(what: str, value: Any, choices: Iterable[Any]) -> AlignAttnError:
    """Return the error for a value that is none of the choices."""
    known = [str(choice) for choice in choices]
    return AlignAttnError(
        f"unknown {what} {value!r}: choose one of {', '.join(known)}{did_you_mean(value, known, aside=True)}"
    )


def did_you_mean(word: Any, known: Iterable[str], *, aside: bool = False, least_alike: float = LEAST_ALIKE) -> str:
    """Return a question whether the known word most like another was meant, for the end of a message; or nothing.

    Args:
        word: the unknown one.
        known: the words that there are.
        aside: whether it stands in brackets, as after a list of what there is.
        least_alike: how like the word must be, of 0 to 1.
    """
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=least_alike)
    if not close:
        return ""
    question = f"did you mean {close[0]!r}?"
    return f" ({question})" if aside else f": {question}"


def one_line(error: BaseException) -> str:
    """Return the message of an error of whatever origin on one line."""
    return " ".join(str(error).split())


def install_extra(extra: str) -> str:
    """Return how an extra of this package is installed, for the end of a message."""
    return f'in a clone of alignattn run: pip install -c constraints.txt -e ".[{extra}]"'


def reason_of(error: OSError) -> str:
    """Return what the system refused, on one line: a full disk, a folder that may not be written."""
    reason = error.strerror or one_line(error)
    if error.errno in FULL and error.filename is not None:
        free = in_megabytes(free_space(Path(str(error.filename))))
        reason += f" ({free} are free): make room, and give the same command again"
    return f"cannot use {error.filename or 'the disk'}: {reason}"


def free_space(path: Path) -> int:
    """Return how many bytes the disk of a path takes; the path need not be there."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def in_megabytes(count: float) -> str:
    """Return a number of bytes in words."""
    return f"{count / MEGABYTE:,.1f} MB"


def shown(value: Any) -> str:
    """Return what a user gave as Python writes it, cut where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def listing(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def _printable_line(text: str) -> str:
    """A text without what breaks a line or commands a terminal, cut in its middle where it is long."""
    # Python writes what is not printable in a text as an escape, and leaves the rest.
    line = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    is_long = len(line) > _MESSAGE_START + _MESSAGE_END
    return f"{line[:_MESSAGE_START]} … {line[-_MESSAGE_END:]}" if is_long else line
