"""What `tests/deprecations.py` refuses, in a separate pytest process."""

import os
import re
import subprocess
import sys
from pathlib import Path

MODULES = """
import functools, logging, sys, types

def module(name, source):
    made = types.ModuleType(name)
    exec(source, made.__dict__)
    return made

library = module("transformers.old", '''
import logging, warnings
def warns(stacklevel=1): warnings.warn("old is gone in v6", FutureWarning, stacklevel)
def deeper(): warns()
def logs(): logging.getLogger("transformers").warning("old is deprecated")
''')
own = module("alignattn.own", "def use(function): return function()")
other = module("peft.other", "def use(function): return function()")
"""


FAILS = {
    "own.use(library.warns)": True,
    "own.use(library.deeper)": True,
    "own.use(functools.partial(library.warns, 3))": True,
    "own.use(library.logs)": True,
    "other.use(library.warns)": False,
    "own.use(functools.partial(other.use, library.warns))": False,
}


def test_only_what_our_own_code_causes_is_an_error(tmp_path):
    tests = [f"\ndef test_{number}():\n    {code}\n" for number, code in enumerate(FAILS)]
    (tmp_path / "test_it.py").write_text(MODULES + "".join(tests))
    command = [sys.executable, "-m", "pytest", "-rA", "-p", "deprecations", "-p", "no:cacheprovider", "test_it.py"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    ended = re.findall(r"^(PASSED|FAILED) test_it.py::test_(\d+)", done.stdout, re.MULTILINE)
    found = {code: ("FAILED", str(number)) in ended for number, code in enumerate(FAILS)}
    assert len(ended) == len(FAILS), done.stdout
    assert found == FAILS, done.stdout
