"""How a table reads the results of `alignattn finetune`."""

from collections.abc import Sequence
from pathlib import Path

from alignattn.evaluation.statistics.example_scores import ExampleScores
from alignattn.finetuning.examples import mean_predictions, metric_examples, read_logs, read_probabilities, read_split
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import read_result, score_text
from alignattn.finetuning.resuming import check_output_dir
from alignattn.finetuning.run_files import CONFIG_FILE
from alignattn.reports.result_reader import ResultReader, RunReport, listed
from alignattn.tasks.task import ERRORS
from alignattn.utils.files import read_text


class FinetuneReader(ResultReader):
    """Reads runs of `alignattn finetune`."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result; raises as `read_result` does."""
        return read_result(folder) is not None

    def check_same(self, options: RunOptions) -> None:
        """Refuse a folder of another run, as `finetune` does."""
        check_output_dir(options)

    def reason_unsupported(self, options: RunOptions, needed: None = None) -> str:
        """Return why the model or the training does not support the task."""
        return "" if options.task is None else options.reason_unsupported(options.task)

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished run."""
        result = read_result(folder)
        assert result is not None
        facts = {
            "seed": str(result.seed),
            "trained on": f"{result.train_rows} rows",
            "evaluated on": ", ".join(f"{rows} rows of {split}" for split, rows in result.evaluation_rows.items()),
            "training took": f"{result.train_runtime:.0f} s, {result.train_samples_per_second:.1f} rows a second",
            "parameters": f"{result.parameters['total']:,}",
            "hardware": result.device,
            "versions": listed(result.versions),
        }
        return RunReport(
            numbers=result.to_dict(),
            facts=facts,
            scores={
                f"{split} {name}": f"{score_text(name, value)}{'' if value is None or name in ERRORS else ' %'}"
                for split, by in result.metrics.items()
                for name, value in by.items()
            },
            config=read_text(folder / CONFIG_FILE),
            log_history=read_logs(folder),
            probabilities=read_probabilities(folder, next(iter(result.metrics), None)),
        )

    def examples(self, folder: Path, path: Sequence[str]) -> ExampleScores | None:
        """Return the rows of the split of `path`; None for numbers that are not scores, such as times."""
        match path:
            case ["metrics", split, metric]:
                return metric_examples(metric, read_split(folder, split))
        return None

    def reason_no_ensemble(self, path: Sequence[str]) -> str:
        """Return that there is one."""
        return ""

    def ensemble(self, folders: Sequence[Path], path: Sequence[str]) -> ExampleScores | None:
        """Return the rows of the split of `path`, scored with the mean of the predictions of the runs."""
        match path:
            case ["metrics", split, metric]:
                return metric_examples(metric, mean_predictions([read_split(folder, split) for folder in folders]))
        return None
