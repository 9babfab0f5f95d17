"""What reads the files of runs, or refuses a folder, does not import torch."""

import subprocess
import sys
from pathlib import Path

MODULES = ("examples", "logs", "run_folder")


def test_files_of_a_run_are_read_without_torch() -> None:
    code = "import sys, importlib\n"
    code += f"for module in {MODULES}:\n    importlib.import_module(f'alignattn.finetuning.{{module}}')\n"
    code += "    print(module, sys.modules.keys() & {'torch', 'transformers', 'evaluate'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [f"{module} set()" for module in MODULES]


def test_an_occupied_folder_is_refused_before_torch_is_imported(tmp_path: Path) -> None:
    folder = tmp_path / "used"
    folder.mkdir()
    (folder / "notes.txt").touch()
    (tmp_path / "rows.csv").write_text("text,label\na,b\n")
    words = ["finetune", "--model", "any", "--train_file", str(tmp_path / "rows.csv"), "--output_dir", str(folder)]
    code = f"import sys\nfrom alignattn.cli import main\ncode = main({[*words, '--text_columns', 'text']})\n"
    code += "print(code, sys.modules.keys() & {'torch', 'transformers'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "used exists and is not a run of alignattn" in done.stderr
    assert done.stdout.strip() == "2 set()"
