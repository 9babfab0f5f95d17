"""`alignattn robustness`: attack fine-tuned models with TextFooler, TextBugger and BAE.

The protocol is that of Zhang et al. 2021, table 3: the share of attacks that fail, on development rows that the model
classifies correctly.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.finetuning.run_folder import check_run_folder
from alignattn.models.names import model_folder, model_name
from alignattn.robustness import LONGEST, RECIPES, UNIVERSAL_SENTENCE_ENCODER, WORDNET
from alignattn.tasks import TextClassification
from alignattn.tasks.definitions import get_task
from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError, plural
from alignattn.utils.options import Count, InputDir, InputFile, Options, OutputDir, Seed, option

if TYPE_CHECKING:
    # They import torch, and the help of the command does not need it.
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from alignattn.robustness.loop import AttackJob, AttackRow
    from alignattn.robustness.models import TaskModelWrapper
    from alignattn.robustness.records import AttackRun, AttackSettings
    from alignattn.robustness.resources import Resources

RESOURCES = "resources"
"""Group in the help."""

SOURCES_OF_WORDS = "both define the replacements of a word"
OF_A_RUN = {"run": "a run has its model and task"}


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(Options):
    """The options of `alignattn robustness`: models, recipes and resources."""

    run: tuple[str, ...] | None = option(
        None,
        "Run folders of `alignattn finetune`.",
        metavar="DIR",
        place=check_run_folder,
    )
    model: str | None = option(
        None, "Fine-tuned classifier to attack; needs --task.", place=model_name, requires=("task",), excludes=OF_A_RUN
    )
    task: str | None = option(None, "Task of --model.", metavar="TASK", requires=("model",), excludes=OF_A_RUN)
    recipes: tuple[str, ...] = option(tuple(RECIPES), "Attacks.", choices=tuple(RECIPES), distinct="recipe")
    num_examples: Count = option(1000, "Correctly classified examples to attack; may be raised later.")
    attack_columns: tuple[str, ...] | None = option(None, "Columns to attack (default: the recipe's rule).")
    data_dir: InputDir | None = option(None, "Folder of Parquet files (default: the run's, or the Hub).")
    skip_bad_rows: bool = option(False, "Skip bad rows (default: as the run did).")
    max_length: Count | None = option(None, f"Maximum tokens per row (default: the run's, or the model's, {LONGEST}).")
    batch_size: Count | None = option(None, "Batch size of scoring (default: by the device).")
    half_precision: bool = option(False, "Score in float16 (CUDA only).")
    seed: Seed = option(42, "Seed of the attacks.")
    word_vectors: InputFile | None = option(None, "Replace the counter-fitted vectors.", group=RESOURCES)
    neighbors: InputFile | None = option(
        None,
        "Replace them by a Parquet file (word, neighbors).",
        group=RESOURCES,
        excludes={"word_vectors": SOURCES_OF_WORDS},
    )
    synonyms: str | None = option(
        None,
        "Replace them by the synonyms of WordNet.",
        group=RESOURCES,
        choices=(WORDNET,),
        metavar=WORDNET,
        excludes=dict.fromkeys(("word_vectors", "neighbors"), SOURCES_OF_WORDS),
    )
    sentence_encoder: str = option(
        UNIVERSAL_SENTENCE_ENCODER,
        f"{UNIVERSAL_SENTENCE_ENCODER} (Universal Sentence Encoder), or the folder of an encoder.",
        group=RESOURCES,
        metavar="DIR",
        place=model_folder,
    )
    mlm: InputDir | None = option(None, "Masked-language model (default: bert-base-uncased).", group=RESOURCES)
    nltk_data: InputDir | None = option(None, "Folder of NLTK data.", group=RESOURCES)
    output_dir: OutputDir = option("robustness", "Folder for records and tables.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.run and self.model is None:
            raise AlignAttnError("nothing to attack: give --run FOLDER, or --model FOLDER with --task NAME")
        if self.task is not None:
            get_task(self.task, file_option=None)

    def resources(self) -> "Resources":
        """Return the resources of the attacks."""
        from alignattn.robustness.resources import Resources

        files = (self.word_vectors, self.neighbors, self.mlm, self.nltk_data)
        vectors, neighbors, mlm, nltk_data = (None if file is None else Path(file) for file in files)
        resources = Resources(vectors, neighbors, self.synonyms, self.sentence_encoder, mlm, nltk_data)
        resources.check(self.recipes)
        return resources


COMMAND = Command(
    "robustness",
    "attack classifiers with TextFooler, TextBugger and BAE, and report how many attacks fail",
    RobustnessOptions,
    run="alignattn.commands.robustness:robustness",
    examples=(
        "alignattn robustness --run runs/mrpc/seed-1 --recipes textfooler --num_examples 20 --output_dir attacks",
    ),
    results=TableResults(
        "robustness.json",
        needs="finetune",
        needs_saved_model=True,
        withheld=("run", "model", "task", "seed"),
    ),
)


def robustness(arguments: RobustnessOptions) -> "list[AttackRun]":
    """Attack every model with every recipe; print and write the tables. Recorded attacks are not repeated."""
    from alignattn.robustness.library import check_textattack
    from alignattn.robustness.loop import attack_rows
    from alignattn.robustness.records import RECORDS_SUFFIX, read_run
    from alignattn.robustness.summary import summarise_attacks, tabulate, write_attack_tables

    check_textattack()
    folder, resources, loaders = Path(arguments.output_dir), arguments.resources(), target_loaders(arguments)
    # Attacks take hours: mistakes in the last model or recipe are found before the first attack.
    for load in loaders[1:]:
        _jobs(load(), arguments, resources)
    runs = []
    for load in loaders:
        target = load()
        if target.left_out:
            print(f"{target.task.name} {target.split}: {plural(len(target.left_out), 'unusable row')} left out")
        for attack, job in _jobs(target, arguments, resources):
            runs.append(run := attack_rows(attack, job))
            settings, summary = job.settings, summarise_attacks(run)
            attacked = summary.failed + summary.succeeded
            is_short = len(run.records) == run.header.rows_available and attacked < settings.num_examples
            fewer = f"(the split has fewer than {settings.num_examples})" if is_short else ""
            errors = f", {summary.errors} more failed with an error" if summary.errors else ""
            left_out = f", {summary.rows_left_out} unusable left out" if summary.rows_left_out else ""
            print(
                f"{run.path}: {settings.recipe} on {settings.task} {settings.split}, changing "
                f"{' and '.join(settings.attack_columns)}; {plural(len(run.records), 'row')}, {attacked} attacked"
                f"{fewer}{errors}{left_out}"
            )
    # The table includes the attacks of earlier calls.
    finished, called = list(runs), {run.path for run in runs}
    for path in sorted(folder.glob(f"*/*{RECORDS_SUFFIX}")):
        if path not in called:
            try:
                earlier = read_run(path)
                if not earlier.is_finished:
                    raise AlignAttnError(
                        f"{path} holds {earlier.num_examples} of {earlier.header.settings.num_examples} examples: run "
                        "its command again"
                    )
                finished.append(earlier)
            except AlignAttnError as error:
                print(f"left out of the table: {error}")
    tables = tabulate([summarise_attacks(run) for run in finished])
    written = write_attack_tables(folder, tables)
    print("\n\n".join(table.render() for table in tables))
    print(f"written to {', '.join(map(str, written))}")
    return runs


def _jobs(target: "Target", arguments: RobustnessOptions, resources: "Resources") -> "list[tuple[Any, AttackJob]]":
    """Return the attacks of all recipes on a model with their jobs, checked against earlier records."""
    from alignattn.finetuning.results import package_versions
    from alignattn.robustness.loop import AttackJob
    from alignattn.robustness.recipes import build_attack
    from alignattn.robustness.records import RECORDS_SUFFIX, read_header

    # Attacks continue, and no model has two lines in a table, even if another call named its folder differently or the
    # model was moved: its records stay in the folder that has some already.
    output_dir = Path(arguments.output_dir)
    folder = output_dir / target.name
    for path in (*sorted(folder.glob(f"*{RECORDS_SUFFIX}")), *sorted(output_dir.glob(f"*/*{RECORDS_SUFFIX}"))):
        # Errors are reported where the file is read.
        with suppress(AlignAttnError):
            recorded = read_header(path).settings
            if recorded.model == target.digest:
                folder = path.parent
                if arguments.max_length is None:
                    # Continued attacks keep their maximum length.
                    arguments = replace(arguments, max_length=recorded.max_length)
                break
    wrapper, jobs = target.wrapper(arguments), []
    for recipe in arguments.recipes:
        attack = build_attack(
            recipe, wrapper, resources, arguments.attack_columns, half_precision=arguments.half_precision
        )
        job = AttackJob(
            target.rows,
            folder / f"{recipe}{RECORDS_SUFFIX}",
            target.settings(recipe, arguments, resources.describe(recipe)),
            target.left_out,
            package_versions(("textattack", "nltk")),
            target.task.labels,
        )
        job.earlier()
        jobs.append((attack, job))
    return jobs


@dataclass(frozen=True)
class Target:
    """A model to attack, and its rows.

    Attributes:
        name: the name of its folder in the results.
        run: its folder and digest, or its Hub id and commit, in words.
        digest: the model's identity.
        model: the model in evaluation mode.
        tokenizer: the model's tokenizer.
        task: the task that it was fine-tuned on.
        split: the split of the rows.
        rows: the usable rows.
        left_out: the numbers of the unusable rows, from 0.
        usual_length: the default maximum of tokens per row.
    """

    name: str
    run: str
    digest: str
    model: "PreTrainedModel"
    tokenizer: "PreTrainedTokenizerBase"
    task: TextClassification
    split: str
    rows: "Sequence[AttackRow]"
    left_out: tuple[int, ...]
    usual_length: int

    def max_length(self, arguments: RobustnessOptions) -> int:
        """Return the maximum of tokens per row: of the options, or of the run within the model's limit."""
        from alignattn.models.lengths import most_tokens, row_length

        return row_length(arguments.max_length, self.usual_length, most_tokens(self.model, self.tokenizer))

    def wrapper(self, arguments: RobustnessOptions) -> "TaskModelWrapper":
        """Return the wrapper that attacks query."""
        from alignattn.robustness.models import wrap_model

        return wrap_model(
            self.model,
            self.tokenizer,
            max_length=self.max_length(arguments),
            batch_size=arguments.batch_size,
            half_precision=arguments.half_precision,
        )

    def settings(self, recipe: str, arguments: RobustnessOptions, resources: Mapping[str, str]) -> "AttackSettings":
        """Return the settings of the records of a recipe's attacks; `resources` are those of its parts, in words."""
        from alignattn.attention.config import PLAIN_ATTENTION
        from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
        from alignattn.patching import is_patched, patch_of
        from alignattn.robustness.recipes import attacked_columns
        from alignattn.robustness.records import AttackSettings

        if is_patched(self.model):
            attention = patch_of(self.model).config.name
        else:
            model = self.model.config.model_type.removeprefix(MODEL_TYPE_PREFIX)
            attention = PLAIN_ATTENTION if capabilities_of(model).has_attention else model
        return AttackSettings(
            run=self.run,
            model=self.digest,
            task=self.task.name,
            split=self.split,
            attention=attention,
            recipe=recipe,
            attack_columns=attacked_columns(recipe, self.task.text_columns, arguments.attack_columns),
            max_length=self.max_length(arguments),
            seed=arguments.seed,
            num_examples=arguments.num_examples,
            precision="float16" if arguments.half_precision else "float32",
            resources=resources,
        )


