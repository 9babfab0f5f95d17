"""The kept runs of a results folder, found by their options as plain data."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from alignattn.commands.reproduce.experiment import Experiment, distinctive
from alignattn.commands.reproduce.folder import EXPERIMENT_FILE, RUNS_FOLDER, RunFolder
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.progress import counted

OF_THE_MACHINE = frozenset({"data_dir", "neighbors", "nltk_data", "use_cpu"})
"""Options that say where a run found its files and its processor: kept runs come from other machines."""


class KeptRuns:
    """The runs of a results folder, finished or not.

    No option is parsed, checked or given a default, so that runs of earlier versions stay readable.

    Args:
        results: the folder.
    """

    def __init__(self, results: Path) -> None:
        self.runs: dict[str, list[Experiment]] = {}
        paths = sorted(path.parent for path in (results / RUNS_FOLDER).glob(f"*/{EXPERIMENT_FILE}"))
        for path in counted(paths, "find", len(paths), "run"):
            try:
                experiment = RunFolder.read(path).experiment
            except AlignAttnError:
                # The table reports a damaged folder at the run whose digest it has.
                continue
            self.runs.setdefault(_key(experiment.command, experiment.all_options), []).append(experiment)

    def find(self, wanted: Experiment) -> Experiment:
        """Return the kept run with the options of a wanted one, or the wanted one, which is then missing."""
        found = self.runs.get(_key(wanted.command, wanted.all_options), [])
        if len(found) > 1 and wanted.digest not in {one.digest for one in found}:
            raise AlignAttnError(
                f"the runs {' and '.join(one.digest for one in found)} differ only in the machine that made them: give "
                f"its {' or '.join(f'--{name}' for name in sorted(OF_THE_MACHINE & found[0].all_options.keys()))}"
            )
        return found[0] if len(found) == 1 else wanted


def _key(command: str, options: Mapping[str, Any]) -> str:
    """Return the command and the options that tell a run from others, as JSON."""
    kept = {name: value for name, value in distinctive(options).items() if name not in OF_THE_MACHINE}
    return json.dumps([command, kept], sort_keys=True)
