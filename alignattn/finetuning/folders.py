"""The rows of a finished run of `alignattn finetune`, read back."""

from dataclasses import replace
from typing import Any

from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import read_result
from alignattn.finetuning.rows import load_evaluation_rows, load_run_rows
from alignattn.tasks.rows import Rows


def load_run_evaluation(options: RunOptions, data_dir: str | None = None) -> Rows[Any]:
    """Return all rows that a run is evaluated on, however many of them it used.

    Args:
        options: of the run.
        data_dir: folder of Parquet files in place of the run's own source of its task.
    """
    data = replace(options.data, max_eval_samples=None)
    if options.task is None or data.train_file is not None:
        # The training file says what the classes of the others are.
        rows = load_run_rows(replace(options, data=data))
        made = read_result(options.output_dir)
        # The name that the task of a file had when the run was made.
        return rows if made is None else replace(rows, task=replace(rows.task, name=made.task))
    origin = data.data_dir if data_dir is None else data_dir
    return load_evaluation_rows(options.task, options.model, replace(data, data_dir=origin))
