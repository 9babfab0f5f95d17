"""Importing alignattn changes nothing in a process; patches change what they must, while a patched model lives."""

import subprocess
import sys
from pathlib import Path


def test_a_process_without_patched_models_is_as_before():
    script = Path(__file__).parent / "untouched_process.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
