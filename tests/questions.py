"""Small pictures, regions and questions about them, for the tests of visual question answering."""

import numpy as np
import yaml
from PIL import Image

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (30, 40, 220)}
ANSWERS = [*COLOURS, "yes", "no"]
SIDE, WIDTH = 16, 6
QUESTIONS = ("what color is it?", "is it red?", "is the whole picture red or not?")


def write_pictures(folder):
    """Write a picture per colour; return the paths by the names of the colours."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.png" for name in COLOURS}
    for name, path in paths.items():
        Image.new("RGB", (SIDE, SIDE), COLOURS[name]).save(path)
    return {name: str(path) for name, path in paths.items()}


def question_rows(paths, times=1):
    """Return rows of all questions about all pictures, with the names of the answers."""
    rows = [
        {"image": path, "question": text, "label": name if index == 0 else "yes" if name == "red" else "no"}
        for index, text in enumerate(QUESTIONS)
        for name, path in paths.items()
    ]
    return rows * times


def write_task(folder, **fields):
    """Write the definition of a task of such rows; return its path."""
    task = {
        "kind": "visual-question-answering",
        "labels": ANSWERS,
        "metrics": ["accuracy"],
        "image_size": SIDE,
        **fields,
    }
    path = folder / "colours.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in task.items() if value is not None}))
    return path


def write_features(path, boxes=3, width=WIDTH, **arrays):
    """Write features in the format of the files of MCAN, `[width, boxes]` as `x`, or other arrays; return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    made = np.random.default_rng(boxes).random((width, boxes)).astype(np.float32)
    np.savez(path, **(arrays or {"x": made}))
    return path
