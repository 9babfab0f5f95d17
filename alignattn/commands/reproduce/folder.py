"""The folder of one run of a table, `runs/<digest>` inside the results, its state, and the kept runs of a folder.

It holds `experiment.json` (the definition of the run), `run/` (the output of its command), `log.txt` (what it printed),
`seconds.txt` (its wall-clock and processor seconds) and, after a failure, `failure.txt` with the reason. The process
that executes the run holds its lock. The system releases the lock when the process ends, however it ends, so a run is
never executed twice at once.
"""

import json
import math
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from filelock import FileLock, Timeout

from alignattn.commands import get_command, results_of
from alignattn.commands.reproduce.definitions import PlannedCell
from alignattn.commands.reproduce.experiment import DATA_OPTION, Experiment, distinctive
from alignattn.reports.measures import State
from alignattn.training.methods import prediction_method
from alignattn.utils.command import OUTPUT_DIR, Command
from alignattn.utils.console import counted
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import read_json, read_record, write_json, write_text
from alignattn.utils.options import options_of

RUNS_FOLDER = "runs"
EXPERIMENT_FILE = "experiment.json"
OUTPUT_FOLDER = "run"
LOG_FILE = "log.txt"
FAILURE_FILE = "failure.txt"
SECONDS_FILE = "seconds.txt"
LOCK_FILE = ".lock"

COSTS = ("seconds", "processor_seconds")
"""The content of `seconds.txt`, in its order; runs of earlier versions lack the second number."""

SETTLED: Collection[State] = frozenset({"done", "unfit"})
"""States of a run that needs no work."""

NEEDED_RUN = "run"
"""The option that names the run whose result a command needs."""

OF_THE_MACHINE = frozenset({DATA_OPTION, "neighbors", "nltk_data", "use_cpu"})
"""Options that say where a run found its files and its processor: kept runs come from other machines."""


@dataclass(frozen=True)
class Status:
    """The state of a run.

    Attributes:
        state: whether it has finished.
        reason: why it failed or is not supported, in one line.
    """

    state: State
    reason: str | None = None


@dataclass(frozen=True)
class RunFolder:
    """The folder of a run.

    Attributes:
        results: the folder of all results.
        experiment: the definition of the run.
        kept: whether it only fills a table of finished runs: its options are plain data, which this version may not
            know.
    """

    results: Path
    experiment: Experiment
    kept: bool = False

    @classmethod
    def read(cls, path: Path) -> "RunFolder":
        """Return the folder at `path`."""
        experiment = read_record(path / EXPERIMENT_FILE, Experiment, "run")
        if experiment is None:
            raise AlignAttnError(f"{path} has no {EXPERIMENT_FILE}: move it away")
        folder = cls(path.parents[1], experiment)
        if folder.path != path:
            raise AlignAttnError(f"{path} contains another run than its name says: move it away")
        return folder

    @property
    def path(self) -> Path:
        """The folder."""
        return self.results / RUNS_FOLDER / self.experiment.digest

    @property
    def output(self) -> Path:
        """The folder that the command writes to."""
        return self.path / OUTPUT_FOLDER

    @cached_property
    def needed(self) -> "RunFolder | None":
        """The folder of the run that this one depends on."""
        needs = self.experiment.needs
        return None if needs is None else RunFolder(self.results, needs, self.kept)

    @property
    def command(self) -> Command:
        """The command of the run."""
        return get_command(self.experiment.command)

    @cached_property
    def values(self) -> Mapping[str, Any]:
        """The options of its command, by name."""
        run: dict[str, Any] = {}
        if self.needed is not None:
            folder = str(self.needed.output)
            takes_several = options_of(self.command.options)[NEEDED_RUN].is_list
            run = {NEEDED_RUN: [folder] if takes_several else folder}
        data_dir = self.experiment.data_dir
        place = {} if data_dir is None else {DATA_OPTION: data_dir}
        return {**run, **self.experiment.options, **place, OUTPUT_DIR: str(self.output)}

    @cached_property
    def options(self) -> Any:
        """The options of its command, resolved."""
        return self.command.resolve(self.values)

    @cached_property
    def reason_unsupported(self) -> str:
        """Why the run is not supported, such as a model that does not support its task; empty if it is supported."""
        if self.kept:
            # A run that exists was supported, and what this version does not know says nothing about the run.
            try:
                return "" if self.path.exists() else replace(self, kept=False).reason_unsupported
            except AlignAttnError:
                return ""
        if self.needed is None:
            options = self.options
            try:
                if options.task is not None:
                    options.check(options.task)
            except AlignAttnError as error:
                return str(error)
            return ""
        if reason := self.needed.reason_unsupported:
            return reason
        method = prediction_method(self.needed.options.training)
        if method is None or not results_of(self.experiment.command).needs_saved_model:
            return ""
        return f"--{method.switch} is not part of a saved model, and attacks need a saved model"

    @property
    def command_line(self) -> str:
        """The shell command that repeats the run."""
        line = self.command.prog.split()
        for name, value in self.values.items():
            values = value if isinstance(value, list) else [value]
            line += [f"--{name}", *(str(one).lower() if isinstance(one, bool) else str(one) for one in values)]
        return shlex.join(line)

    @property
    def cost(self) -> Mapping[str, float]:
        """The wall-clock and processor seconds of all attempts of the run, as far as they are known."""
        try:
            numbers = [float(word) for word in (self.path / SECONDS_FILE).read_text().split()]
        except (OSError, ValueError):
            return {}
        known = zip(COSTS, numbers, strict=False)
        return {name: seconds for name, seconds in known if math.isfinite(seconds)}

    @property
    def seconds(self) -> float:
        """The seconds of all attempts of the run; NaN if unknown."""
        return self.cost.get("seconds", math.nan)

    @property
    def cost_texts(self) -> dict[str, str]:
        """The cost in words, as far as it is known."""
        cost = self.cost
        took = {"run took": f"{cost['seconds']:.0f} s, start and evaluation included"} if "seconds" in cost else {}
        used = {"processor time": f"{cost['processor_seconds']:.0f} s"} if "processor_seconds" in cost else {}
        return took | used

    def add_cost(self, *seconds: float) -> None:
        """Add the seconds of another attempt, in the order of `COSTS`; a full disk is ignored."""
        earlier = self.cost
        total = [f"{earlier.get(name, 0.0) + spent:.1f}" for name, spent in zip(COSTS, seconds, strict=True)]
        with suppress(OSError):
            write_text(self.path / SECONDS_FILE, f"{' '.join(total)}\n")

    def status(self) -> Status:
        """Return the state; a folder of another run or version, or with a damaged result, has failed."""
        if self.reason_unsupported:
            return Status("unfit", self.reason_unsupported)
        if not self.path.exists():
            return Status("missing")
        if refusal := self.refusal:
            return Status("failed", refusal)
        try:
            RunFolder.read(self.path)
            if self.read_results() is not None:
                return Status("done")
        except AlignAttnError as error:
            return Status("failed", str(error))
        failure = self.path / FAILURE_FILE
        if failure.is_file():
            return Status("failed", " ".join(failure.read_text(encoding="utf-8", errors="replace").split()))
        return Status("missing")

    @property
    def refusal(self) -> str:
        """Why the command refuses the folder, such as one with another run's rows; empty if it does not.

        Such a folder stays as it is: the call that made it continues it.
        """
        check = results_of(self.experiment.command).check_folder
        try:
            if not self.kept and check and self.path.exists():
                resolve_name(check)(self.options)
        except AlignAttnError as error:
            return str(error)
        return "" if self.needed is None else self.needed.refusal

    def read_results(self) -> dict[str, Any] | None:
        """Return the numbers of the run, by the keys of a table's paths; None if it has not finished."""
        return read_results(self.output, results_of(self.experiment.command).file)

    def prepare(self) -> None:
        """Write the definition of the run, which says where its rows are now, and remove an earlier call's failure."""
        (self.path / FAILURE_FILE).unlink(missing_ok=True)
        write_json(self.path / EXPERIMENT_FILE, asdict(self.experiment))

    def lock(self) -> FileLock:
        """Acquire and return the lock; raises `Timeout` if another process holds it."""
        lock = FileLock(self.path / LOCK_FILE)
        lock.acquire(timeout=0)
        return lock

    def is_locked(self) -> bool:
        """Return whether a process executes it, or the run that it depends on, now."""
        try:
            self.lock().release()
        except Timeout:
            return True
        return self.needed is not None and self.needed.is_locked()


