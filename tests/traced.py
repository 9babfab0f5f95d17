"""Runs lines of Python and writes which functions of the package they call: `python traced.py OUT CODE`.

A test starts it as a process of its own, because what an earlier test called stays in caches.
"""

import json
import sys
import threading
from importlib import import_module
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

called: set[tuple[str, int, str]] = set()
LIBRARIES = ("datasets", "evaluate", "matplotlib.figure", "sklearn.metrics", "torch._dynamo", "transformers.trainer")
"""Imported before anything is noted: each of their calls would be noted, too, which takes longer than the command."""
PACKAGE = f"{Path(__file__).resolve().parents[1] / 'alignattn'}/"


def note(frame: FrameType, event: str, _: Any) -> None:
    """Note a called function of the package; lambdas, generator expressions, class bodies and templates are none."""
    code = frame.f_code
    is_function = event == "call" and code.co_flags & CO_OPTIMIZED and not code.co_name.startswith("<")
    if is_function and code.co_filename.startswith(PACKAGE) and code.co_filename.endswith(".py"):
        called.add((code.co_filename.removeprefix(PACKAGE), code.co_firstlineno, code.co_name))


if __name__ == "__main__":
    for library in LIBRARIES:
        import_module(library)
    threading.setprofile(note)
    sys.setprofile(note)
    try:
        exec(sys.argv[2])
    finally:
        sys.setprofile(None)
        Path(sys.argv[1]).write_text(json.dumps(sorted(called)))
