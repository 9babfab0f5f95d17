"""How a table reads the results of a user's program."""

import hashlib
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import psutil

from alignattn.commands.reproduce.program import OUTPUT_FOLDER, PROCESS_FILE, TEST_ROWS, TRAIN_ROWS, ProgramOptions
from alignattn.finetuning.examples import PredictionsReader, read_probabilities
from alignattn.finetuning.results import RESULTS_FILE, defined, metric_texts
from alignattn.finetuning.run_folder import check_same_data, check_same_task
from alignattn.reports.result_reader import RunReport
from alignattn.tasks import Task
from alignattn.tasks.task_types import MultipleChoice, TextClassification, processor_for
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.json_records import read_json, read_record
from alignattn.utils.processes import end_process

if TYPE_CHECKING:
    from alignattn.commands.reproduce.program.predictions import ScoredSplit
    from alignattn.tasks.rows import Rows


@dataclass(frozen=True)
class ProgramResult:
    """The scores of a program's predictions; fields not described here are those of `RunResult`.

    Attributes:
        cost: the cost of the program alone, by the names of `COSTS`.
        predictions_sha256: the SHA-256 of all predictions.
        machine: the machine type.
    """

    task: str
    seed: int
    metrics: dict[str, dict[str, float | None]]
    train_rows: int
    evaluation_rows: dict[str, int]
    labels: list[str]
    constant_prediction: dict[str, str]
    cost: dict[str, float]
    predictions_sha256: str
    machine: str

    @classmethod
    def of(
        cls, seed: int, rows: "Rows[Any]", found: "Mapping[str, ScoredSplit]", cost: dict[str, float], machine: str
    ) -> Self:
        """Return the result of scored predictions."""
        constant = {split: processor_for(rows.task).constant_prediction(one.table) for split, one in found.items()}
        predicted = b"".join(one.table["prediction"].to_numpy().tobytes() for one in found.values())
        return cls(
            task=rows.task.name,
            seed=seed,
            metrics={split: defined(one.metrics) for split, one in found.items()},
            train_rows=len(rows.train or ()),
            evaluation_rows={split: one.table.num_rows for split, one in found.items()},
            labels=list(rows.task.labels),
            constant_prediction={split: answer for split, answer in constant.items() if answer is not None},
            cost=cost,
            predictions_sha256=hashlib.sha256(predicted).hexdigest(),
            machine=machine,
        )


def reason_unsupported(task: Task | None) -> str:
    """Return why a program cannot be run on a task, in one line; empty if it can, or if the task is unknown."""
    if task is None or isinstance(task, TextClassification | MultipleChoice):
        return ""
    return f"a custom program predicts classes or scores of texts, but {task.name} is {task.kind}"


class ProgramReader(PredictionsReader):
    """Reads runs of a user's program."""

    def clear_unfinished(self, folder: Path) -> None:
        """Remove what an unfinished program wrote, since it starts from scratch.

        If its parent process was killed, the program may still run, and is ended.
        """
        with suppress(psutil.NoSuchProcess, AlignAttnError, OSError, LookupError):
            left = read_json(folder / PROCESS_FILE)
            process = psutil.Process(left["pid"])
            # Another process may have the same id by now.
            if process.create_time() == left["started"]:
                end_process(process)
        shutil.rmtree(folder / OUTPUT_FOLDER, ignore_errors=True)
        for name in (TRAIN_ROWS, TEST_ROWS, PROCESS_FILE):
            (folder / name).unlink(missing_ok=True)

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result."""
        return read_record(folder / RESULTS_FILE, ProgramResult, "run") is not None

    def check_same(self, options: ProgramOptions) -> None:
        """Refuse a folder of a run on other data, or on another definition of its task."""
        check_same_task(options.rows, Path(options.output_dir))
        check_same_data(options.rows, Path(options.output_dir))

    def reason_unsupported(self, options: ProgramOptions, needed: None = None) -> str:
        """Return why a program cannot be run on the task."""
        return reason_unsupported(options.rows.task)

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run."""
        result = read_record(folder / RESULTS_FILE, ProgramResult, "run")
        assert result is not None
        return RunReport(
            numbers=asdict(result),
            facts={
                "seed": str(result.seed),
                "trained on": f"{result.train_rows} rows",
                "evaluated on": ", ".join(f"{rows} rows of {split}" for split, rows in result.evaluation_rows.items()),
                "machine": result.machine,
            },
            scores=metric_texts(result.metrics),
            probabilities=read_probabilities(folder, next(iter(result.metrics), None)),
            predictions_digest=result.predictions_sha256,
        )
