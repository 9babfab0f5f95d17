"""Attack the rows of a split one by one; an interruption changes neither order nor random numbers."""

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
from alignattn.robustness.records import (
    AttackHeader,
    AttackRecord,
    AttackRun,
    AttackSettings,
    header_path,
    read_run,
    write_header,
)
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import write_text
from alignattn.utils.folder_lock import holder_of, note_holder
from alignattn.utils.progress import progress
from alignattn.utils.shard import WHOLE, Shard

ROWS_PER_PREDICTION = 256
NUMPY_SEEDS = 2**32

# Caused by the machine, an installation or a setting, not by a text: every row would fail.
FATAL = (AlignAttnError, OSError, ImportError, MemoryError, torch.OutOfMemoryError, torch.AcceleratorError)


@dataclass(frozen=True)
class AttackRow:
    """A row to attack.

    Attributes:
        index: its number in the split, from 0.
        texts: the texts by column, in the order in which the model reads them.
        label: the correct class.
    """

    index: int
    texts: Mapping[str, str]
    label: int


@dataclass(frozen=True)
class AttackJob:
    """What to attack and record.

    Attributes:
        rows: the usable rows of the split in order.
        records_path: the file to write or continue, ending in `.jsonl`; its header is written next to it.
        settings: the settings, for the header.
        shard: the part of the rows to attack.
        left_out: numbers of the split's unusable rows.
        versions: the versions of the packages, for the header.
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
                f"there is nothing to attack: {len(self.rows)} rows, --num_examples {self.settings.num_examples}"
            )

    @cached_property
    def _rows_digest(self) -> str:
        total = hashlib.sha256()
        for row in self.rows:
            total.update(json.dumps([row.index, list(row.texts.items()), row.label]).encode())
        return total.hexdigest()

    def header(self, num_rows: int) -> AttackHeader:
        """Return the header of records of the first `num_rows` rows."""
        return AttackHeader(
            self.settings,
            self.shard,
            num_rows,
            len(self.rows),
            self.left_out,
            self._rows_digest,
            self.versions,
            self.labels,
        )

    def earlier(self) -> AttackRun | None:
        """Return the run that is already recorded, if any.

        Raises:
            AlignAttnError: if it is another run; a run of fewer examples is the beginning of this one.
        """
        if not self.records_path.exists() and not header_path(self.records_path).exists():
            return None
        run = read_run(self.records_path)
        # With a header alone, no row has been attacked.
        if not run.records:
            return None
        there, wanted = run.header.settings.num_examples, self.settings.num_examples
        header = replace(run.header, settings=replace(run.header.settings, num_examples=wanted))
        here = self.header(run.header.rows)
        if header != here:
            both = "give both runs to one call, " if header.settings.model != here.settings.model else ""
            raise AlignAttnError(
                f"{run.path} belongs to another run: {_difference(header, here)}; {both}give another --output_dir, "
                "or move it away"
            )
        if there > wanted:
            raise AlignAttnError(
                f"{run.path} has {there} examples, more than {wanted}: raise --num_examples, or give another "
                "--output_dir"
            )
        return run


def attack_rows(attack: Any, job: AttackJob) -> AttackRun:
    """Attack rows in their order until `num_examples` were attacked, and write each record at once.

    Rows that the model misclassifies are skipped and do not count. They are found first, so that every shard knows
    where to stop: merged shards equal a whole run byte by byte. Called again after a kill, or with more examples, it
    continues after the last complete record.

    The seed of each row is the run's plus its index, and no result of one row is cached for another, because the last
    bits of a score may depend on the rest of the batch.

    Args:
        attack: a `textattack.Attack` whose goal queries a `TaskModelWrapper`, which makes the batches itself.
        job: the rows and the file.
    """
    pass_whole_steps(attack)
    settings, path = job.settings, job.records_path
    with _file_lock(path):
        earlier = job.earlier()
        done = () if earlier is None else earlier.records
        if earlier is None or earlier.header.settings != settings:
            write_header(path, job.header(_count_rows(attack, job.rows, settings.num_examples)))
        rows = job.shard.deal(job.rows[: read_run(path, truncate=True).header.rows])
        counts = Counter(record.outcome for record in done)
        description = f"{settings.recipe} {settings.task} {settings.attention}"
        with path.open("ab") as file, progress(description, len(rows), "row", initial=len(done)) as bar:
            for row in rows[len(done) :]:
                record = attack_row(attack, row, settings)
                # One write, synced before the next attack: a kill loses this row or nothing.
                file.write(record.to_line().encode())
                file.flush()
                os.fsync(file.fileno())
                counts[record.outcome] += 1
                attacked = counts["failed"] + counts["succeeded"]
                percent = f"{100 * counts['failed'] / attacked:.1f} %" if attacked else "none"
                bar.set_postfix_str(f"{percent} of {attacked} failed", refresh=False)
                bar.update()
    return read_run(path)


def pass_whole_steps(attack: Any) -> None:
    """Make an attack pass all texts of a step to its wrapper at once, which sorts them by length and makes batches."""
    attack.goal_function.batch_size = sys.maxsize


def attack_row(attack: Any, row: AttackRow, settings: AttackSettings) -> AttackRecord:
    """Attack one row; an error caused by a strange text or label is recorded, and the row skipped."""
    textattack = load_textattack()
    goal = attack.goal_function
    seed = settings.seed + row.index
    random.seed(seed)
    np.random.seed(seed % NUMPY_SEEDS)
    torch.manual_seed(seed)
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
            return replace(record, error=f"label {row.label} is not one of the model's {len(scores)} classes")
        return _with_result(record, attack.attack(text, row.label), textattack.attack_results)
    except FATAL:
        raise
    except Exception as error:
        # NLTK raises it for missing data; its subclasses (KeyError, IndexError) come from a text.
        if type(error) is LookupError:
            raise AlignAttnError(f"the attack needs missing data of NLTK: {one_line(error)}") from error
        return replace(record, error=f"{type(error).__name__}: {one_line(error)}")


def _with_result(record: AttackRecord, result: Any, results: ModuleType) -> AttackRecord:
    """Return the record with TextAttack's result, of a class of `results`."""
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


