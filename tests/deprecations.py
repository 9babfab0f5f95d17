"""A plugin of pytest, `-p deprecations`: a deprecation that alignattn's own code causes is an error.

A library warns from its own lines and, by `stacklevel`, blames whom it likes. Here the cause is who called the library:
the nearest frame of another package. What C code warns about, as numpy's, Python attributes to the line that called it.
transformers and datasets log some of theirs instead: the first of each message is an error, whoever called.
"""

import logging
import sys
import warnings
from types import FrameType
from typing import Any

OWN_PACKAGE = "alignattn"
KINDS = (DeprecationWarning, PendingDeprecationWarning, FutureWarning)
COMPILER = "torch._dynamo"
"""It runs what it compiles in its own ways, and calls what nobody else does."""
WRAPPERS = ("contextlib", "functools", "torch.utils._contextlib", "typing_extensions")
"""Modules whose frames stand between who calls a function and the function that is decorated."""


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
    """Return the package that called the one whose frame warns."""
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
    """Raises where a library logs that something is deprecated."""

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            raise DeprecationWarning(record.getMessage())
