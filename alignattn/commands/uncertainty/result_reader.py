"""How a table reads the results of `alignattn uncertainty`."""

from pathlib import Path

import yaml

from alignattn.commands.uncertainty import UNCERTAINTY_FILE
from alignattn.reports.result_reader import ResultReader, RunReport, percent
from alignattn.utils.json_records import read_json


class UncertaintyReader(ResultReader):
    """Reads results of `alignattn uncertainty` on the run of a `finetune`."""

    def is_finished(self, folder: Path) -> bool:
        """Return whether the file of figures is there, which is written last."""
        return (folder / UNCERTAINTY_FILE).is_file()

    def report(self, folder: Path) -> RunReport:
        """Return the results of a finished call; raises `AlignAttnError` if its file is damaged."""
        content = read_json(folder / UNCERTAINTY_FILE)
        settings, splits = content["settings"], content["splits"]
        return RunReport(
            numbers=content,
            facts={"passes": f"{settings['passes']} with dropout", "noise": f"{settings['noise']:g}"},
            scores={
                f"{split} {inputs} {name}": percent(figure["value"])
                for split, by_inputs in splits.items()
                for inputs, figures in by_inputs.items()
                for name, figure in figures.items()
                if isinstance(figure, dict) and "value" in figure
            },
            config=yaml.safe_dump(settings),
        )
