"""Draw coloured shapes as PNG files: a folder of pictures for each class, and a table of the same pictures.

    python docs/examples/photos.py photos

writes `train` and `validation` with a folder per class, `new` without classes, and `photos.csv` to the folder.
"""

import csv
import random
import sys
from pathlib import Path

from PIL import Image, ImageDraw

SHAPES = ("disc", "square")
COLOURS = ("red", "green", "blue", "black")
ROWS = {"train": 40, "validation": 20, "new": 4}
SIZE = 16


def picture(drawn: random.Random, shape: str) -> Image.Image:
    """Return a picture of `SIZE` x `SIZE` pixels with a shape of random place and colour."""
    image = Image.new("RGB", (SIZE, SIZE), "white")
    left, top, width = drawn.randint(0, 6), drawn.randint(0, 6), drawn.randint(6, 9)
    draw = ImageDraw.Draw(image)
    (draw.ellipse if shape == "disc" else draw.rectangle)(
        (left, top, left + width, top + width), fill=drawn.choice(COLOURS)
    )
    return image


def main(folder: Path) -> None:
    """Write the files."""
    drawn, table = random.Random(0), [("file", "shape")]  # noqa: S311
    for split, count in ROWS.items():
        for number in range(count):
            shape = SHAPES[number % 2]
            path = Path(split, "" if split == "new" else shape, f"{number}.png")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            picture(drawn, shape).save(folder / path)
            if split == "train":
                table.append((str(path), shape))
    with (folder / "photos.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(table)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
