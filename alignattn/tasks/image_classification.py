"""Classification or regression of images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from alignattn.tasks.labelled import LabelledTask
from alignattn.tasks.names import IMAGE, TRAIN, VALIDATION
from alignattn.tasks.task import EncodedSplit, TaskOptions, by_row
from alignattn.utils.errors import AlignAttnError, check_installed

if TYPE_CHECKING:
    import datasets
    from torch import Tensor

    from alignattn.tasks.reading import FileRows

PIXELS = "pixel_values"
"""The model's input. In encoded rows, the column of the images that the collator decodes."""

CHANNELS = 3
MODES = {CHANNELS: "RGB", 1: "L"}
"""Pillow's mode of the pictures by the channels of the model's images, usually three."""


@dataclass(frozen=True, kw_only=True)
class ImageClassification(LabelledTask):
    """Classification or regression of images.

    Attributes:
        image_column: The column of image files or of encoded images.
        collection: `digits`, the handwritten digits in scikit-learn; empty if the rows are in files.
    """

    kind = "image-classification"
    auto_class = "AutoModelForImageClassification"
    reads_texts = False
    reads_images = True
    reads_only_texts = False
    has_lengths = False
    continuous_input = PIXELS

    image_column: str = IMAGE
    collection: Literal["", "digits"] = ""

    @property
    def input_columns(self) -> tuple[str, ...]:
        """The column of the images."""
        return (self.image_column,)

    def problem(self) -> str | None:
        """Return the problem of equal columns, or that of `LabelledTask.problem`."""
        if self.image_column == self.label_column:
            return f"image_column and label_column are both {self.image_column!r}"
        return super().problem()

    def read_split(
        self, name: str, data_dir: str | Path | None, cache_dir: str | None
    ) -> tuple[datasets.Dataset, str] | None:
        """Return scikit-learn's digits; None if the rows are in files or on the Hub."""
        import datasets
        import numpy as np

        if self.collection != "digits" or data_dir is not None:
            return None
        check_installed("PIL", "images", f"task {self.name!r}")
        from PIL import Image
        from sklearn.datasets import load_digits

        if name not in (TRAIN, VALIDATION):
            raise AlignAttnError(f"digits have no split {name!r} (there: {TRAIN}, {VALIDATION})")
        pixels, labels = load_digits(return_X_y=True)
        # 16 shades of grey, and a picture of 8 × 8 pixels as a PNG file in memory.
        pixels = (pixels.reshape(-1, 8, 8) * (255 / 16)).astype(np.uint8)
        # One in four is in the validation split.
        chosen = (np.arange(len(labels)) % 4 == 0) == (name == VALIDATION)
        files = [BytesIO() for _ in pixels[chosen]]
        for picture, file in zip(pixels[chosen], files, strict=True):
            Image.fromarray(picture).save(file, "PNG")
        columns = {self.image_column: [file.getvalue() for file in files], self.label_column: labels[chosen]}
        return datasets.Dataset.from_dict(columns), f"split {name!r} of scikit-learn's digits"

    def read_folder(self, folder: Path, encoding: str | None) -> FileRows:
        """Return the images of a folder's class folders; without class folders, its own images, unlabelled."""
        import datasets

        from alignattn.tasks.pictures import folder_pictures
        from alignattn.tasks.reading import FileRows

        files, classes = folder_pictures(folder)
        columns = {self.image_column: files}
        if classes is not None:
            columns[self.label_column] = classes
        return FileRows(datasets.Dataset.from_dict(columns))

    @property
    def file_column(self) -> str:
        """The column of images, which are files unless the rows hold them encoded."""
        return self.image_column

    def normalise(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with class names and undecoded images."""
        return super().normalise(self.normalise_inputs(dataset))

    def normalise_inputs(self, dataset: datasets.Dataset) -> datasets.Dataset:
        """Return the rows with undecoded images; the collator decodes them."""
        import datasets

        column = self.image_column
        if isinstance(dataset.features[column], datasets.Image):
            return dataset.cast_column(column, datasets.Image(decode=False))
        return dataset

    def input_problems(self, dataset: datasets.Dataset, *, may_be_empty: bool) -> dict[int, str]:
        """Return the rows without a readable image; every image is read once."""
        from alignattn.tasks.pictures import picture_problem

        column = self.image_column
        with ThreadPoolExecutor() as pool:
            # 256 at a time, because images that the rows hold are in memory.
            parts = dataset.select_columns([column]).iter(256)
            problems = by_row(problem for part in parts for problem in pool.map(picture_problem, part[column]))
        return {index: f"column {column!r}: {problem}" for index, problem in problems.items()}

    def encode(self, dataset: datasets.Dataset, tokenizer: Any, options: TaskOptions) -> datasets.Dataset:
        """Return `pixel_values`, the undecoded image, and `label`."""
        names = {self.image_column: PIXELS, self.label_column: "label"}
        return dataset.select_columns(list(names)).rename_columns(names)

    def collator(self, tokenizer: Any, split: EncodedSplit, *, is_training: bool = False) -> Any:
        """Return a collator that loads the images and applies the image processor."""
        return partial(_collate, image_processor=tokenizer)


def _collate(rows: Sequence[Mapping[str, Any]], image_processor: Any) -> dict[str, Tensor]:
    """Return the model's inputs, such as `pixel_values` `[B, 3, H, W]` (1 for 3 in grey), and `labels` `[B]`."""
    import torch

    from alignattn.tasks.pictures import open_picture

    mode = MODES[getattr(image_processor, "num_channels", CHANNELS)]
    batch = dict(image_processor([open_picture(row[PIXELS], mode=mode) for row in rows], return_tensors="pt"))
    if "label" in rows[0]:
        batch["labels"] = torch.tensor([row["label"] for row in rows])
    return batch
