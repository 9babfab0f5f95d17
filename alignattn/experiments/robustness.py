"""How many attacks fail against fine-tuned models: TextFooler, TextBugger and BAE, by the TextAttack library.

The protocol is that of Zhang et al. 2021, table 3: attacks on rows of the development set that the model gets right,
and the percentage of those that fail.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from transformers import AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from alignattn.checkpoints import from_pretrained, unloadable
from alignattn.errors import AlignAttnError
from alignattn.experiments.arguments import parse_run_options
from alignattn.experiments.data_loading import load_evaluation_rows, load_run_rows
from alignattn.experiments.parser import OneLineErrorParser
from alignattn.experiments.results import CONFIG_FILE
from alignattn.patching import is_patched, patch_of
from alignattn.robustness.loop import AttackRow, attack_rows, merge
from alignattn.robustness.recipes import RECIPES, attacked_columns, build_attack, check_recipe
from alignattn.robustness.records import WHOLE, AttackRun, AttackSettings, Shard, read_run
from alignattn.robustness.resources import UNIVERSAL_SENTENCE_ENCODER, WORDNET, Resources, named_model
from alignattn.robustness.summary import summarise, tabulate, write_tables
from alignattn.robustness.wrapper import wrap_model
from alignattn.tasks import TextClassification, get_task
from alignattn.tasks.rows import Rows, load_rows

PROG = "alignattn robustness"
PLAIN_ATTENTION = "soft"
RECORDS_SUFFIX = ".jsonl"
SHARD_FILE = re.compile(r"(?P<whole>.+)-shard-\d+-of-\d+\.jsonl")


@dataclass
class RobustnessArguments:
    """The options of `alignattn robustness`."""

    run: list[str] | None = field(
        default=None, metadata={"help": "Run folders of alignattn finetune; several give a table."}
    )
    model: str | None = field(default=None, metadata={"help": "A fine-tuned classifier to attack, with --task."})
    task: str | None = field(default=None, metadata={"help": "The task of --model."})
    recipes: list[str] = field(
        default_factory=lambda: list(RECIPES), metadata={"help": f"Attacks: {', '.join(RECIPES)} (default: all)."}
    )
    num_examples: int = field(
        default=1000, metadata={"help": "Examples to attack; rows that the model gets wrong do not count."}
    )
    attack_columns: list[str] | None = field(
        default=None, metadata={"help": "Columns of a pair whose words may change (default: the recipe's own rule)."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of Parquet files to read instead of the Hub (default: the run's)."}
    )
    max_length: int = field(default=512, metadata={"help": "Most tokens that the model reads of a row."})
    batch_size: int | None = field(default=None, metadata={"help": "Texts scored at once (default: by the device)."})
    half_precision: bool = field(default=False, metadata={"help": "float16, on CUDA."})
    seed: int = field(default=42, metadata={"help": "Seed of the attacks."})
    word_vectors: str | None = field(
        default=None, metadata={"help": "Word vectors (text or .npz) in place of the counter-fitted ones."}
    )
    neighbors: str | None = field(
        default=None, metadata={"help": "Parquet file of neighbour lists (word, neighbors) in place of word vectors."}
    )
    synonyms: str | None = field(default=None, metadata={"help": f"{WORDNET}: its synonyms in place of word vectors."})
    sentence_encoder: str = field(
        default=UNIVERSAL_SENTENCE_ENCODER,
        metadata={"help": f"{UNIVERSAL_SENTENCE_ENCODER} (Universal Sentence Encoder) or an encoder's folder."},
    )
    mlm: str | None = field(
        default=None, metadata={"help": "Folder of a masked-language model in place of bert-base-uncased."}
    )
    nltk_data: str | None = field(default=None, metadata={"help": "Folder of NLTK data."})
    shard: str = field(default=str(WHOLE), metadata={"help": "Attack a part of the rows alone, such as 3/8."})
    merge: bool = field(
        default=False, metadata={"help": "Attack nothing: merge the shards in --output_dir, and write the tables."}
    )
    output_dir: str = field(default="robustness", metadata={"help": "Folder for records and tables."})

    def resources(self) -> Resources:
        """Return what the attacks are made of.

        Raises:
            AlignAttnError: if a file or folder is missing or will not do.
        """
        paths = {name: value and Path(value) for name, value in vars(self).items() if name in RESOURCE_FILES}
        resources = Resources(**paths, synonyms=self.synonyms, sentence_encoder=self.sentence_encoder)
        resources.check()
        return resources


RESOURCE_FILES = ("word_vectors", "neighbors", "mlm", "nltk_data")


@dataclass(frozen=True)
class Target:
    """A model to attack, and its rows.

    Attributes:
        name: of its folder in the results.
        run: what tells it from others.
        model: in evaluation mode.
        tokenizer: its own.
        task: that it was fine-tuned on.
        split: of the rows.
        rows: those of the split.
    """

    name: str
    run: str
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    task: TextClassification
    split: str
    rows: Sequence[AttackRow]

    @property
    def attention(self) -> str:
        """The preset's name, or the slots that are filled."""
        return patch_of(self.model).config.name if is_patched(self.model) else PLAIN_ATTENTION


