"""The texts that the heads of all runs of a picture are shown."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import datasets
from transformers import PreTrainedTokenizerBase

from alignattn.commands.figure import FigureOptions
from alignattn.runs.data_options import DataOptions
from alignattn.runs.folders import load_run_evaluation
from alignattn.runs.heads import Examples
from alignattn.runs.run_folder import read_run_options
from alignattn.support.errors import AlignAttnError
from alignattn.tasks import MultipleChoice, Task
from alignattn.tasks.kinds import kind_of
from alignattn.tasks.rows import max_samples
from alignattn.tasks.task import FIRST


def choose_examples(folders: Sequence[Path], options: FigureOptions, num_rows: int) -> Examples:
    """Return the given text, or else the first evaluation rows of the first run, for all runs."""
    if options.text is not None:
        texts = options.text
        return Examples("the given text", lambda tokenizer: [dict(tokenizer(*texts))])
    runs = [read_run_options(folder) for folder in folders]
    sources = [_source(run.data) for run in runs]
    for folder, source in zip(folders, sources, strict=True):
        if source != sources[0]:
            raise AlignAttnError(
                f"--run: {folders[0]} is of {sources[0]} and {folder} of {source}: give runs of one task, or --text"
            )
    rows = load_run_evaluation(runs[0], options.data_dir)
    if isinstance(rows.task, MultipleChoice):
        raise AlignAttnError(f"task {rows.task.name!r} has several sequences a row: give --text")
    if not rows.evaluation:
        raise AlignAttnError(f"{folders[0]} has no evaluation rows: it was made without --validation_file; give --text")
    split, dataset = next(iter(rows.evaluation.items()))
    return _first_rows(rows.task, split, max_samples(rows.task, dataset, num_rows, FIRST), runs[0].data)


def _first_rows(task: Task, split: str, rows: datasets.Dataset, data: DataOptions) -> Examples:
    """One sequence a row; of question answering the windows of each."""
    kind = kind_of(task)

    def encode(tokenizer: PreTrainedTokenizerBase) -> list[dict[str, list[int]]]:
        # A token is shown once: windows of a long context share none.
        encoded = kind.encode(task, rows, tokenizer, replace(data.task_options(task, tokenizer), doc_stride=0))
        return list(encoded.select_columns([name for name in tokenizer.model_input_names if name in encoded.features]))

    number = "the first row" if len(rows) == 1 else f"the first {len(rows)} rows"
    return Examples(f"{number} of {task.name} {split}", encode, kind.tokenizer_options)


def _source(data: DataOptions) -> str:
    """What tells the evaluation rows of one run from those of another."""
    return data.validation_file or data.task or "no evaluation rows"
