"""Modules that read the files of runs do not import torch."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["examples", "logs", "run_folder"])
def test_files_of_a_run_are_read_without_torch(module: str) -> None:
    code = f"import sys, alignattn.finetuning.{module}; "
    code += "print(sys.modules.keys() & {'torch', 'transformers', 'evaluate'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
