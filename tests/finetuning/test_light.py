"""Modules that read the files of runs do not import torch."""

import subprocess
import sys

MODULES = ("examples", "logs", "run_folder")


def test_files_of_a_run_are_read_without_torch() -> None:
    code = "import sys, importlib\n"
    code += f"for module in {MODULES}:\n    importlib.import_module(f'alignattn.finetuning.{{module}}')\n"
    code += "    print(module, sys.modules.keys() & {'torch', 'transformers', 'evaluate'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{module} set()" for module in MODULES]
