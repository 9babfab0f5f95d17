"""Attack fine-tuned models with TextFooler, TextBugger and BAE, and report the share of attacks that fail.

The protocol is that of Zhang et al. 2021, table 3: attacks on development rows that the model classifies correctly.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from alignattn.commands.robustness.options import ROBUSTNESS, RobustnessOptions
from alignattn.commands.robustness.summary import summarise_attacks, tabulate, write_attack_tables
from alignattn.commands.robustness.targets import Target, target_loaders
from alignattn.finetuning.results import package_versions
from alignattn.robustness.library import check_textattack
from alignattn.robustness.loop import AttackJob, attack_rows, check_finished, merge
from alignattn.robustness.recipes import build_attack
from alignattn.robustness.records import RECORDS_SUFFIX, AttackRun, AttackSettings, read_header, read_run
from alignattn.robustness.resources import Resources
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.shard import WHOLE, Shard

ATTACK_PACKAGES = ("textattack", "nltk")
SHARD_FILE = re.compile(r"(?P<whole>.+)-shard-\d+-of-\d+\.jsonl")


def robustness(arguments: RobustnessOptions) -> list[AttackRun]:
    """Attack every model with every recipe, or merge shards; print and write the tables."""
    folder = Path(arguments.output_dir)
    runs = merge_shards(folder) if arguments.merge else attack_all(arguments)
    for run in runs:
        print(_describe(run))
    if arguments.part != WHOLE:
        print(
            f"shard {arguments.part} is finished: collect all shards in {folder} and run {ROBUSTNESS} --merge "
            f"--output_dir {folder}"
        )
        return runs
    finished = [*runs, *_others(folder, runs)]
    if not finished:
        raise AlignAttnError(f"{folder} contains no finished attacks: give the --output_dir of the shards")
    tables = tabulate([summarise_attacks(run) for run in finished])
    written = write_attack_tables(folder, tables)
    print("\n\n".join(table.render() for table in tables))
    print(f"written to {', '.join(map(str, written))}")
    return runs


def attack_all(arguments: RobustnessOptions) -> list[AttackRun]:
    """Attack every model with every recipe; recorded attacks are not repeated."""
    check_textattack()
    resources, loaders = arguments.resources(), target_loaders(arguments)
    # Attacks take hours: mistakes in the last model or recipe are found before the first attack.
    for load in loaders[1:]:
        _jobs(load(), arguments, resources)
    runs = []
    for load in loaders:
        target = load()
        if target.left_out:
            print(f"{target.task.name} {target.split}: {len(target.left_out)} unusable row(s) are left out")
        runs += [attack_rows(attack, job) for attack, job in _jobs(target, arguments, resources)]
    return runs


def _jobs(target: Target, arguments: RobustnessOptions, resources: Resources) -> list[tuple[Any, AttackJob]]:
    """Return the attacks of all recipes on a model with their jobs, checked against earlier records."""
    folder = _records_folder(Path(arguments.output_dir), target)
    if arguments.max_length is None:
        # Continued attacks keep their maximum length.
        earlier = (settings.max_length for settings in _earlier(folder) if settings.model == target.digest)
        arguments = replace(arguments, max_length=next(earlier, None))
    wrapper, jobs = target.wrapper(arguments), []
    for recipe in arguments.recipes:
        attack = build_attack(
            recipe, wrapper, resources, arguments.attack_columns, half_precision=arguments.half_precision
        )
        job = AttackJob(
            target.rows,
            records_path(folder, recipe, arguments.part),
            target.settings(recipe, arguments, resources.describe(recipe)),
            arguments.part,
            target.left_out,
            package_versions(ATTACK_PACKAGES),
            target.task.labels,
        )
        job.earlier()
        jobs.append((attack, job))
    return jobs


def _records_folder(output_dir: Path, target: Target) -> Path:
    """Return the folder of a model's records: the one that has some already, or else one with the model's name.

    So attacks continue, and no model has two lines in a table, even if another call named its folder differently or the
    model was moved.
    """
    named = output_dir / target.name
    others = sorted({path.parent for path in output_dir.glob(f"*/*{RECORDS_SUFFIX}")} - {named})
    known = (folder for folder in (named, *others) for earlier in _earlier(folder) if earlier.model == target.digest)
    return next(known, named)


def _earlier(folder: Path) -> Iterator[AttackSettings]:
    """Yield the settings of the recorded attacks in a folder."""
    for path in sorted(folder.glob(f"*{RECORDS_SUFFIX}")):
        # Errors are reported where the file is read.
        with suppress(AlignAttnError):
            yield read_header(path).settings


def records_path(folder: Path, recipe: str, shard: Shard) -> Path:
    """Return the file of a recipe's records in a model's folder."""
    part = "" if shard == WHOLE else f"-shard-{shard.number}-of-{shard.count}"
    return folder / f"{recipe}{part}{RECORDS_SUFFIX}"


def merge_shards(folder: Path) -> list[AttackRun]:
    """Merge the shards below a folder, and return the merged runs."""
    shards: dict[Path, list[Path]] = {}
    for path in sorted(folder.glob(f"*/*{RECORDS_SUFFIX}")):
        match = SHARD_FILE.fullmatch(path.name)
        if match:
            shards.setdefault(path.with_name(match["whole"] + RECORDS_SUFFIX), []).append(path)
    return [merge(parts, whole) for whole, parts in shards.items()]


def _others(folder: Path, runs: Sequence[AttackRun]) -> list[AttackRun]:
    """Return the finished runs of earlier calls, which the table includes."""
    called = {run.path for run in runs}
    others = []
    for path in sorted(folder.glob(f"*/*{RECORDS_SUFFIX}")):
        if path in called or SHARD_FILE.fullmatch(path.name):
            continue
        try:
            run = read_run(path)
            check_finished(run)
        except AlignAttnError as error:
            print(f"left out of the table: {error}")
            continue
        others.append(run)
    return others


def _describe(run: AttackRun) -> str:
    settings, counts = run.header.settings, len(run.records)
    summary = summarise_attacks(run)
    attacked = summary.failed + summary.succeeded
    is_short = run.header.rows == run.header.rows_available and attacked < settings.num_examples
    fewer = f"(the split has fewer than {settings.num_examples})" if is_short else ""
    errors = f", {summary.errors} more failed with an error" if summary.errors else ""
    left_out = f", {summary.rows_left_out} unusable left out" if summary.rows_left_out else ""
    columns = " and ".join(settings.attack_columns)
    return (
        f"{run.path}: {settings.recipe} on {settings.task} {settings.split}, changing {columns}; {counts} row(s), "
        f"{attacked} attacked{fewer}{errors}{left_out}"
    )
