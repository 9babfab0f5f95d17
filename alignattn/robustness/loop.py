"""Attack the rows of a split one by one, in an order and with random numbers that no interruption changes."""

import hashlib
import json
import os
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from filelock import FileLock, Timeout

from alignattn.robustness.library import load_textattack
from alignattn.robustness.recipe_names import Outcome
from alignattn.robustness.record_files import cut_torn_line, header_path, read_run, write_header
from alignattn.robustness.records import AttackHeader, AttackRecord, AttackRun, AttackSettings
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import write_text
from alignattn.utils.folder_lock import holder_of, note_holder
from alignattn.utils.progress import progress
from alignattn.utils.shard import WHOLE, Shard

ROWS_SCORED_AT_ONCE = 256
NUMPY_SEEDS = 2**32

# What the machine, an installation or a setting is to blame for, and no text: it would befall every row.
FATAL = (AlignAttnError, OSError, ImportError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)


@dataclass(frozen=True)
class AttackRow:
    """A row to attack.

    Attributes:
        index: its number in the split, from 0.
        texts: by column, in the order in which the model reads them.
        label: the right class.
    """

    index: int
    texts: Mapping[str, str]
    label: int


@dataclass(frozen=True)
class AttackJob:
    """What is to be attacked and recorded.

    Attributes:
        rows: those of the split in order.
        records_path: the file to write or to go on with, ending in `.jsonl`; its header is written beside it.
        settings: what the records are said to be of.
        shard: which part of the rows to attack.
        left_out: numbers of the split's rows that are not among `rows`, for they cannot be used.
        versions: of the packages at work, for the header.
        labels: the names of the classes, in order, for the header.
    """

    rows: Sequence[AttackRow]
    records_path: Path
    settings: AttackSettings
    shard: Shard = WHOLE
    left_out: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows or self.settings.num_examples < 1:
            raise AlignAttnError(
                f"there is nothing to attack: {len(self.rows)} rows, {self.settings.num_examples} examples wanted"
            )

    def header(self, rows_walked: int) -> AttackHeader:
        """Return the header of its records, which are of the first `rows_walked` rows."""
        return AttackHeader(
            self.settings,
            self.shard,
            rows_walked,
            len(self.rows),
            self.left_out,
            self._rows_digest,
            self.versions,
            self.labels,
        )

    @cached_property
    def _rows_digest(self) -> str:
        total = hashlib.sha256()
        for row in self.rows:
            total.update(json.dumps([row.index, list(row.texts.items()), row.label]).encode())
        return total.hexdigest()

    def earlier(self) -> AttackRun | None:
        """Return what is recorded already, if anything is."""
        if not self.records_path.exists() and not header_path(self.records_path).exists():
            return None
        run = read_run(self.records_path)
        # A header alone says only what somebody was about to do.
        if not run.records:
            return None
        self._check_goes_on(run)
        return run

    def _check_goes_on(self, run: AttackRun) -> None:
        """Refuse to go on with records of another run; one of fewer examples is the beginning of this one."""
        there, wanted = run.header.settings.num_examples, self.settings.num_examples
        header = replace(run.header, settings=replace(run.header.settings, num_examples=wanted))
        here = self.header(run.header.rows)
        if header != here:
            both = "name both runs in one call, " if header.settings.model != here.settings.model else ""
            raise AlignAttnError(
                f"{run.path} is of another run: {_difference(header, here)}; {both}give another --output_dir, or move "
                "it away"
            )
        if there > wanted:
            raise AlignAttnError(
                f"{run.path} is of {there} examples: ask for as many or more, or give another --output_dir for {wanted}"
            )


def attack_rows(attack: Any, job: AttackJob) -> AttackRun:
    """Attack rows in their order until `num_examples` were attacked, and write each record as it comes.

    Rows that the model gets wrong are skipped and do not count. Which rows these are is asked first, so that every
    shard knows where to stop: a merge of all shards is what one run writes, byte by byte. Called again after a kill, or
    with more examples, it goes on behind the last whole record.

    Random numbers are seeded for each row with the run's seed plus its index, and nothing that was computed for one
    row is kept for another: a score may differ in its last bits with what else is in the batch.

    Args:
        attack: a `textattack.Attack` whose goal asks a `TaskModelWrapper`, which is left to cut batches itself.
        job: the rows, and where their records go.

    Returns:
        The header and all records of the file.
    """
    hand_over_whole_steps(attack)
    with _sole_writer(job.records_path):
        header, done = _begin(attack, job)
        _attack_all(attack, job, header.rows, done)
    return read_run(job.records_path)


