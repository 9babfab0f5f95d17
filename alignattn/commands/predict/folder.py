"""The Parquet files of a folder, predicted one after the other or on a cluster: what is done is not done again."""

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from alignattn.commands.predict import PredictOptions
from alignattn.commands.predict.inputs import PARQUET, Source, file_source
from alignattn.finetuning.run_folder import FinishedRun
from alignattn.robustness.resources import label_model
from alignattn.utils.digests import model_digest
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import OWN_PREFIX, entries, write_json
from alignattn.utils.folder_lock import folder_lock
from alignattn.utils.json_records import read_json
from alignattn.utils.shard import WHOLE, Shard

RECORD_FILE = "predictions.json"
"""Of the folder of predictions: what they are of."""

SHARD_PREFIX = f"{OWN_PREFIX}-shard-"
"""How the names begin of the folders that are locked for shards."""

HIDDEN = (".", "_")
"""How the names of files begin that are no rows, as those that other programs keep of a folder of Parquet files."""


@dataclass(frozen=True)
class Job:
    """A file to predict.

    Attributes:
        source: the file.
        target: where its predictions go.
    """

    source: Path
    target: Path


def folder_jobs(options: PredictOptions, output: Path, run: FinishedRun) -> dict[Job, Source]:
    """Return the files of the shard and their rows, whose columns are checked.

    Args:
        options: of the call.
        output: the folder of the predictions.
        run: whose task reads them.
    """
    folder = Path(str(options.file))
    if output.resolve().is_relative_to(folder.resolve()):
        raise AlignAttnError(f"--output_dir {output} lies in {folder}, whose files are the rows: give another")
    names = sorted(
        path.relative_to(folder)
        for path in folder.rglob(f"*{PARQUET}")
        if path.is_file() and not any(part.startswith(HIDDEN) for part in path.relative_to(folder).parts)
    )
    if not names:
        raise AlignAttnError(f"{folder} holds no Parquet file but hidden ones: give another to --file")
    jobs = [Job(folder / name, output / name) for name in options.part.deal(names)]
    return {job: file_source(job.source, run.task, may_be_empty=True) for job in jobs}


@contextmanager
def writing(output: Path, part: Shard) -> Iterator[None]:
    """Keep other processes from writing a shard of a folder of predictions, or all of it; they wait for one another.

    Who writes all holds the folder, and who writes a shard holds that, and the folder for as long as it takes to begin:
    while all is written no shard begins, and all waits for those that have begun.
    """
    with ExitStack() as held, ExitStack() as at_first:
        (held if part == WHOLE else at_first).enter_context(folder_lock(output))
        if part == WHOLE:
            for shard in sorted(output.glob(f"{SHARD_PREFIX}*")):
                with folder_lock(shard):
                    pass
        else:
            held.enter_context(folder_lock(output / f"{SHARD_PREFIX}{part.number}-of-{part.count}"))
        at_first.close()
        yield


def check_record(output: Path, run: FinishedRun, settings: dict[str, Any]) -> None:
    """Refuse a folder of other predictions or other files; note in a new one what it holds.

    Args:
        output: the folder.
        run: that predicts.
        settings: options that make other predictions.
    """
    digest = model_digest(run.folder)
    record = {"run": label_model(run.folder, digest), "model": digest, "settings": settings}
    path = output / RECORD_FILE
    if not path.is_file():
        if output.is_dir() and entries(output):
            raise AlignAttnError(f"{output} exists and holds no predictions: give another --output_dir")
        write_json(path, record)
    written = read_json(path)
    differing = [name for name in settings if written.get("settings", {}).get(name) != settings[name]]
    if written.get("model") != digest:
        raise AlignAttnError(f"{output} holds predictions of {written.get('run')}: give another --output_dir")
    if differing:
        raise AlignAttnError(f"{output} holds other predictions ({', '.join(differing)}): give another --output_dir")


def pending(jobs: dict[Job, Source]) -> dict[Job, Source]:
    """Return the jobs that are not done, and say how many are; a file that is not what was predicted is refused."""
    left = {}
    for job, source in jobs.items():
        if not job.target.exists():
            left[job] = source
        elif (rows := pq.read_metadata(job.target).num_rows) != source.num_rows:
            raise AlignAttnError(
                f"{job.target} has {rows} rows and {job.source} {source.num_rows}: it has changed; remove the former"
            )
    if len(left) < len(jobs):
        print(f"{len(jobs) - len(left)} of {len(jobs)} files are predicted already", file=sys.stderr)
    return left
