"""Runs of a custom program, a command or a Python function, whose predictions alignattn scores for a table.

The program gets a seed, the rows to train on, the rows to predict without their labels, and an empty folder; it writes
`predictions.csv`, `.jsonl` or `.parquet` there. It does not need alignattn.
"""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from alignattn.finetuning.data_options import DataOptions
from alignattn.finetuning.options import RunOptions
from alignattn.tasks.task import BY_SEED
from alignattn.utils.command import Command, TableResults
from alignattn.utils.digests import digest_of_files
from alignattn.utils.errors import AlignAttnError, unknown
from alignattn.utils.option import REQUIRED, OutputDir, Seed, option
from alignattn.utils.options import Options, options_of, resolve, values_of

PROGRAM = "program"
"""Name of the command, which only tables run."""

RUN_OPTION, RUN_DIGEST_OPTION = "run", "run_sha256"

SEED, TRAIN_FILE, TEST_FILE, OUTPUT_DIR = "seed", "train_file", "test_file", "output_dir"
GIVEN = (SEED, TRAIN_FILE, TEST_FILE, OUTPUT_DIR)
"""Placeholders of a command's words, and parameters of a function."""
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")
FUNCTION = re.compile(r"[^:]+:[A-Za-z_]\w*")

CALL = Path(__file__).with_name("call.py")
"""Program that calls a function."""

OUTPUT_FOLDER, LOG_FILE = "output", "program.log"
"""In the folder of a run: the folder that the program writes to, and what it prints."""
TRAIN_ROWS, TEST_ROWS = "train.jsonl", "test.jsonl"
PROCESS_FILE = "process.json"
"""Records the process of the program while it runs."""

NO_MODEL = "program"
"""Placeholder for the model in the options of `finetune` on the same rows."""

OF_ENCODING = ("max_length", "preprocessing_num_workers", "fan_out", "features", "doc_stride", "n_best_size")
OF_OTHER_TASKS = ("max_answer_length", "num_beams")
"""Data options that do not change which rows there are."""


@dataclass(frozen=True, kw_only=True)
class ProgramOptions(Options):
    """A program, its seed and its rows."""

    data: DataOptions
    run: tuple[str, ...] = option(REQUIRED, "A command's words, or a function as FILE.py:NAME or MODULE:NAME.")
    run_sha256: str | None = option(None, "SHA-256 of the files that `run` names.", metavar="HEX")
    seed: Seed = option(REQUIRED, "Seed of the run.")
    output_dir: OutputDir = option(REQUIRED, "Folder of the run.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data.has_evaluation_rows:
            raise AlignAttnError("a row with `run` needs rows to predict: give validation_file or validation_share")
        if self.is_function:
            if not FUNCTION.fullmatch(self.run[0]):
                raise AlignAttnError(
                    f"run {self.run[0]!r}: give a function as FILE.py:NAME or MODULE:NAME, or the words of a command "
                    'as a list, such as [python, train.py, --seed, "{seed}", …]'
                )
            return
        named = {name for word in self.run for name in PLACEHOLDER.findall(word)}
        for name in sorted(named.difference(GIVEN)):
            raise unknown(f"placeholder in run `{self.text}`", f"{{{name}}}", [f"{{{one}}}" for one in GIVEN])
        for name, use in ((TEST_FILE, "predict"), (OUTPUT_DIR, "write its predictions to")):
            if name not in named:
                raise AlignAttnError(f"run `{self.text}` lacks {{{name}}}, which the program must {use}")
        if SEED not in named and not (self.data.take == BY_SEED and TRAIN_FILE in named):
            raise AlignAttnError(
                f"run `{self.text}` lacks {{seed}}, so all its runs would be equal: pass it on, or let the "
                "training rows depend on the seed (max_train_samples with take: seed)"
            )

    @property
    def is_function(self) -> bool:
        """Whether it is a function and not a command."""
        return len(self.run) == 1 and not PLACEHOLDER.search(self.run[0])

    @property
    def text(self) -> str:
        """The words as printed."""
        return " ".join(self.run)

    @property
    def words(self) -> list[str]:
        """The command, each placeholder replaced by its value; for a function, the command that calls it."""
        folder = Path(self.output_dir).absolute()
        values = {
            SEED: str(self.seed),
            TRAIN_FILE: str(folder / TRAIN_ROWS),
            TEST_FILE: str(folder / TEST_ROWS),
            OUTPUT_DIR: str(folder / OUTPUT_FOLDER),
        }
        if self.is_function:
            return [*call_words(self.run[0]), *(f"{name}={value}" for name, value in values.items())]
        return [PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in self.run]

    @cached_property
    def rows(self) -> RunOptions:
        """The options of a run of `finetune` on the same rows."""
        defaults = options_of(DataOptions)
        data = {name: value for name, value in values_of(self.data).items() if value != defaults[name].default}
        return resolve(RunOptions, {**data, "model": NO_MODEL, "seed": self.seed, "output_dir": self.output_dir})


def call_words(function: str) -> list[str]:
    """Return the command that calls a function, without its values."""
    return [sys.executable, str(CALL), function]


def run_digest(run: str | Sequence[Any]) -> str:
    """Return the SHA-256 of the files that a command's words name, or of a function's file.

    A changed file thus makes another run; the modules that it imports do not count.
    """
    if isinstance(run, str):
        origin = run.rpartition(":")[0]
        file = Path(origin) if origin.endswith(".py") else _module_file(origin)
        return digest_of_files({origin: file} if file is not None and file.is_file() else {})
    return digest_of_files({word: Path(word) for word in map(str, run) if os.path.isfile(word)})


def _module_file(module: str) -> Path | None:
    """The file that `import module` would run in the working directory; None if there is none. Imports nothing."""
    PathFinder.invalidate_caches()  # the user may just have written the module
    parts, spec = module.split("."), None
    places: Sequence[str] = [os.getcwd(), *sys.path]
    for end in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:end]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    return None if spec is None or spec.origin is None else Path(spec.origin)


COMMAND = Command(
    PROGRAM,
    "run a custom program for a table",
    ProgramOptions,
    run="alignattn.commands.reproduce.program.command:run_program",
    results=TableResults(
        "alignattn.commands.reproduce.program.result_reader:ProgramReader", withheld=(*OF_ENCODING, *OF_OTHER_TASKS)
    ),
)
