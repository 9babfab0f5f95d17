"""The options of a run's rows: where they come from and how they become tensors."""

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from alignattn.models.lengths import row_length
from alignattn.tasks import (
    ImageClassification,
    MultiLabelClassification,
    QuestionAnswering,
    Task,
    TextClassification,
    TokenClassification,
)
from alignattn.tasks.names import (
    BY_SEED,
    CONLL,
    DRAWN,
    FIRST,
    TAGS,
    TEXT,
    TEXT_FILE,
    TOKENS,
    TRUNCATE,
    WINDOWS,
    is_picture,
)
from alignattn.tasks.task import TaskOptions
from alignattn.training.methods.base import EVALUATION_ROWS
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_encoding, plain_suffix
from alignattn.utils.options import Count, InputDir, Options, Processes, option
from alignattn.utils.paths import input_path

DOC_STRIDE = 128
LABEL_COLUMN = ("label",)
OF_FILES = ("train_file",)
OF_THE_TASK = {"task": "the task defines the columns"}
IN_THE_FILE = {"train_file": "the task file contains its rows"}
"""Shared requirements and conflicts of the options for a user's files and for the rows of a task."""

FROM_TASK = "--task without --train_file"
FROM_BOTH = "--task with --train_file, a file of the task's rows"
FROM_CONLL = "a CoNLL file, whose last column has the tags"
FROM_TAGS = "--tokens_column"
FROM_TEXTS = "--text_columns"
FROM_IMAGES = "--image_column"
"""Where the rows come from, in words."""


def is_folder(path: str | None) -> bool:
    """Return whether a path is a folder: one that exists, or one that ends with a separator."""
    return path is not None and (path.endswith(os.sep) or Path(path).is_dir())


def has_class_pictures(folder: Path) -> bool:
    """Return whether a folder has pictures in its class folders and no texts."""
    files = list(folder.glob("*/*"))
    return any(map(is_picture, files)) and not any(path.suffix.lower() == TEXT_FILE for path in files)


