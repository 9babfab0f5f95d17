"""Opens pictures in any format that Pillow reads, as transformers' pipelines do."""

import sys
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from alignattn.tasks.names import PICTURES, is_picture
from alignattn.tasks.reading import class_files
from alignattn.utils.errors import AlignAttnError, check_installed, one_line, shown

if TYPE_CHECKING:
    from PIL.Image import Image

BITS_8, BITS_16 = 2**8 - 1, 2**16 - 1
"""The largest values of pixels with 8 and 16 bits."""

RGB, GREY = "RGB", "L"
"""Pillow's modes of the pictures that models read."""


def open_picture(source: Any, *, mode: str = RGB, draft: bool = False) -> "Image":
    """Return a picture, rotated according to its EXIF data; of an animation, the first frame.

    Transparency is dropped, as in transformers' pipelines. 16 bits per pixel become 8.

    Args:
        source: a path, the bytes of a file, or the mapping of both in `datasets`.
        mode: `RGB`, or `GREY` for a picture in shades of grey.
        draft: whether a JPEG may be read at a fraction of its size, which is faster.

    Raises:
        AlignAttnError: if it cannot be read.
    """
    check_installed("PIL", "images", "a picture")
    from PIL import Image

    content = source.get("bytes") if isinstance(source, Mapping) else source
    path = source.get("path") if isinstance(source, Mapping) and content is None else content
    name = f"image {path}" if isinstance(path, str) else "the encoded image"
    if isinstance(path, str) and not Path(path).is_file():
        raise AlignAttnError(f"there is no {name}")
    file: Any = BytesIO(path) if isinstance(path, bytes) else path
    try:
        with Image.open(file) as picture:
            if draft:
                picture.draft("RGB", (1, 1))
            return _in_rgb(picture).convert(mode)
    # Pillow's readers raise errors of any class for damaged files.
    except Exception as error:
        raise AlignAttnError(f"{name} cannot be read ({one_line(error)})") from error


def encode_picture(value: Any) -> Any:
    """Return a row's picture as a path or as the mapping that `open_picture` reads; other values as they are.

    Of a picture of Pillow, the bytes hold the pixels that it has in memory, rotated according to the EXIF data that it
    carries. `datasets` would keep the name of the file that it was opened from, and lose what was changed since.

    Raises:
        AlignAttnError: if the picture has no pixels, for example because it was closed.
    """
    # Whoever made a picture has imported Pillow.
    pillow = sys.modules.get("PIL.Image")
    if pillow is not None and isinstance(value, pillow.Image):
        file = BytesIO()
        try:
            _in_rgb(value).save(file, "PPM")
        except Exception as error:
            # Pillow only asserts that a file is still open.
            reason = one_line(error) or "its file is closed"
            raise AlignAttnError(f"the image in memory cannot be read ({reason})") from error
        value = file.getvalue()
    if isinstance(value, bytes):
        return {"bytes": value, "path": None}
    return str(value) if isinstance(value, Path) else value


def picture_problem(source: Any) -> str | None:
    """Return the problem of a picture, or None; reads it to its end. The argument is that of `open_picture`."""
    check_installed("PIL", "images", "a picture")
    held = [source.get("bytes"), source.get("path")] if isinstance(source, Mapping) else []
    if not (isinstance(source, str | bytes) and source) and not any(isinstance(part, str | bytes) for part in held):
        return f"no image is named ({shown(source)})"
    try:
        open_picture(source, draft=True)
    except AlignAttnError as error:
        return str(error)
    return None


def _in_rgb(picture: "Image") -> "Image":
    """Return the current frame of a picture in RGB with 8 bits, rotated according to its EXIF data."""
    from PIL import Image, ImageOps

    turned = ImageOps.exif_transpose(picture)
    if turned.mode[0] in "FI":
        pixels = np.asarray(turned)
        lowest, highest = pixels.min(), pixels.max()
        if turned.mode == "F" and 0 < highest <= 1:
            raise ValueError("its pixels are fractions: multiply them by 255")
        if not (lowest >= 0 and highest <= BITS_16):
            raise ValueError("its pixels have 32 bits: save it with 8 or 16")
        # Pillow would clip values above 255. Others are kept, as when it converts a picture with 8 bits to more.
        pixels = pixels // (BITS_16 // BITS_8) if highest > BITS_8 else pixels
        turned = Image.fromarray(pixels.astype(np.uint8))
    # Pillow converts premultiplied grey only to grey with transparency.
    return (turned.convert("LA") if turned.mode == "La" else turned).convert(RGB)


def folder_pictures(folder: Path) -> tuple[list[str], list[str] | None]:
    """Return the pictures of a folder, and the names of their class folders or None if it has no class folders.

    Paths are relative to the folder's parent, as in a table next to the folder.

    Raises:
        AlignAttnError: if there are no pictures.
    """
    right_in_it = [path for path in sorted(folder.iterdir()) if is_picture(path)]
    if right_in_it and not any(map(is_picture, folder.glob("*/*"))):
        return [str(path.relative_to(folder.parent)) for path in right_in_it], None
    found = class_files(folder, "picture", PICTURES, example="cat/1.png")
    return [str(path.relative_to(folder.parent)) for path, _ in found], [name for _, name in found]
