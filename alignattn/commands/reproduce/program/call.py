"""Call a user's function: `python -m alignattn.commands.reproduce.program.call PLACE [SEED TRAIN TEST OUTPUT]`.

Without values the function is imported and its parameters are checked.
"""

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from alignattn.commands.reproduce.program import GIVEN


def find_function(place: str) -> Callable[..., Any]:
    """Return the function of FILE.py:NAME or MODULE:NAME; modules may lie in the working folder."""
    origin, _, name = place.rpartition(":")
    if origin.endswith(".py"):
        # A script finds its neighbours.
        sys.path.insert(0, str(Path(origin).absolute().parent))
        spec = importlib.util.spec_from_file_location(Path(origin).stem, origin)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(origin)
    function: Callable[..., Any] = getattr(module, name)
    inspect.signature(function).bind(**dict.fromkeys(GIVEN))
    return function


def call(place: str, values: Sequence[str]) -> None:
    """Import a function, and call it with the values of `GIVEN` if there are any."""
    function = find_function(place)
    if values:
        seed, *paths = values
        function(**dict(zip(GIVEN, (int(seed), *paths), strict=True)))


if __name__ == "__main__":
    call(sys.argv[1], sys.argv[2:])
