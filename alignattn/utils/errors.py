"""The exception for user mistakes, bad rows among them, and the wording of messages."""

import difflib
import errno
import itertools
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ONE_PROCESS_PER_GPU = (
    "does not run in DataParallel: start one process per GPU with torchrun --nproc_per_node, or select one GPU with "
    "CUDA_VISIBLE_DEVICES"
)
"""The end of a message about what needs a process per GPU."""

OUT_OF_MEMORY = "out of memory: lower --per_device_train_batch_size, --per_device_eval_batch_size or --max_length"


class AlignAttnError(ValueError):
    """A mistake that the user can correct: a wrong name, a missing file, an unsupported model.

    The message is one line: what is wrong and what to do. The command line prints it and exits with code 2.
    """

    def __init__(self, message: str) -> None:
        """Convert the message, which may quote user input, to one line of printable characters."""
        # repr escapes unprintable characters.
        line = "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in message)
        super().__init__(line if len(line) <= 1400 else f"{line[:1000]} … {line[-400:]}")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether torch or Python ran out of memory, on a GPU or a CPU."""
    return type(error).__name__ in ("OutOfMemoryError", "MemoryError") or "can't allocate memory" in str(error)


def unknown(what: str, value: Any, choices: Iterable[Any], otherwise: str = "") -> AlignAttnError:
    """Return the error for a value that is not among the choices; `otherwise` says what else may be given."""
    names = [str(choice) for choice in choices]
    # Up to 40 names follow, so the suggestion stands before them.
    hint = did_you_mean(value, names)
    choose = f"{hint} Choose" if hint else ": choose"
    return AlignAttnError(f"unknown {what} {value!r}{choose} one of {', '.join(names)}{otherwise}")


def did_you_mean(word: Any, known: Iterable[str], *, aside: bool = False, least_alike: float = 0.6) -> str:
    """Return a suggestion for the end of a message, or an empty string.

    Args:
        word: the unknown word.
        known: the known words.
        aside: put the suggestion in brackets.
        least_alike: minimum similarity, from 0 to 1.
    """
    # In any case of the letters.
    plain, names = str(word).lower(), {name.lower(): name for name in known}
    close = difflib.get_close_matches(plain, names, n=1, cutoff=least_alike)
    # A word may also be the end of a name, such as weight of alignment_weight.
    close = close or [name for name in names if name.endswith(f"_{plain}")]
    if not close:
        return ""
    question = f"did you mean {names[close[0]]!r}?"
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
    if error.errno in (errno.ENOSPC, errno.EDQUOT) and error.filename is not None:
        free = in_megabytes(free_space(Path(str(error.filename))))
        reason += f" ({free} free): free some space and run the same command again"
    name = str(error.filename or "the disk")
    return f"cannot use {shown(name) if error.errno == errno.ENAMETOOLONG else name}: {reason}"


def free_space(path: Path) -> int:
    """Return the free bytes on the disk of a path, which need not exist."""
    there = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    return shutil.disk_usage(there).free


def in_megabytes(count: float) -> str:
    """Return a number of bytes in megabytes, as text."""
    return f"{count / 1e6:,.1f} MB"


def shown(value: Any) -> str:
    """Return the `repr` of user input, truncated if long."""
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def plural(number: int | str, noun: str) -> str:
    """Return a number and a noun, which is plural unless the number is 1."""
    return f"{number} {noun}" if str(number) == "1" else f"{number} {noun}{'es' if noun.endswith('s') else 's'}"


def listing(names: Sequence[str]) -> str:
    """Return the first names and the number of others."""
    more = len(names) - 10
    return ", ".join(names[:10]) + (f" and {more} more" if more > 0 else "")


MAX_NAMED = 3
"""Bad rows that a refusal names."""


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used.

    Attributes:
        row: its number in the file, from 1; the header of a CSV file does not count.
        problem: what is wrong with it.
        line: the line of the file where it begins, from 1, if the reader knows it.
    """

    row: int
    problem: str
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON files contain them, without an unknown line."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        """Return the line, the row and its problem in words."""
        return f"{'' if self.line is None else f'line {self.line}, '}row {self.row}: {self.problem}"


def list_bad_rows(
    problems: Mapping[int, str], origin: str, num_rows: int, *, skip: bool | None, lines: Sequence[int] = ()
) -> list[BadRow]:
    """Return the bad rows to skip, in order.

    Args:
        problems: the problem of each bad row, by row index from 0.
        origin: the file or split, for the message.
        num_rows: number of rows, good and bad.
        skip: `--skip_bad_rows`; None if the command has no such option.
        lines: the line of the file where each row begins, from 1; empty if it is unknown.

    Raises:
        AlignAttnError: if a row is bad and `skip` is not set, or if every row is bad.
    """
    bad = bad_rows(problems, lines)
    if not bad:
        return []
    if not skip:
        advice = ", or leave bad rows out with --skip_bad_rows" if skip is not None else ""
        raise AlignAttnError(
            f"{origin}, {named_rows(bad)} ({len(bad)} bad of {plural(num_rows, 'row')}); "
            f"correct {'it' if len(bad) == 1 else 'them'}{advice}"
        )
    if len(bad) == num_rows:
        raise AlignAttnError(f"{origin} has no usable row; the first: {bad[0].problem}; correct it")
    return bad


def bad_rows(problems: Mapping[int, str], lines: Sequence[int] = ()) -> list[BadRow]:
    """Return the bad rows in order; arguments as for `list_bad_rows`."""
    ordered = sorted(problems.items())
    return [BadRow(index + 1, problem, lines[index] if len(lines) else None) for index, problem in ordered]


def named_rows(bad: Sequence[BadRow]) -> str:
    """Return the first bad rows in words, and how many more there are."""
    more = f"; and {len(bad) - MAX_NAMED} more" if len(bad) > MAX_NAMED else ""
    return "; ".join(map(str, bad[:MAX_NAMED])) + more


def numbers_without(left_out: Iterable[int]) -> Iterator[int]:
    """Yield 0, 1, 2, … without the skipped numbers, so that the other rows keep theirs."""
    missing = frozenset(left_out)
    return (number for number in itertools.count() if number not in missing)