def _attack_all(attack: Any, job: AttackJob, rows_walked: int, done: Sequence[AttackRecord]) -> None:
    """Attack the rows behind those that are done, and append their records."""
    rows = job.shard.deal(job.rows[:rows_walked])
    counts = Counter(record.outcome for record in done)
    with (
        job.records_path.open("ab") as file,
        progress(_describe(job.settings), len(rows), "row", initial=len(done)) as bar,
    ):
        for row in rows[len(done) :]:
            record = attack_row(attack, row, job.settings)
            # One write, on the disk before the next attack begins: a kill loses this row or nothing.
            file.write(record.to_line().encode())
            file.flush()
            os.fsync(file.fileno())
            counts[record.outcome] += 1
            bar.set_postfix_str(_running_rate(counts), refresh=False)
            bar.update()


def hand_over_whole_steps(attack: Any) -> None:
    """Have an attack give all texts of a step to its wrapper at once, which sorts them by length and cuts batches."""
    attack.goal_function.batch_size = sys.maxsize


def attack_row(attack: Any, row: AttackRow, settings: AttackSettings) -> AttackRecord:
    """Attack one row; what a strange text or label raises ends in a record, skipped and with its error."""
    textattack = load_textattack()
    goal = attack.goal_function
    seed = settings.seed + row.index
    _seed(seed)
    attack.clear_cache()
    goal.model.clear_cache()
    record = AttackRecord(
        index=row.index,
        recipe=settings.recipe,
        outcome="skipped",
        label=row.label,
        original=dict(row.texts),
        perturbed=None,
        original_scores=(),
        perturbed_scores=None,
        queries=0,
        words=0,
        words_changed=0,
        seed=seed,
    )
    try:
        text = textattack.shared.AttackedText(OrderedDict(row.texts))
        scores = goal.model([text.tokenizer_input])[0].tolist()
        record = replace(record, words=text.num_words, original_scores=scores, queries=1)
        if not 0 <= row.label < len(scores):
            return replace(record, error=f"label {row.label} is none of the model's {len(scores)} classes")
        return _with_result(record, attack.attack(text, row.label), textattack.attack_results)
    except FATAL:
        raise
    except Exception as error:
        # NLTK's way to say that its data are missing; subclasses (KeyError, IndexError) are a text's doing.
        if type(error) is LookupError:
            raise AlignAttnError(f"the attack lacks data of NLTK: {one_line(error)}") from error
        return replace(record, error=f"{type(error).__name__}: {one_line(error)}")


def merge(paths: Sequence[Path], out: Path) -> AttackRun:
    """Write the records of all shards of a run to one file, as if it had been run in one.

    Args:
        paths: the files of records, in any order, each with its header beside it.
        out: the file to write, ending in `.jsonl`; one that holds just that is left as it is.
    """
    if not paths:
        raise AlignAttnError("there is nothing to merge: give the files of all shards")
    runs = [read_run(path) for path in paths]
    whole = replace(runs[0].header, shard=WHOLE)
    for run in runs:
        if replace(run.header, shard=WHOLE) != whole or run.header.shard.count != runs[0].header.shard.count:
            raise AlignAttnError(
                f"{run.path} and {runs[0].path} are of different runs: {_difference(run.header, runs[0].header)}"
            )
        check_finished(run)
    count = runs[0].header.shard.count
    if sorted(run.header.shard.number for run in runs) != list(range(1, count + 1)):
        given = ", ".join(str(run.header.shard) for run in runs)
        raise AlignAttnError(f"{out} is made of each of {count} shards once, and there are {given}")
    records = tuple(sorted((record for run in runs for record in run.records), key=lambda record: record.index))
    if not out.exists():
        write_header(out, whole)
        write_text(out, "".join(record.to_line() for record in records))
    merged = read_run(out)
    if (merged.header, merged.records) != (whole, records):
        raise AlignAttnError(f"{out} is there, and not what its shards make: move it or them away")
    return merged


def check_finished(run: AttackRun) -> None:
    """Refuse a run some of whose rows are still to be attacked."""
    if not run.is_finished:
        part = "" if run.header.shard == WHOLE else f" of shard {run.header.shard}"
        raise AlignAttnError(
            f"{run.path} holds {len(run.records)} of the {len(run.header.row_numbers)} rows{part}: start it again to "
            "finish it"
        )


