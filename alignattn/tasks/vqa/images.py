"""Image files: pictures, and features of their regions."""

import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase

from alignattn.tasks.names import ANSWER_IDS, ANSWER_SCORES, IMAGE, NPZ
from alignattn.tasks.pictures import open_picture, picture_problem
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.paths import check_file, file_state

NPY = ".npy"
KEYS = ("x", "features")
"""Names of the features in an `.npz`; the first is MCAN's."""

PICTURES_KEPT = 8192
"""Number of pictures kept in memory, 12 KiB each at 64 pixels per side."""
COLOURS = 3
REGION_DIMS, PICTURE_DIMS = 3, 4
"""Dimensions of a batch's tensor of images."""
WHITE = 255
"""The largest value of a colour channel."""

IMAGE_NUMBER = re.compile(r"(\d+)(\.jpe?g|\.png)?\.np[yz]")
"""The end of a file's name: `COCO_train2014_000000000123.jpg.npz` belongs to image 123."""

UNREADABLE = (OSError, ValueError, EOFError, KeyError, AttributeError, zipfile.BadZipFile)


def is_of_features(path: str) -> bool:
    """Return whether a file holds features, according to its name."""
    return Path(path).suffix.lower() in (NPZ, NPY)


def image_problem(path: str, width: int) -> str | None:
    """Return the problem of an image file, or None; of a file of features, only the header is read.

    Args:
        path: the file.
        width: the number of features of a region; 0 for pictures.
    """
    if width == 0 and not is_of_features(path):
        return picture_problem(path)
    if not Path(path).is_file():
        return f"there is no image {path}"
    if is_of_features(path) != (width > 0):
        wanted = f"features of width {width} (.npz or .npy)" if width else "a picture"
        return f"{path} does not fit the task, which reads {wanted}"
    try:
        shape, dtype = _header(path)
    except UNREADABLE as error:
        return f"image {path} cannot be read ({one_line(error)})"
    if dtype.hasobject:
        return f"{path} holds a pickle, which is never loaded"
    if dtype.kind != "f" or len(shape) != 2 or width not in shape or not min(shape):
        return f"{path} holds {dtype} {list(shape)}, and features are floats [boxes, {width}]"
    return None


def read_picture(path: str, size: int) -> Tensor:
    """Return a picture, `[3, size, size]` uint8, scaled if necessary; a file that has not changed is read once.

    Raises:
        AlignAttnError: if it cannot be read.
    """
    check_file(Path(path))
    return _read(path, size, file_state(Path(path)))


@lru_cache(maxsize=PICTURES_KEPT)
def _read(path: str, size: int, _: tuple[int, ...]) -> Tensor:
    from PIL import Image

    picture = open_picture(path)
    if picture.size != (size, size):
        picture = picture.resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(picture)).permute(2, 0, 1).contiguous()


def read_features(path: str, width: int) -> Tensor:
    """Return the features of an image's regions, `[boxes, width]` float32; MCAN's files hold `[width, boxes]`.

    Raises:
        AlignAttnError: if it cannot be read, or holds anything else.
    """
    try:
        # Never with pickle: an array of objects runs code when it is read.
        with open(path, "rb") as file:
            content: Any = np.load(file, allow_pickle=False)
            array: NDArray[Any] = content if Path(path).suffix.lower() == NPY else content[_key(content.files)]
            array = array.astype(np.float32)
    except UNREADABLE as error:
        raise AlignAttnError(f"image {path} cannot be read ({one_line(error)}): give another") from error
    if array.ndim != 2 or width not in array.shape or not np.isfinite(array).all():
        raise AlignAttnError(f"{path} holds {list(array.shape)}, and features must be finite and [boxes, {width}]")
    return torch.from_numpy(array if array.shape[1] == width else array.T.copy())


