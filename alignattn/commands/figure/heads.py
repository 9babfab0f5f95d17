"""The texts for which a picture shows the heads of its runs."""

from collections.abc import Sequence
from pathlib import Path

from alignattn.commands.figure import FigureOptions
from alignattn.finetuning.heads import Examples, row_examples
from alignattn.finetuning.rows import load_run_evaluation
from alignattn.finetuning.run_folder import read_finished_run, read_run_options
from alignattn.tasks import MultipleChoice, TextClassification
from alignattn.tasks.rows import max_samples
from alignattn.tasks.task import FIRST
from alignattn.tasks.task_types import processor_class
from alignattn.utils.errors import AlignAttnError


def choose_examples(folders: Sequence[Path], options: FigureOptions, num_rows: int) -> Examples:
    """Return the examples for all runs: the given text, or else the first evaluation rows of the first run."""
    if options.text is not None:
        texts = options.text
        for folder in folders:
            # A model that was trained on single texts does not know pairs.
            if len(texts) > len(read_finished_run(folder, "--run").task.input_columns):
                raise AlignAttnError(f"--text: the task of {folder} has one text per row; give one text")
        return Examples(
            "the given text",
            processor_class(TextClassification),
            lambda tokenizer: [dict(tokenizer(*texts, return_tensors="pt"))],
        )
    runs = [read_run_options(folder) for folder in folders]
    sources = [run.data.validation_file or run.data.task or run.data.train_file for run in runs]
    for folder, source in zip(folders, sources, strict=True):
        if source != sources[0]:
            raise AlignAttnError(
                f"--run: {folders[0]} shows {sources[0]} and {folder} {source}: give runs of one task, or --text"
            )
    rows = load_run_evaluation(runs[0], options.data_dir)
    if isinstance(rows.task, MultipleChoice):
        raise AlignAttnError(f"task {rows.task.name!r} has several sequences per row: give --text")
    if not rows.evaluation:
        raise AlignAttnError(f"{folders[0]} has no evaluation rows: it was made without --validation_file; give --text")
    split, dataset = next(iter(rows.evaluation.items()))
    return row_examples(rows.task, split, max_samples(rows.task, dataset, num_rows, FIRST), runs[0].data)
