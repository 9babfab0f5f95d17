"""Captions of easy-VQA's pictures, made of what its questions tell of them."""

from collections import defaultdict

import datasets

from alignattn.tasks.captions.task import ImageToText
from alignattn.tasks.vqa.sources import easy_vqa_questions

SHAPES = ("circle", "rectangle", "triangle")
WITHOUT_A_FEATURE = ("yes", "no")
"""Answers to questions that need not be true of a picture."""


def easy_vqa_captions(task: ImageToText, split: str) -> tuple[datasets.Dataset, str]:
    """Return the pictures of a split of easy-VQA, each with a caption of the shape's colour and kind, and whence.

    Both are what questions that ask for one of them say and are answered; pictures of which they tell but one are left
    out. Raises `AlignAttnError` as `easy_vqa_questions` does.
    """
    told: defaultdict[str, list[str]] = defaultdict(list)
    images, questions, answers = easy_vqa_questions(task, split)
    for image, question, answer in zip(images, questions, answers, strict=True):
        if answer not in WITHOUT_A_FEATURE:
            told[image] += [answer, *question.rstrip("?").split()]
    colours = {*answers}.difference(SHAPES, WITHOUT_A_FEATURE)
    rows = []
    for image, words in told.items():
        colour, shape = (next((word for word in words if word in known), None) for known in (colours, SHAPES))
        if colour is not None and shape is not None:
            rows.append((image, f"a {colour} {shape}"))
    columns = {task.source_column: [image for image, _ in rows], task.target_column: [text for _, text in rows]}
    return datasets.Dataset.from_dict(columns), f"split {split!r} of easy-vqa"