@dataclass(frozen=True, kw_only=True)
class DataOptions(Options):
    """The task and its rows."""

    heading = "data"

    task: str | None = option(None, "Of `alignattn list tasks`, or a YAML file.", metavar="TASK")
    data_dir: InputDir | None = option(None, "Folder of Parquet files (default: the Hub).", excludes=IN_THE_FILE)
    train_file: str | None = option(
        None, "CSV, TSV, JSON, Parquet, CoNLL or a folder.", metavar="FILE", place=input_path
    )
    validation_file: str | None = option(
        None, "Evaluation rows, in the same formats.", metavar="FILE", place=input_path, requires=OF_FILES
    )
    validation_share: float | None = option(
        None,
        "Share of the training rows to evaluate on.",
        above=0,
        below=1,
        requires=OF_FILES,
        excludes={"validation_file": "--validation_file holds the evaluation rows"},
    )
    text_columns: tuple[str, ...] | None = option(
        None, "One or two text columns of the files.", requires=OF_FILES, excludes=OF_THE_TASK
    )
    label_column: tuple[str, ...] = option(
        LABEL_COLUMN, "Column of labels, or several.", requires=OF_FILES, excludes=OF_THE_TASK
    )
    tokens_column: str | None = option(
        None,
        "Column of word lists, one tag per word.",
        requires=OF_FILES,
        excludes={**OF_THE_TASK, "text_columns": "a row is a list of words or texts"},
    )
    image_column: str | None = option(
        None,
        "Column of image files.",
        requires=OF_FILES,
        excludes={
            **OF_THE_TASK,
            "text_columns": "a row is an image or texts",
            "tokens_column": "a row is an image or a list of words",
        },
    )
    skip_bad_rows: bool = option(False, "Skip bad rows and list them in results.json.")
    slice_by: str | None = option(
        None, "Score each value of an evaluation column.", metavar="COLUMN", requires=EVALUATION_ROWS
    )
    max_length: Count | None = option(None, "Maximum tokens per row (default: the task's).")
    long_texts: str = option(TRUNCATE, "truncate (default), or windows to read all.", choices=(TRUNCATE, WINDOWS))
    doc_stride: int = option(
        DOC_STRIDE,
        "Tokens shared by windows of a text (default: 128, at most a third of --max_length).",
        low=0,
        rare=True,
    )
    max_train_samples: Count | None = option(None, "Sample N training rows, by class.")
    max_eval_samples: Count | None = option(None, "Sample N rows of each evaluation split.", requires=EVALUATION_ROWS)
    evaluation_splits: tuple[str, ...] | None = option(
        None,
        "Splits to evaluate on, such as test (default: the task's).",
        rare=True,
        metavar="SPLIT",
        excludes=IN_THE_FILE,
    )
    take: str | None = option(
        None,
        "drawn: one random sample for all runs; first: the first N rows; seed: a training sample per seed.",
        choices=(DRAWN, FIRST, BY_SEED),
        rare=True,
    )
    encoding: str | None = option(
        None, "Encoding of the files (default: utf-8).", metavar="NAME", requires=OF_FILES, rare=True
    )
    preprocessing_num_workers: Processes | None = option(
        None, "Processes that tokenize (default: 1).", rare=True, may_differ=True
    )
    fan_out: tuple[int, ...] | None = option(
        None, "Sampled neighbours per graph layer; -1: all (default: the whole graph).", low=-1, rare=True
    )
    features: InputDir | None = option(
        None, "Folder of image region features, .npz or .npy.", excludes=IN_THE_FILE, rare=True
    )
    n_best_size: Count = option(20, "Number of candidate answers per question.", group="question answering", rare=True)
    max_answer_length: Count = option(30, "Maximum tokens of an answer.", group="question answering", rare=True)
    num_beams: Count = option(1, "Beams of beam search; 1: greedy.", group="generation", high=256, rare=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_encoding(self.encoding)
        if 0 in (self.fan_out or ()):
            raise AlignAttnError("--fan_out 0 samples no neighbours: give at least 1, or -1 for all")

    @cached_property
    def source(self) -> str:
        """The source of the rows, one of the constants `FROM_…`.

        Raises:
            AlignAttnError: if the options name no rows, or columns that a file of that kind does not have.
        """
        if self.train_file is None and self.task is None:
            raise AlignAttnError(
                "no data: give --task NAME or FILE.yaml, or --train_file FILE with --text_columns (or --tokens_column, "
                "--image_column)"
            )
        if self.task is not None:
            return FROM_TASK if self.train_file is None else FROM_BOTH
        is_conll = plain_suffix(str(self.train_file)) == CONLL
        if is_conll and (
            self.text_columns or self.tokens_column or self.image_column or self.label_column != LABEL_COLUMN
        ):
            raise AlignAttnError(
                f"{self.train_file}: a CoNLL file has its tags in the last column: leave column options out"
            )
        is_of_texts = self.tokens_column is None and self.image_column is None
        if not is_conll and is_of_texts and (self.text_columns or is_folder(self.train_file)):
            return FROM_TEXTS
        if self.image_column is not None:
            if self.is_multi_label:
                raise AlignAttnError("--label_column names several columns, and an image has one label: give one")
            return FROM_IMAGES
        if self.is_multi_label:
            raise AlignAttnError("--label_column: give the one column of the tags")
        if is_conll:
            return FROM_CONLL
        if self.tokens_column is not None:
            return FROM_TAGS
        raise AlignAttnError(
            "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of "
            "words, --image_column with its image files, or --task NAME if it holds rows of that task"
        )

    def own_task(self, labels: tuple[str, ...] = ()) -> Task:
        """Return the task of a user's rows, as far as the options define it.

        Args:
            labels: the names of the classes, if known; without them, one label per row is taken for a score.

        Raises:
            AlignAttnError: if the options name a column twice.
        """
        if self.source in (FROM_CONLL, FROM_TAGS):
            tokens, tags = (
                (TOKENS, TAGS) if self.source == FROM_CONLL else (str(self.tokens_column), self.label_column[0])
            )
            if tokens == tags:
                raise AlignAttnError(f"duplicate column: --tokens_column {tokens} --label_column {tags}")
            return TokenClassification(name="user", tokens_column=tokens, tags_column=tags, labels=labels)
        metrics: Any = ("accuracy",) if labels else ("pearson",)
        if self.source == FROM_IMAGES:
            return ImageClassification(
                name="user",
                image_column=str(self.image_column),
                label_column=self.label_column[0],
                labels=labels,
                metrics=metrics,
            )
        columns = tuple(self.text_columns or (TEXT,))
        if self.is_multi_label:
            task = MultiLabelClassification(name="user", text_columns=columns, label_columns=self.label_column)
            if problem := task.problem():
                raise AlignAttnError(f"--text_columns and --label_column: {problem}")
            return task
        return TextClassification(
            name="user", text_columns=columns, label_column=self.label_column[0], labels=labels, metrics=metrics
        )

    @property
    def is_multi_label(self) -> bool:
        """Whether a row of texts may have several labels at once, each in its own column."""
        return len(self.label_column) > 1

    @property
    def has_windows(self) -> bool:
        """Whether long texts are read in windows, whose logits are pooled."""
        return self.long_texts == WINDOWS

    def stride(self, length: int) -> int:
        """Return how many tokens neighbouring windows share, given the length of a window."""
        return min(DOC_STRIDE, length // 3) if self.doc_stride == DOC_STRIDE else self.doc_stride

    def check(self, task: Task) -> None:
        """Refuse a task whose long texts cannot be read in windows, if the options ask for them."""
        if self.has_windows and not task.can_pool_windows:
            reason = "has its own windows" if task.kind == QuestionAnswering.kind else "has no logits per row to pool"
            raise AlignAttnError(f"--long_texts {self.long_texts}: task {task.name!r} is {task.kind}, which {reason}")

    def task_options(self, task: Task, processor: Any) -> TaskOptions:
        """Return how the rows of `task` become tensors.

        Args:
            task: the task of the rows.
            processor: the model's tokenizer or image processor, as in `alignattn.models.build.BuiltModel`.
        """
        most = getattr(processor, "model_max_length", task.max_length)
        length = row_length(self.max_length, task.max_length, most)
        return TaskOptions(
            max_length=length,
            long_texts=self.long_texts,
            doc_stride=self.stride(length),
            n_best_size=self.n_best_size,
            max_answer_length=self.max_answer_length,
            num_beams=self.num_beams,
            num_proc=self.preprocessing_num_workers,
            fan_out=self.fan_out,
        )