def target_loaders(arguments: RobustnessOptions) -> list[Callable[[], Target]]:
    """Return a function per model of the options, which loads the model."""
    import torch

    from alignattn.finetuning.run_folder import short_names
    from alignattn.utils.paths import model_digest

    if arguments.half_precision and not torch.cuda.is_available():
        raise AlignAttnError("--half_precision needs a CUDA GPU: leave it out")
    if not arguments.run:
        assert arguments.model is not None
        path = Path(arguments.model)
        # A Hub id is not a path.
        return [partial(_load_target, arguments, None, _record_folder(path) if path.is_dir() else path.name)]
    runs = [Path(run) for run in arguments.run]
    run_of_digest: dict[str, Path] = {}
    for run in runs:
        other = run_of_digest.setdefault(model_digest(run), run)
        if other is not run:
            raise AlignAttnError(f"--run {other} and --run {run} are the same model: leave one of them out")
    # A run's name does not depend on the other runs of the call, so that attacks continue even if the next call names
    # other runs. Only runs that would share a name get longer ones.
    names: Mapping[Path, str] = {run: _record_folder(run) for run in runs}
    if len(set(names.values())) < len(runs):
        names = short_names(runs, "--run")
    return [partial(_load_target, arguments, run, names[run]) for run in runs]


