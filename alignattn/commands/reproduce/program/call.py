"""Call a user's function, without alignattn: `python call.py PLACE seed=1 train_file=F test_file=F output_dir=D`.

Names without values check that the function can be imported and accepts them.
"""

import importlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def call(place: str, words: Sequence[str]) -> None:
    """Import the function of FILE.py:NAME or MODULE:NAME, and call it with the values of its parameters, if given."""
    origin, _, name = place.rpartition(":")
    if origin.endswith(".py"):
        # As for a script, modules next to the file can be imported.
        sys.path.insert(0, str(Path(origin).absolute().parent))
        spec = importlib.util.spec_from_file_location(Path(origin).stem, origin)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(origin)
    function = getattr(module, name)
    values = {parameter: value for parameter, _, value in (word.partition("=") for word in words)}
    inspect.signature(function).bind(**values)
    if values["seed"]:
        function(**values | {"seed": int(values["seed"])})


if __name__ == "__main__":
    # Not the folder of this file, whose modules have common names.
    sys.path[0] = os.getcwd()
    call(sys.argv[1], sys.argv[2:])
