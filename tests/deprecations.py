"""A pytest plugin, `-p deprecations`: a deprecation warning that the code of alignattn causes is an error.

A library warns in its own lines and attributes the warning by `stacklevel`. The cause is the caller of the library,
the nearest frame of another package. Python attributes warnings of C code, such as those of numpy, to the calling line.
transformers and datasets log some deprecations instead: the first record of each message is an error for any caller.
"""

import logging
import sys
import warnings
from types import FrameType
from typing import Any

OWN_PACKAGE = "alignattn"
KINDS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
COMPILER = "torch._dynamo"
"""Its frames between caller and library say nothing about the cause."""
WRAPPERS = ("contextlib", "functools", "torch.utils._contextlib", "typing_extensions")
"""Modules whose frames are between a caller and a decorated function."""


def pytest_configure(config: Any) -> None:
    for kind in KINDS:
        config.addinivalue_line("filterwarnings", rf"error::{kind.__name__}:{OWN_PACKAGE}\.")
    for library in ("transformers", "datasets"):
        logging.getLogger(library).addHandler(Refusing())
    warn = warnings.warn

    def refusing_warn(message: Any, category: Any = None, stacklevel: int = 1, *rest: Any, **named: Any) -> None:
        kind = type(message) if isinstance(message, Warning) else category or UserWarning
        if issubclass(kind, KINDS) and causing_package(sys._getframe(1)) == OWN_PACKAGE:
            raise kind(str(message))
        warn(message, category, stacklevel + 1, *rest, **named)

    warnings.warn = refusing_warn


def causing_package(frame: FrameType | None) -> str:
    """Return the package that called the package of a frame that warns."""
    library = None
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(COMPILER):
            return ""
        if name not in WRAPPERS:
            package = name.partition(".")[0]
            if library is None:
                library = package
            elif package != library:
                return package
        frame = frame.f_back
    return ""


class Refusing(logging.Handler):
    """Raises if a library logs a deprecation."""

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            raise DeprecationWarning(record.getMessage())
