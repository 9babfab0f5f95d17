"""How many attacks fail against fine-tuned models: TextFooler, TextBugger and BAE, by the TextAttack library.

The protocol is that of Zhang et al. 2021, table 3: attacks on rows of the development set that the model gets right,
and the percentage of those that fail.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from alignattn.errors import AlignAttnError
from alignattn.experiments.attack_arguments import PROG, AttackArguments
from alignattn.experiments.attack_targets import target_loaders
from alignattn.experiments.parser import OneLineErrorParser
from alignattn.robustness.loop import attack_rows, merge
from alignattn.robustness.recipes import build_attack, check_recipe
from alignattn.robustness.records import WHOLE, AttackRun, Shard, read_run
from alignattn.robustness.summary import summarise, tabulate, write_tables
from alignattn.robustness.wrapper import wrap_model

RECORDS_SUFFIX = ".jsonl"
SHARD_FILE = re.compile(r"(?P<whole>.+)-shard-\d+-of-\d+\.jsonl")


@dataclass
class RobustnessArguments(AttackArguments):
    """The options of `alignattn robustness`."""

    shard: str = field(default=str(WHOLE), metadata={"help": "Attack a part of the rows alone, such as 3/8."})
    merge: bool = field(
        default=False, metadata={"help": "Attack nothing: merge the shards in --output_dir, and write the tables."}
    )


def main(argv: Sequence[str]) -> None:
    """Run `alignattn robustness`, or one of its subcommands `show`, `throughput` and `train-mlm`.

    Args:
        argv: the words after the command's name.

    Raises:
        AlignAttnError: for every mistake a user can mend; no record that was written is lost.
    """
    if argv and argv[0] in SUBCOMMANDS:
        SUBCOMMANDS[argv[0]](argv[1:])
        return
    others = f"Go with it: {', '.join(f'{PROG} {name}' for name in SUBCOMMANDS)}; each has a --help of its own."
    parser = OneLineErrorParser([RobustnessArguments], prog=PROG, epilog=others)
    robustness(RobustnessArguments(**vars(parser.parse_args(list(argv)))))


def robustness(arguments: RobustnessArguments) -> list[AttackRun]:
    """Attack every model by every recipe, or merge what was attacked in shards; print and write the tables.

    Raises:
        AlignAttnError: for every mistake a user can mend.
    """
    folder = Path(arguments.output_dir)
    runs = merge_shards(folder) if arguments.merge else attack_all(arguments)
    for run in runs:
        print(_describe(run))
    if not arguments.merge and Shard.parse(arguments.shard) != WHOLE:
        print(f"shard {arguments.shard} is done: gather all in {folder} and run {PROG} --merge --output_dir {folder}")
        return runs
    tables = tabulate([summarise(run) for run in runs])
    written = write_tables(folder, tables)
    print("\n\n".join(table.render() for table in tables))
    print(f"written to {', '.join(map(str, written))}")
    return runs


def attack_all(arguments: RobustnessArguments) -> list[AttackRun]:
    """Attack every model by every recipe; what was attacked before is not attacked again."""
    resources, shard = arguments.resources(), Shard.parse(arguments.shard)
    for recipe in arguments.recipes:
        check_recipe(recipe)
    described = resources.describe()
    runs = []
    for load in target_loaders(arguments):
        target = load()
        wrapper = wrap_model(
            target.model,
            target.tokenizer,
            max_length=arguments.max_length,
            batch_size=arguments.batch_size,
            half_precision=arguments.half_precision,
        )
        for recipe in arguments.recipes:
            settings = target.settings(recipe, arguments, described)
            attack = build_attack(
                recipe, wrapper, resources, arguments.attack_columns, half_precision=arguments.half_precision
            )
            path = records_path(Path(arguments.output_dir), target.name, recipe, shard)
            runs.append(attack_rows(attack, target.rows, path, settings, shard=shard))
    return runs


def records_path(folder: Path, name: str, recipe: str, shard: Shard) -> Path:
    """Return the file of the records of a model's attacks by a recipe."""
    part = "" if shard == WHOLE else f"-shard-{shard.number}-of-{shard.count}"
    return folder / name / f"{recipe}{part}{RECORDS_SUFFIX}"


def merge_shards(folder: Path) -> list[AttackRun]:
    """Merge the shards below a folder, unless they are merged, and return all whole runs there.

    Raises:
        AlignAttnError: if there are none, or the shards do not make up a run.
    """
    shards: dict[Path, list[Path]] = {}
    for path in sorted(folder.glob(f"*/*{RECORDS_SUFFIX}")):
        match = SHARD_FILE.fullmatch(path.name)
        if match:
            shards.setdefault(path.with_name(match["whole"] + RECORDS_SUFFIX), []).append(path)
    for whole, parts in shards.items():
        if not whole.exists():
            merge(parts, whole)
    paths = [path for path in sorted(folder.glob(f"*/*{RECORDS_SUFFIX}")) if not SHARD_FILE.fullmatch(path.name)]
    if not paths:
        raise AlignAttnError(f"{folder} holds no records of attacks: give the --output_dir of the shards")
    return [read_run(path) for path in paths]


def _describe(run: AttackRun) -> str:
    settings, counts = run.header.settings, len(run.records)
    summary = summarise(run)
    attacked = summary.failed + summary.succeeded
    is_short = run.header.rows == run.header.rows_available and attacked < settings.num_examples
    fewer = f", fewer than the {settings.num_examples} asked for: the split is used whole" if is_short else ""
    columns = " and ".join(settings.attack_columns)
    return (
        f"{run.path}: {settings.recipe} on {settings.task} {settings.split}, changing {columns}; {counts} row(s), "
        f"{attacked} attacked{fewer}"
    )


def _show(argv: Sequence[str]) -> None:
    from alignattn.experiments.show_attacks import main as show

    show(argv)


def _throughput(argv: Sequence[str]) -> None:
    from alignattn.experiments.attack_throughput import main as throughput

    throughput(argv)


def _train_mlm(argv: Sequence[str]) -> None:
    from alignattn.experiments.train_mlm import main as train_mlm

    train_mlm(argv)


SUBCOMMANDS: Mapping[str, Callable[[Sequence[str]], None]] = {
    "show": _show,
    "throughput": _throughput,
    "train-mlm": _train_mlm,
}