def merge(paths: Sequence[Path], out: Path) -> AttackRun:
    """Write the records of all shards of a run to one file, as if the run had no shards.

    Args:
        paths: the files of records, in any order, each with its header next to it.
        out: the file to write, ending in `.jsonl`; if it has the same records already, it does not change.
    """
    if not paths:
        raise AlignAttnError("there is nothing to merge: give the files of all shards")
    runs = [read_run(path) for path in paths]
    whole = replace(runs[0].header, shard=WHOLE)
    count = runs[0].header.shard.count
    for run in runs:
        if replace(run.header, shard=WHOLE) != whole or run.header.shard.count != count:
            raise AlignAttnError(
                f"{run.path} and {runs[0].path} belong to different runs: {_difference(run.header, runs[0].header)}"
            )
        check_finished(run)
    if sorted(run.header.shard.number for run in runs) != list(range(1, count + 1)):
        given = ", ".join(str(run.header.shard) for run in runs)
        raise AlignAttnError(f"{out} needs each of {count} shards once, and there are {given}")
    records = tuple(sorted((record for run in runs for record in run.records), key=lambda record: record.index))
    if not out.exists():
        write_header(out, whole)
        write_text(out, "".join(record.to_line() for record in records))
    merged = read_run(out)
    if (merged.header, merged.records) != (whole, records):
        raise AlignAttnError(f"{out} exists and differs from the merged shards: move it or the shards away")
    return merged


def check_finished(run: AttackRun) -> None:
    """Refuse a run with missing rows."""
    if not run.is_finished:
        part = "" if run.header.shard == WHOLE else f" of shard {run.header.shard}"
        raise AlignAttnError(
            f"{run.path} holds {len(run.records)} of the {len(run.header.row_numbers)} rows{part}: run its command "
            "again"
        )


@contextmanager
def _file_lock(records_path: Path) -> Iterator[None]:
    """Refuse to write records that another process writes."""
    records_path.parent.mkdir(parents=True, exist_ok=True)
    lock_file = records_path.with_name(f".{records_path.name}.lock")
    try:
        with FileLock(lock_file, timeout=0):
            note_holder(lock_file)
            yield
    except Timeout as error:
        raise AlignAttnError(
            f"another process writes to {records_path} ({holder_of(lock_file)}): wait for it, give another "
            "--output_dir, or attack in shards"
        ) from error


def _count_rows(attack: Any, rows: Sequence[AttackRow], num_examples: int) -> int:
    """Return how many of the first rows include `num_examples` that the model classifies correctly."""
    attacked = 0
    for start in range(0, len(rows), ROWS_PER_PREDICTION):
        some = rows[start : start + ROWS_PER_PREDICTION]
        predictions = _predictions(attack.goal_function.model, some)
        for count, (row, prediction) in enumerate(zip(some, predictions, strict=True), start + 1):
            attacked += prediction == row.label
            if attacked == num_examples:
                return count
    return len(rows)


def _predictions(model: Any, rows: Sequence[AttackRow]) -> list[int | None]:
    """Return the predicted class of each row; None if the model cannot read it, which its record will explain."""
    try:
        classes: list[int | None] = model([tuple(row.texts.values()) for row in rows]).argmax(dim=-1).tolist()
        return classes
    except FATAL:
        raise
    except Exception:
        return [None] if len(rows) == 1 else [_predictions(model, [row])[0] for row in rows]


def _difference(header: AttackHeader, other: AttackHeader) -> str:
    """Return the first difference of two headers, in words."""
    one, two = _facts(header), _facts(other)
    for name in one:
        # The same model may have several names.
        if one[name] != two[name] and (name != "run" or one["model"] != two["model"]):
            return f"{name} {_in_words(one[name])} and {_in_words(two[name])}"
    return "nothing"


def _in_words(value: Any) -> str:
    return " and ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def _facts(header: AttackHeader) -> dict[str, Any]:
    settings = {
        setting.name: getattr(header.settings, setting.name) for setting in fields(AttackSettings) if setting.compare
    }
    return {
        "run": header.settings.run,
        **settings,
        "rows available": header.rows_available,
        "rows left out": header.left_out,
        "SHA-256 of the rows": header.rows_digest,
        "rows": header.rows,
        "shard": str(header.shard),
    }