def feature_files(folder: str) -> dict[int, str]:
    """Return the feature files below a folder, by the numbers of their images.

    Raises:
        AlignAttnError: if there are none.
    """
    paths = sorted(Path(folder).rglob("*.np[yz]"))
    found = {int(match[1]): str(path) for path in paths if (match := IMAGE_NUMBER.search(path.name)) is not None}
    if not found:
        raise AlignAttnError(
            f"--features {folder} contains no features: give a folder of .npz or .npy files whose names end in the "
            "number of an image, such as COCO_train2014_000000000123.jpg.npz"
        )
    return found


def colour_moments(paths: Iterable[str], size: int) -> tuple[list[float], list[float]]:
    """Return the mean and the standard deviation of each colour channel, in [0, 1]; a deviation of 0 becomes 1."""
    sums, squares, count = torch.zeros(COLOURS, dtype=torch.float64), torch.zeros(COLOURS, dtype=torch.float64), 0
    for path in paths:
        pixels = read_picture(path, size).flatten(1).double() / WHITE
        sums, squares, count = sums + pixels.sum(1), squares + pixels.square().sum(1), count + pixels.shape[1]
    mean = sums / count
    deviation = (squares / count - mean.square()).clamp_min(0).sqrt()
    return mean.tolist(), deviation.masked_fill(deviation == 0, 1).tolist()


def _key(names: Iterable[str]) -> str:
    known = list(names)
    for name in KEYS:
        if name in known:
            return name
    raise KeyError(f"no array {' or '.join(KEYS)}, but {', '.join(known) or 'nothing'}")


def _header(path: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
    """Return the shape and the type of a file's array without reading its values."""
    with ExitStack() as opened:
        file: Any
        if Path(path).suffix.lower() == NPY:
            file = opened.enter_context(open(path, "rb"))
        else:
            archive = opened.enter_context(zipfile.ZipFile(path))
            key = _key(name.removesuffix(NPY) for name in archive.namelist())
            file = opened.enter_context(archive.open(f"{key}{NPY}"))
        read = npy.read_array_header_1_0 if npy.read_magic(file) == (1, 0) else npy.read_array_header_2_0
        shape, _, dtype = read(file)
    return tuple(shape), dtype


class ImageCollator:
    """A collator of encoded questions and the files of their images.

    Args:
        tokenizer: the tokenizer of the questions.
        size: pixels per side to which pictures are scaled.
        width: number of features of a region.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, size: int, width: int) -> None:
        self.pad_questions = DataCollatorWithPadding(tokenizer)
        self.size = size
        self.width = width

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Return the padded questions and the tensors of `images`.

        If the rows have several people's answers, also `answer_ids` `[B, a]` and `answer_scores` `[B, a]`, padded by 0.
        """
        others = (IMAGE, ANSWER_IDS, ANSWER_SCORES)
        questions = [{name: value for name, value in row.items() if name not in others} for row in rows]
        batch = {**self.pad_questions(questions), **self.images([row[IMAGE] for row in rows])}
        if ANSWER_IDS in rows[0]:
            ids = [torch.tensor(row[ANSWER_IDS], dtype=torch.int64) for row in rows]
            scores = [torch.tensor(row[ANSWER_SCORES]) for row in rows]
            batch |= {
                ANSWER_IDS: pad_sequence(ids, batch_first=True),
                ANSWER_SCORES: pad_sequence(scores, batch_first=True),
            }
        return batch

    def images(self, paths: Sequence[str]) -> dict[str, Tensor]:
        """Return `image`: pictures `[B, 3, size, size]` in [0, 1], or regions `[B, boxes, width]` and `image_mask`."""
        if not is_of_features(paths[0]):
            return {IMAGE: torch.stack([read_picture(path, self.size) for path in paths]).float() / WHITE}
        regions = [read_features(path, self.width) for path in paths]
        masks = [torch.ones(len(boxes), dtype=torch.bool) for boxes in regions]
        return {
            IMAGE: pad_sequence(regions, batch_first=True),
            "image_mask": pad_sequence(masks, batch_first=True),
        }