@contextmanager
def _sole_writer(records_path: Path) -> Iterator[None]:
    """Keep other processes from writing the same records."""
    records_path.parent.mkdir(parents=True, exist_ok=True)
    lock_file = records_path.with_name(f".{records_path.name}.lock")
    try:
        with FileLock(lock_file, timeout=0):
            note_holder(lock_file)
            yield
    except Timeout as error:
        raise AlignAttnError(
            f"another process writes {records_path} ({holder_of(lock_file)}): wait for it, give another --output_dir, "
            "or attack in shards"
        ) from error


def _begin(attack: Any, job: AttackJob) -> tuple[AttackHeader, tuple[AttackRecord, ...]]:
    """The header of the file, written unless it is there, and the records that are there already."""
    earlier = job.earlier()
    if earlier is not None:
        cut_torn_line(job.records_path)
        if earlier.header.settings == job.settings:
            return earlier.header, earlier.records
    # The model says which rows it takes.
    header = job.header(_rows_to_walk(attack, job.rows, job.settings.num_examples))
    write_header(job.records_path, header)
    return header, () if earlier is None else earlier.records


def _rows_to_walk(attack: Any, rows: Sequence[AttackRow], num_examples: int) -> int:
    """How many of the first rows it takes to attack `num_examples`: those that the model gets right."""
    attacked = 0
    for start in range(0, len(rows), ROWS_SCORED_AT_ONCE):
        some = rows[start : start + ROWS_SCORED_AT_ONCE]
        predictions = _predictions(attack.goal_function.model, some)
        for walked, (row, prediction) in enumerate(zip(some, predictions, strict=True), start + 1):
            attacked += prediction == row.label
            if attacked == num_examples:
                return walked
    return len(rows)


def _predictions(model: Any, rows: Sequence[AttackRow]) -> list[int | None]:
    """The class that a model gives each row; None for one that it cannot read, whose record will say why."""
    try:
        classes: list[int | None] = model([tuple(row.texts.values()) for row in rows]).argmax(dim=-1).tolist()
        return classes
    except FATAL:
        raise
    except Exception:
        return [None] if len(rows) == 1 else [_predictions(model, [row])[0] for row in rows]


def _with_result(record: AttackRecord, result: Any, results: ModuleType) -> AttackRecord:
    """The record with what TextAttack's result, of a class of `results`, tells."""
    outcomes: dict[type, Outcome] = {
        results.SuccessfulAttackResult: "succeeded",
        results.FailedAttackResult: "failed",
        results.SkippedAttackResult: "skipped",
    }
    record = replace(record, outcome=outcomes[type(result)], queries=int(result.num_queries))
    if record.outcome == "skipped":
        return record
    before, after = result.original_result.attacked_text, result.perturbed_result.attacked_text
    columns = after.column_labels
    inputs = (after.tokenizer_input,) if len(columns) == 1 else after.tokenizer_input
    return replace(
        record,
        perturbed=dict(zip(columns, inputs, strict=True)),
        perturbed_scores=result.perturbed_result.raw_output.tolist(),
        words_changed=int(before.words_diff_num(after)),
    )


def _seed(seed: int) -> None:
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    torch.manual_seed(seed)


def _difference(header: AttackHeader, other: AttackHeader) -> str:
    """The first thing in which two headers differ."""
    for name, value, other_value in _facts(header, other):
        if value != other_value:
            return f"{name} {_in_words(value)} and {_in_words(other_value)}"
    return "nothing"


def _in_words(value: Any) -> str:
    return " and ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def _facts(header: AttackHeader, other: AttackHeader) -> Iterator[tuple[str, Any, Any]]:
    if header.settings.model != other.settings.model:
        yield "run", header.settings.run, other.settings.run
    for setting in fields(AttackSettings):
        if setting.compare:
            yield setting.name, getattr(header.settings, setting.name), getattr(other.settings, setting.name)
    yield "rows available", header.rows_available, other.rows_available
    yield "rows left out", header.left_out, other.left_out
    yield "SHA-256 of the rows", header.rows_digest, other.rows_digest
    yield "rows walked", header.rows, other.rows
    yield "shard", str(header.shard), str(other.shard)


def _describe(settings: AttackSettings) -> str:
    return f"{settings.recipe} {settings.task} {settings.attention}"


def _running_rate(counts: Mapping[Outcome, int]) -> str:
    attacked = counts["failed"] + counts["succeeded"]
    return f"{100 * counts['failed'] / attacked:.1f} % of {attacked} failed" if attacked else "none attacked"