def _record_folder(model: Path) -> str:
    from alignattn.finetuning.run_folder import is_seed_folder

    # The root would lead out of the folder of the results.
    parts = model.resolve().parts[1:]
    return "-".join(parts[-2 if is_seed_folder(model) else -1 :])


def _load_target(arguments: RobustnessOptions, folder: Path | None, name: str) -> Target:
    """Return the model of a run's folder, or `--model`, with its rows; `name` is its folder in the results."""
    from transformers import AutoModelForSequenceClassification
    from transformers.utils import CONFIG_NAME
    from transformers.utils.peft_utils import ADAPTER_CONFIG_NAME

    from alignattn.finetuning.model import keep_classes, named_classes
    from alignattn.finetuning.rows import load_run_evaluation
    from alignattn.finetuning.run_folder import read_run_options, warn_plain
    from alignattn.patching.checkpoint_files import find_file
    from alignattn.patching.checkpoints import load_pretrained, merge_adapters
    from alignattn.robustness.loop import AttackRow
    from alignattn.robustness.models import CHECKPOINT
    from alignattn.robustness.resources import label_model
    from alignattn.tasks.rows import load_rows
    from alignattn.utils.paths import model_digest

    if folder is None:
        assert arguments.model is not None
        assert arguments.task is not None
        model, usual_length = arguments.model, LONGEST
        rows = load_rows(
            get_task(arguments.task, file_option=None),
            need_train=False,
            data_dir=arguments.data_dir,
            skip_bad_rows=arguments.skip_bad_rows,
        )
    else:
        model, options = str(folder), read_run_options(folder)
        warn_plain(folder, options)
        if options.data.has_windows:
            raise AlignAttnError(
                f"--run {folder} reads long texts in windows (--long_texts), and attacks query one sequence per row: "
                "give a run that truncates"
            )
        if arguments.skip_bad_rows:
            options = replace(options, data=replace(options.data, skip_bad_rows=True))
        rows = load_run_evaluation(options, arguments.data_dir)
        usual_length = options.data.max_length or rows.task.max_length
    task = rows.task
    if not isinstance(task, TextClassification) or task.is_regression:
        raise AlignAttnError(f"attacks need one class per text, and task {task.name!r} has none")
    if not rows.evaluation:
        raise AlignAttnError("the run has no evaluation rows to attack: it was made without --validation_file")
    split = next(iter(rows.evaluation))
    lacking = "classifier: fine-tune it first with `alignattn finetune`"
    loaded, tokenizer = load_pretrained(
        model, AutoModelForSequenceClassification, lacking=lacking, choices=CHECKPOINT, use_safetensors=True
    )
    # The wrapper reads the inputs from the signature, and a peft model accepts any.
    loaded = merge_adapters(loaded)
    if loaded.config.num_labels != task.num_labels:
        raise AlignAttnError(
            f"{model} has {plural(loaded.config.num_labels, 'output')}, and task {task.name!r} has {task.num_labels} "
            "classes: give the task of its fine-tuning"
        )
    saved = named_classes(loaded.config)
    task.configure(loaded.config)
    if said := keep_classes(loaded, model, saved):
        print(said, file=sys.stderr)
    attacked = [
        AttackRow(number, {column: row[column] for column in task.text_columns}, row[task.label_column])
        for number, row in rows.numbered(split)
    ]
    if Path(model).is_dir():
        digest = model_digest(Path(model))
        run = label_model(Path(model), digest)
    else:
        # The Hub's cache has a folder per commit. An adapter has no config.json.
        file = find_file(model, CONFIG_NAME, {}) or find_file(model, ADAPTER_CONFIG_NAME, {})
        assert file is not None
        run = digest = f"{model} ({file.parent.name})"
    left_out = tuple(sorted(rows.left_out.get(split, ())))
    return Target(name, run, digest, loaded.eval(), tokenizer, task, split, attacked, left_out, usual_length)
