"""Attack the rows of a split one by one; an interruption changes neither order nor random numbers."""

import hashlib
import json
import random
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alignattn.robustness import Outcome
from alignattn.robustness.library import load_textattack
from alignattn.robustness.records import AttackHeader, AttackRecord, AttackRun, AttackSettings, header_path, read_run
from alignattn.utils.console import progress
from alignattn.utils.errors import AlignAttnError, one_line
from alignattn.utils.files import write_json

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
        left_out: numbers of the split's unusable rows.
        versions: the versions of the packages, for the header.
        labels: the names of the classes, in order, for the header.
    """

    rows: Sequence[AttackRow]
    records_path: Path
    settings: AttackSettings
    left_out: tuple[int, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.rows or self.settings.num_examples < 1:
            raise AlignAttnError(
                f"there is nothing to attack: {len(self.rows)} rows, --num_examples {self.settings.num_examples}"
            )

    def header(self) -> AttackHeader:
        """Return the header of the records."""
        digest = hashlib.sha256()
        for row in self.rows:
            digest.update(json.dumps([row.index, list(row.texts.items()), row.label]).encode())
        return AttackHeader(
            self.settings, len(self.rows), self.left_out, digest.hexdigest(), self.versions, self.labels
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
        recorded, wanted = run.header.settings.num_examples, self.settings.num_examples
        there, here = replace(run.header, settings=replace(run.header.settings, num_examples=wanted)), self.header()
        if there != here:
            raise AlignAttnError(
                f"{run.path} belongs to another run: {_difference(there, here)}; give another --output_dir, or move "
                "it away"
            )
        if recorded > wanted:
            raise AlignAttnError(
                f"{run.path} has {recorded} examples, more than {wanted}: raise --num_examples, or give another "
                "--output_dir"
            )
        return run


def attack_rows(attack: Any, job: AttackJob) -> AttackRun:
    """Attack rows in their order until `num_examples` were attacked, and write each record at once.

    Rows that the model misclassifies are skipped and do not count. Called again after a kill, or with more examples, it
    continues after the last complete record.

    The seed of each row is the run's plus its index, and no result of one row is cached for another, because the last
    bits of a score may depend on the rest of the batch.

    Args:
        attack: a `textattack.Attack` whose goal queries a `TaskModelWrapper`, which makes the batches itself.
        job: the rows and the file. Two processes must not write to the same file.
    """
    # All texts of a step go to the wrapper at once, which sorts them by length and makes batches.
    attack.goal_function.batch_size = sys.maxsize
    settings, path = job.settings, job.records_path
    earlier = job.earlier()
    if earlier is None or earlier.header.settings != settings:
        write_json(header_path(path), asdict(job.header()))
    run = read_run(path, truncate=True)
    counts = Counter(record.outcome for record in run.records)
    num_examples = run.num_examples
    description = f"{settings.recipe} {settings.task} {settings.attention}"
    with path.open("ab") as file, progress(description, settings.num_examples, "example", initial=num_examples) as bar:
        for row in job.rows[len(run.records) :]:
            if num_examples == settings.num_examples:
                break
            record = attack_row(attack, row, settings)
            # One write, flushed before the next attack: a kill loses this row or nothing.
            file.write(f"{json.dumps(asdict(record), allow_nan=False)}\n".encode())
            file.flush()
            counts[record.outcome] += 1
            num_examples += record.is_example
            attacked = counts["failed"] + counts["succeeded"]
            percent = f"{100 * counts['failed'] / attacked:.1f} %" if attacked else "none"
            bar.set_postfix_str(f"{percent} of {attacked} failed", refresh=False)
            bar.update(int(record.is_example))
    return read_run(path)


def attack_row(attack: Any, row: AttackRow, settings: AttackSettings) -> AttackRecord:
    """Attack one row; an error caused by a strange text or label is recorded, and the row skipped."""
    textattack = load_textattack()
    goal = attack.goal_function
    seed = settings.seed + row.index
    random.seed(seed)
    np.random.seed(seed % 2**32)
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
        result = attack.attack(text, row.label)
        outcomes: dict[type, Outcome] = {
            textattack.attack_results.SuccessfulAttackResult: "succeeded",
            textattack.attack_results.FailedAttackResult: "failed",
            textattack.attack_results.SkippedAttackResult: "skipped",
        }
        done = replace(record, outcome=outcomes[type(result)], queries=int(result.num_queries))
        if done.outcome == "skipped":
            return done
        before, after = result.original_result.attacked_text, result.perturbed_result.attacked_text
        columns = after.column_labels
        inputs = (after.tokenizer_input,) if len(columns) == 1 else after.tokenizer_input
        return replace(
            done,
            perturbed=dict(zip(columns, inputs, strict=True)),
            perturbed_scores=result.perturbed_result.raw_output.tolist(),
            words_changed=int(before.words_diff_num(after)),
        )
    except FATAL:
        raise
    except Exception as error:
        # NLTK raises it for missing data; its subclasses (KeyError, IndexError) come from a text.
        if type(error) is LookupError:
            raise AlignAttnError(f"the attack needs missing data of NLTK: {one_line(error)}") from error
        return replace(record, error=f"{type(error).__name__}: {one_line(error)}")


def _difference(there: AttackHeader, here: AttackHeader) -> str:
    """Return the first difference of two headers, in words."""
    if there.settings.model != here.settings.model:
        return f"run {there.settings.run!r} and {here.settings.run!r}; give both runs to one call"
    facts = [
        {
            **asdict(header.settings),
            "run": "the same",
            "attention": "the same",
            "rows available": header.rows_available,
            "rows left out": header.left_out,
            "SHA-256 of the rows": header.rows_digest,
        }
        for header in (there, here)
    ]
    name = next(name for name in facts[0] if facts[0][name] != facts[1][name])
    return f"{name} {facts[0][name]!r} and {facts[1][name]!r}"
