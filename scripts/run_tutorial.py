"""Run the tutorial, docs/tutorial.py, and write it with its outputs to docs/tutorial.ipynb."""

import tempfile
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient

DOCS = Path(__file__).parents[1] / "docs"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}


def main() -> None:
    notebook = jupytext.read(DOCS / "tutorial.py")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "examples").symlink_to(DOCS / "examples")
        NotebookClient(notebook, resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        # The published notebook has no paths, times or progress bars of this machine.
        cell.update(id=f"cell-{number}", metadata={})
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata = {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    nbformat.write(notebook, DOCS / "tutorial.ipynb")


if __name__ == "__main__":
    main()
