"""The kept runs of a results folder, found by their options as plain data."""

import json
from collections.abc import Collection
from pathlib import Path

from alignattn.commands.reproduce.experiment import DATA_OPTION, Experiment, distinctive
from alignattn.commands.reproduce.folder import EXPERIMENT_FILE, RUNS_FOLDER, RunFolder
from alignattn.utils.console import counted
from alignattn.utils.errors import AlignAttnError

OF_THE_MACHINE = frozenset({DATA_OPTION, "neighbors", "nltk_data", "use_cpu"})
"""Options that say where a run found its files and its processor: kept runs come from other machines."""


class KeptRuns:
    """The runs of a results folder, finished or not.

    No option is parsed, checked or given a default, so that runs of earlier versions stay readable.

    Args:
        results: the folder.
        ignored: options in which a kept run and a wanted one may differ.
    """

    def __init__(self, results: Path, ignored: Collection[str] = OF_THE_MACHINE) -> None:
        self.ignored = frozenset(ignored)
        self.runs: dict[str, list[Experiment]] = {}
        paths = sorted(path.parent for path in (results / RUNS_FOLDER).glob(f"*/{EXPERIMENT_FILE}"))
        for path in counted(paths, "find", len(paths), "run"):
            try:
                experiment = RunFolder.read(path).experiment
            except AlignAttnError:
                # The table reports a damaged folder at the run whose digest it has.
                continue
            self.runs.setdefault(self._key(experiment), []).append(experiment)

    def find(self, wanted: Experiment) -> Experiment:
        """Return the kept run with the options of a wanted one, or the wanted one, which is then missing."""
        found = self.runs.get(self._key(wanted), [])
        exact = [one for one in found if one.all_options == wanted.all_options]
        if len(found) > 1 and not exact:
            names = sorted(self.ignored.intersection({name for one in found for name in one.all_options}))
            raise AlignAttnError(
                f"the runs {' and '.join(one.digest for one in found)} differ only in the machine that made them: give "
                f"its {' or '.join(f'--{name}' for name in names)}"
            )
        return [*exact, *found, wanted][0].with_rows_in(wanted.data_dir)

    def _key(self, run: Experiment) -> str:
        """Return the command and the options that tell a run from others, as JSON."""
        values = {name: value for name, value in distinctive(run.all_options).items() if name not in self.ignored}
        return json.dumps([run.command, values], sort_keys=True)
