"""The exception for user mistakes, and the wording of messages."""

import difflib
import errno
import shutil
from collections.abc import Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

MEGABYTE = 1e6

FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers of a full disk or an exceeded quota."""

LEAST_ALIKE = 0.6
"""Similarity, from 0 to 1, above which difflib suggests a word."""

_LISTED_NAMES = 10
_SHOWN_CHARACTERS = 40
_MESSAGE_START, _MESSAGE_END = 1000, 400
"""Characters kept from the start and the end of a long message."""


ONE_PROCESS_PER_GPU = (
    "does not run in DataParallel: start one process per GPU with torchrun --nproc_per_node, or select one GPU with "
    "CUDA_VISIBLE_DEVICES"
)
"""The end of a message about what needs a process per GPU."""

OUT_OF_MEMORY = "out of memory: lower --per_device_train_batch_size, --per_device_eval_batch_size or --max_length"
_OF_MEMORY = ("OutOfMemoryError", "MemoryError")
_OF_THE_CPU = "can't allocate memory"


class AlignAttnError(ValueError):
    """A mistake that the user can correct: a wrong name, a missing file, an unsupported model.

    The message is one line: what is wrong and what to do. The command line prints it and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        """Convert the message, which may quote user input, to one line of printable characters."""
        super().__init__(_printable_line(message))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch or Python ran out of memory, on a GPU or a CPU."""
    return type(error).__name__ in _OF_MEMORY or _OF_THE_CPU in str(error)


def unknown(what: str, value: Any, choices: Iterable[Any]) -> AlignAttnError:
    """Return the error for a value that is not among the choices."""
    known = [str(choice) for choice in choices]
    return AlignAttnError(
        f"unknown {what} {value!r}: choose one of {', '.join(known)}{did_you_mean(value, known, aside=True)}"
    )


def did_you_mean(word: Any, known: Iterable[str], *, aside: bool = False, least_alike: float = LEAST_ALIKE) -> str:
    """Return a suggestion for the end of a message, or an empty string.

    Args:
        word: the unknown word.
        known: the known words.
        aside: put the suggestion in brackets.
        least_alike: minimum similarity, from 0 to 1.
    """
    close = difflib.get_close_matches(str(word), list(known), n=1, cutoff=least_alike)
    if not close:
        return ""
    question = f"did you mean {close[0]!r}?"
    return f" ({question})" if aside else f": {question}"


def one_line(error: BaseException) -> str:
    """Return the message of any error on one line."""
    return " ".join(str(error).split())


def install_extra(extra: str) -> str:
    """Return how to install an extra of this package, for the end of a message."""
    return f'pip install "alignattn[{extra}]"'


def check_installed(module: str, extra: str, needed_by: str) -> None:
    """Check that the package of an extra is installed.

    Args:
        module: the module of the package.
        extra: the extra of alignattn that installs it.
        needed_by: what needs it, for the message.

    Raises:
        AlignAttnError: if it is not installed.
    """
    if find_spec(module) is None:
        raise AlignAttnError(f"{needed_by} needs {module}, which is not installed: {install_extra(extra)}")


def reason_of(error: OSError) -> str:
    """Return the reason of a system error on one line, for example a full disk or a missing permission."""
    reason = error.strerror or one_line(error)
    if error.errno in FULL and error.filename is not None:
        free = in_megabytes(free_space(Path(str(error.filename))))
        reason += f" ({free} free): free some space and run the same command again"
    return f"cannot use {error.filename or 'the disk'}: {reason}"


def free_space(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def in_megabytes(count: float) -> str:
    """Return a number of bytes in megabytes, as text."""
    return f"{count / MEGABYTE:,.1f} MB"


def shown(value: Any) -> str:
    """Return the `repr` of user input, truncated if long."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def plural(number: int | str, noun: str) -> str:
    """Return a number and a noun, which is plural unless the number is 1."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def listing(names: Sequence[str]) -> str:
    """Return the first names and the number of others."""
    more = len(names) - _LISTED_NAMES
    return ", ".join(names[:_LISTED_NAMES]) + (f" and {more} more" if more > 0 else "")


def _printable_line(text: str) -> str:
    """A text without line breaks and control characters, shortened in the middle if long."""
    # repr escapes unprintable characters.
    line = text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    is_long = len(line) > _MESSAGE_START + _MESSAGE_END
    return f"{line[:_MESSAGE_START]} … {line[-_MESSAGE_END:]}" if is_long else line
