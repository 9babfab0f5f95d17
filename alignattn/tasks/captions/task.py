"""The record of a task of captions."""

from dataclasses import dataclass
from typing import Literal

from alignattn.tasks.sequences.task import WrittenTask
from alignattn.tasks.vqa.task import IMAGE


@dataclass(frozen=True, kw_only=True)
class ImageToText(WrittenTask):
    """Pictures and what is written of them.

    Attributes:
        source_column: The column of files of pictures.
        target_column: The column of captions, as of every `WrittenTask`.
        collection: `easy-vqa`, whose pictures' captions are of their shape and its colour; empty for a task of files.
        image_size: Pixels of a side to which a picture is brought.
    """

    kind = "image-to-text"
    implementation = "alignattn.tasks.captions.processor:CaptionsProcessor"

    source_column: str = IMAGE
    target_column: str = "caption"
    collection: Literal["", "easy-vqa"] = ""
    image_size: int = 64

    def problem(self) -> str | None:
        """Return whether the size is none, or as for every task whose answer is written."""
        return "image_size must be at least 1" if self.image_size < 1 else super().problem()