def main(argv: Sequence[str]) -> None:
    """Run `alignattn robustness`, or one of its subcommands `show` and `train-mlm`.

    Args:
        argv: the words after the command's name.

    Raises:
        AlignAttnError: for every mistake a user can mend; no record that was written is lost.
    """
    if argv and argv[0] in SUBCOMMANDS:
        SUBCOMMANDS[argv[0]](argv[1:])
        return
    parser = OneLineErrorParser([RobustnessArguments], prog=PROG)
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
            columns = attacked_columns(recipe, target.task.text_columns, arguments.attack_columns)
            settings = AttackSettings(
                run=target.run,
                task=target.task.name,
                split=target.split,
                attention=target.attention,
                recipe=recipe,
                attack_columns=columns,
                max_length=arguments.max_length,
                seed=arguments.seed,
                num_examples=arguments.num_examples,
                resources=described,
            )
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


def target_loaders(arguments: RobustnessArguments) -> list[Callable[[], Target]]:
    """Return what loads each model that the options name, once it is its turn.

    Raises:
        AlignAttnError: if they name none, or a run folder is none.
    """
    if arguments.run:
        if arguments.model is not None or arguments.task is not None:
            raise AlignAttnError("--run names model and task: leave --model and --task out")
        folders = [Path(run) for run in arguments.run]
        for folder in folders:
            if not (folder / CONFIG_FILE).is_file():
                raise AlignAttnError(
                    f"--run {folder} is no run folder of alignattn finetune: it holds no {CONFIG_FILE}"
                )
        names = _names(folders)
        return [partial(_target_of_run, folder, names[folder], arguments) for folder in folders]
    if arguments.model is None or arguments.task is None:
        raise AlignAttnError("nothing to attack: give --run FOLDER, or --model FOLDER with --task NAME")
    return [partial(_target_of_model, arguments)]


def _names(folders: Sequence[Path]) -> Mapping[Path, str]:
    """A short name for each folder that no other has: as many of its last parts as it takes."""
    for parts in range(1, max(len(folder.resolve().parts) for folder in folders) + 1):
        names = {folder: "-".join(folder.resolve().parts[-parts:]) for folder in folders}
        if len(set(names.values())) == len(folders):
            return names
    raise AlignAttnError(f"--run names a folder twice: {' '.join(map(str, folders))}")


def _target_of_model(arguments: RobustnessArguments) -> Target:
    assert arguments.model is not None
    assert arguments.task is not None
    rows = load_rows(get_task(arguments.task), need_train=False, data_dir=arguments.data_dir)
    return _target(Path(arguments.model).name, arguments.model, _check_task(rows))


def _target_of_run(folder: Path, name: str, arguments: RobustnessArguments) -> Target:
    options = parse_run_options(["--config", str(folder / CONFIG_FILE), "--output_dir", str(folder)], PROG)
    model, data = options.model(), replace(options.data(), max_eval_samples=None)
    rows: Rows[Any]
    if data.task is None or data.train_file is not None:
        rows = load_run_rows(model, data)
    else:
        data_dir = data.data_dir if arguments.data_dir is None else arguments.data_dir
        rows = load_evaluation_rows(get_task(data.task), model, replace(data, data_dir=data_dir))
    return _target(name, str(folder), _check_task(rows))


def _check_task(rows: Rows[Any]) -> Rows[TextClassification]:
    if not isinstance(rows.task, TextClassification) or rows.task.is_regression:
        raise AlignAttnError(f"attacks change the class of texts, and task {rows.task.name!r} has no such classes")
    if not rows.evaluation:
        raise AlignAttnError("the run has no evaluation rows to attack: it was made without --validation_file")
    return rows


def _target(name: str, model: str, rows: Rows[TextClassification]) -> Target:
    try:
        loaded = from_pretrained(model, AutoModelForSequenceClassification)
        tokenizer = AutoTokenizer.from_pretrained(model)
    except (OSError, ValueError, KeyError) as error:
        raise unloadable(model, error) from error
    task, (split, dataset) = rows.task, next(iter(rows.evaluation.items()))
    attacked = [
        AttackRow(index, {column: row[column] for column in task.text_columns}, row[task.label_column])
        for index, row in enumerate(dataset)
    ]
    run = named_model(Path(model)) if Path(model).is_dir() else model
    return Target(name, run, loaded.eval(), tokenizer, task, split, attacked)


def _describe(run: AttackRun) -> str:
    settings, counts = run.header.settings, len(run.records)
    summary = summarise(run)
    attacked = summary.failed + summary.succeeded
    is_short = run.header.rows == run.header.rows_available and attacked < settings.num_examples
    fewer = f", fewer than the {settings.num_examples} asked for: the split is used whole" if is_short else ""
    columns = " and ".join(settings.attack_columns)
    return (
        f"{run.path}: {settings.recipe} on {settings.task} {settings.split}, changing {columns}; {counts} rows, "
        f"{attacked} attacked{fewer}"
    )


def _show(argv: Sequence[str]) -> None:
    from alignattn.experiments.show_attacks import main as show

    show(argv)


def _train_mlm(argv: Sequence[str]) -> None:
    from alignattn.experiments.train_mlm import main as train_mlm

    train_mlm(argv)


SUBCOMMANDS: Mapping[str, Callable[[Sequence[str]], None]] = {"show": _show, "train-mlm": _train_mlm}
