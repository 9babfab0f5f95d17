"""How a table reads the results of `alignattn finetune`."""

from pathlib import Path

from alignattn.finetuning.examples import PredictionsReader, read_logs, read_probabilities
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import metric_texts, read_result
from alignattn.finetuning.resuming import check_output_dir
from alignattn.finetuning.run_files import CONFIG_FILE
from alignattn.reports.result_reader import RunReport, listed
from alignattn.utils.files import read_text


class FinetuneReader(PredictionsReader):
    """Reads runs of `alignattn finetune`."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether there is a result; raises the errors of `read_result`."""
        return read_result(folder) is not None

    def check_same(self, options: RunOptions) -> None:
        """Refuse a folder of another run, as `finetune` does."""
        check_output_dir(options)

    def reason_unsupported(self, options: RunOptions, needed: None = None) -> str:
        """Return why the model or the training does not support the task; empty if they do."""
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
            scores=metric_texts(result.metrics),
            config=read_text(folder / CONFIG_FILE),
            log_history=read_logs(folder),
            probabilities=read_probabilities(folder, next(iter(result.metrics), None)),
        )