def folders_of(results: Path, cells: Iterable[PlannedCell], *, kept: bool = False) -> dict[str, RunFolder]:
    """Return the folders of the runs of cells by digest, in the order in which to execute them.

    Primary cells come first, and each seed of all rows before the next seed, so that the runs of an interrupted table
    can be paired. A run that another one depends on comes just before the first such run. `kept` is that of
    each `RunFolder`.
    """
    places = [(not cell.is_primary, index, run) for cell in cells for index, run in enumerate(cell.experiments)]
    runs = [run for *_, run in sorted(places, key=lambda place: place[:2])]
    folders: dict[str, RunFolder] = {}
    for run in runs:
        folder = RunFolder(results, run, kept)
        # A run that no supported run depends on is executed only if requested itself.
        if folder.needed is not None and not folder.reason_unsupported:
            folders.setdefault(folder.needed.experiment.digest, folder.needed)
        folders.setdefault(run.digest, folder)
    return folders


def read_results(folder: Path, file: str) -> dict[str, Any] | None:
    """Return the content of the results file of a run, or None if there is none; raises `AlignAttnError` on damage."""
    if not (folder / file).is_file():
        return None
    results = read_json(folder / file)
    if "tables" not in results:
        return results
    # Attacks on one run fill one line of one table.
    try:
        ((summary,),) = [table["summaries"] for table in results["tables"]]
        return dict(summary)
    except (ValueError, TypeError, LookupError) as error:
        raise AlignAttnError(f"{folder / file} is damaged or of another version: move it away") from error


def record_failure(path: Path, reason: str) -> None:
    """Write the reason of a failure, one line, to the folder of a run."""
    write_text(path / FAILURE_FILE, " ".join(reason.split()) + "\n")


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

    def find_all(self, wanted: Sequence[Experiment]) -> list[Experiment]:
        """Return the kept runs of a cell: those that draw rows by default, or else those from before that default."""
        drawing = [run.drawing() for run in wanted]
        is_any_kept = any(self._key(run) in self.runs for run in drawing)
        return list(map(self.find, drawing if is_any_kept else wanted))

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
