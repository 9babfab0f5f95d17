"""`alignattn domain-shift`: accuracy and calibration under a domain shift.

It trains on one task, and evaluates on it and on another. The protocol is that of Desai & Durrett 2020 ("Calibration of
Pre-trained Transformers", section 3), which Zhang et al. 2021, table 2, follow. The development set of each task is
halved: one half is held out and reported. The temperature is fitted on the other half of the in-domain task.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from alignattn.evaluation.estimates import Estimate, EstimatesByState
from alignattn.finetuning.options import LOADING, NEVER, PATIENCE, PUSH_OPTIONS, RunOptions
from alignattn.finetuning.results import CONFIG_FILE, RESULTS_FILE, RUN_FOLDER
from alignattn.models import AT_RANDOM, SAMPLING_OPTION
from alignattn.tasks import LabelledTask, is_definition
from alignattn.tasks.definitions import TASKS, get_task, plain_name
from alignattn.tasks.truncation import TruncatedRows
from alignattn.utils.command import Command, TableResults
from alignattn.utils.errors import AlignAttnError, plural
from alignattn.utils.files import read_record
from alignattn.utils.options import REQUIRED, option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from alignattn.finetuning.results import RunResult
    from alignattn.finetuning.training_arguments import RunArguments
    from alignattn.reports.charts import ScaledPredictions
    from alignattn.tasks.rows import Rows

IN_DOMAIN, OUT_OF_DOMAIN = "in-domain", "out-of-domain"
DEVELOPMENT, HELD_OUT = "development", "held-out"
"""The halves of a development set; the second one is reported."""

OUT_OF_DOMAIN_FILE = "out-of-domain.json"
"""File of a result with the digests of the out-of-domain task; the run has those of the in-domain task."""

HALVING_SEED = 42
"""All runs, whatever their seed, use the same halves."""

LENGTHS: Mapping[str, Any] = {"num_train_epochs": 3.0, "max_length": 256}
PUBLISHED_TRAINING: Mapping[str, Mapping[str, Any]] = {
    "bert-base-uncased": {"learning_rate": 2e-5, "per_device_train_batch_size": 16, "weight_decay": 0.0, **LENGTHS},
    "roberta-base": {"learning_rate": 1e-5, "per_device_train_batch_size": 32, "weight_decay": 0.1, **LENGTHS},
}
"""The training settings of Desai & Durrett 2020, by base model."""

MATCHING_PAIRS = {
    "mrpc-twitterppdb": "both say whether two texts are paraphrases",
    "qqp-mrpc": "both say whether two texts mean the same",
}
"""Pairs whose labels differ in name but agree in meaning and order, with the reason. Equal labels need no line."""

TABLE_FIGURES = ("accuracy", "expected_calibration_error", "area_under_risk_coverage")


@dataclass(frozen=True, kw_only=True)
class DomainShiftOptions(RunOptions):
    """The options of `alignattn domain-shift`: those of `finetune`, and the pair."""

    # --pair chooses the rows here, and a checkpoint is not selected by evaluation rows.
    hidden = frozenset(
        {
            *("task", "train_file", "validation_file", "validation_share", "encoding", "features", "evaluation_splits"),
            *("text_columns", "tokens_column", "image_column", "label_column", PATIENCE, LOADING),
        }
    )
    pair: str = option(
        REQUIRED,
        f"Two tasks with the same labels; {' and '.join(PUBLISHED_TRAINING)} train as in Desai & Durrett (2020).",
        group="shift",
        metavar="TASK-TASK",
    )
    stratify: bool = option(False, "Split the development sets in half within each class.", group="shift")

    @cached_property
    def task(self) -> LabelledTask:
        """The in-domain task."""
        return self.tasks[0]

    @cached_property
    def tasks(self) -> tuple[LabelledTask, LabelledTask]:
        """The in-domain and the out-of-domain task."""
        return parse_pair(self.pair)

    @classmethod
    def implied(cls, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the published training options of the model, by the last part of its path or Hub id."""
        published = PUBLISHED_TRAINING.get(Path(str(values.get("model"))).name.lower(), {})
        order = {SAMPLING_OPTION: AT_RANDOM} if published else {}
        task = None if values.get("pair") is None else names_of_pair(values["pair"])[0]
        # The two sides are evaluated at the end.
        return {**super().implied({**values, "task": task}), "eval_strategy": NEVER, **order, **published}


COMMAND = Command(
    "domain-shift",
    "fine-tune on one task, and report accuracy and calibration on it and on another",
    DomainShiftOptions,
    run="alignattn.commands.domain_shift:domain_shift",
    results=TableResults(
        withheld=("seeds", "resume_from_checkpoint", *PUSH_OPTIONS),
        check_folder="alignattn.commands.domain_shift:check_folder",
    ),
    shares_folder=True,
    examples=("alignattn domain-shift --pair snli-mnli --model bert-base-uncased --output_dir runs/snli-mnli",),
)


def names_of_pair(pair: str) -> tuple[str, str]:
    """Return the two names of a pair, each of a built-in task or of a file that defines one."""
    words = pair.split("-")
    # A name may contain a hyphen, as in sst-2-mrpc: try each hyphen as the separator.
    for cut in range(1, len(words)):
        first, second = plain_name("-".join(words[:cut])), plain_name("-".join(words[cut:]))
        if all(is_definition(name) or name in TASKS for name in (first, second)):
            return first, second
    raise AlignAttnError(
        f"--pair {pair!r} must be two tasks joined by a hyphen, such as snli-mnli: choose from {', '.join(TASKS)}"
    )


def parse_pair(pair: str) -> tuple[LabelledTask, LabelledTask]:
    """Return the in-domain and the out-of-domain task of a pair such as `snli-mnli`; names as for `get_task`.

    Raises:
        AlignAttnError: if these are not two different tasks of one type and with the same labels.
    """
    first, second = map(get_task, names_of_pair(pair))
    if not (isinstance(first, LabelledTask) and isinstance(second, LabelledTask) and first.labels and second.labels):
        raise AlignAttnError(
            f"--pair {pair}: calibration needs one class per row, which {first.name} or {second.name} lacks: "
            "choose other tasks"
        )
    is_matching = first.labels == second.labels or (
        f"{first.name}-{second.name}" in MATCHING_PAIRS and len(first.labels) == len(second.labels)
    )
    if type(first) is not type(second) or not is_matching:
        described = " and ".join(f"{task.name} has {', '.join(task.labels)}" for task in (first, second))
        raise AlignAttnError(f"--pair {pair}: the labels differ ({described}): choose two tasks with the same labels")
    if first == second:
        raise AlignAttnError(f"--pair {pair} needs two different tasks")
    return first, second


@dataclass(frozen=True)
class SideResult:
    """The result of one side.

    Attributes:
        task: name of the task.
        split: name of the task's development set.
        train_rows: number of training rows; 0 out of domain.
        development_rows: number of rows of the half that is not reported; in domain the temperature is fitted on it.
        held_out_rows: number of rows of the reported half.
        dropped_rows: number of unlabelled rows left out, by split.
        bad_rows: bad rows left out, each with its number and its problem, by split.
        derived_splits: origin of each split that the data set does not have, by name.
        figures: figures of the held-out rows before and after temperature scaling; shares are fractions.
        truncated_rows: truncated rows of the development set; None if there are none.
    """

    task: str
    split: str
    train_rows: int
    development_rows: int
    held_out_rows: int
    dropped_rows: Mapping[str, int]
    bad_rows: Mapping[str, list[dict[str, Any]]]
    derived_splits: Mapping[str, str]
    figures: EstimatesByState
    truncated_rows: TruncatedRows | None


@dataclass(frozen=True)
class DomainShiftResult:
    """The content of `results.json`.

    Attributes:
        pair: the two tasks, such as `snli-mnli`.
        model: the model as the user named it.
        attention: name of the preset.
        attention_config: fields of the `AttentionConfig`.
        seed: seed of the training.
        stratify: whether the halves are drawn class by class.
        halving_seed: seed of the halves.
        num_bins: number of bins of the calibration errors.
        temperature: temperature fitted on the in-domain development half.
        development_nll: mean negative log-likelihood on that half, in nats, before and after scaling.
        sides: results by side, `in-domain` and `out-of-domain`.
        versions: versions of Python and the packages.
        device: device of the evaluation; the run's folder has that of the training.
        constant_prediction: by side, the class predicted for every row of its development set, if there is one.
        shift_auroc: AUROC of confidence, in-domain against out-of-domain held-out rows, before and after scaling.
    """

    pair: str
    model: str
    attention: str
    attention_config: dict[str, Any]
    seed: int
    stratify: bool
    halving_seed: int
    num_bins: int
    temperature: float
    development_nll: Mapping[str, float]
    sides: Mapping[str, SideResult]
    versions: dict[str, str]
    device: str
    constant_prediction: Mapping[str, str]
    shift_auroc: Mapping[str, Estimate]


def domain_shift(options: DomainShiftOptions) -> list[DomainShiftResult]:
    """Train and evaluate each unfinished seed of the call, and write the summary over seeds."""
    from accelerate import PartialState

    from alignattn.finetuning.run_folder import other_seeds

    for other in other_seeds(options):
        check_folder(other)
    results = [domain_shift_one(run) for run in options.runs()]
    if options.training.seeds is not None and PartialState().is_main_process:
        # Other calls may have finished other seeds of the same options.
        runs = sorted([options.runs()[0], *other_seeds(options)], key=lambda run: run.training.seed)
        finished = list(filter(None, (read_domain_shift(run.output_dir) for run in runs)))
        print(f"{options.output_dir}\n{write_seed_table(options.output_dir, finished)}")
    PartialState().destroy_process_group()
    return results


def domain_shift_one(options: DomainShiftOptions) -> DomainShiftResult:
    """Train one seed, evaluate it and write its folder; for a finished seed, only print the result."""
    from accelerate import PartialState

    from alignattn.finetuning.run import finetune_one
    from alignattn.finetuning.training_arguments import training_arguments
    from alignattn.utils.paths import folder_lock

    folder = options.output_dir
    with folder_lock(folder):
        check_folder(options)
        finished = read_domain_shift(folder)
        if finished is not None:
            print(f"{folder} is finished already; its results:\n{render_domain_shift(finished)}")
            return finished
        # Both sides are loaded before the training, so that an error in either comes before hours of training.
        loaded = [
            _load_side(name, task, options)
            for name, task in zip((IN_DOMAIN, OUT_OF_DOMAIN), options.tasks, strict=True)
        ]
        digests, training = _digests_out_of_domain(options), _training_options(options)
        run = finetune_one(training)
        args = training_arguments(training.training)
        sides = _predict(training, args, loaded)
        result = _result(options, run, sides, args)
        if PartialState().is_main_process:
            _write(options, sides, result, digests)
            print(f"{render_domain_shift(result)}\nwritten to {folder}")
        return result


def check_folder(options: DomainShiftOptions) -> None:
    """Refuse a folder of another run; a folder that contains only the trained run is accepted, to be evaluated."""
    from alignattn.finetuning.run_folder import check_output_dir, first_changed_digest
    from alignattn.utils.paths import entries

    folder = options.output_dir
    if not (folder.is_dir() and entries(folder) == {RUN_FOLDER}):
        check_output_dir(options)
    check_output_dir(_training_options(options))
    what = first_changed_digest(_digests_out_of_domain(options), folder / OUT_OF_DOMAIN_FILE)
    if what is not None:
        raise AlignAttnError(
            f"{folder} holds another result: the {what} of {options.tasks[1].name} changed; give another --output_dir"
        )


def _training_options(options: DomainShiftOptions) -> RunOptions:
    """Return the options of `finetune` for the in-domain run, in a subfolder of the result's folder."""
    return RunOptions(
        model=options.model,
        data=replace(options.data, task=names_of_pair(options.pair)[0]),
        training=replace(options.training, output_dir=str(options.output_dir / RUN_FOLDER)),
    )


def _digests_out_of_domain(options: DomainShiftOptions) -> dict[str, str]:
    """Return the SHA-256 of the definition and the rows of the out-of-domain task, as far as they are local files."""
    from alignattn.tasks.names import TRAIN
    from alignattn.tasks.rows import split_path
    from alignattn.utils.paths import digest_of

    name, task = names_of_pair(options.pair)[1], options.tasks[1]
    files = {"definition": Path(name)} if is_definition(name) else {}
    for split in (task.evaluation_splits[0], TRAIN):
        # Without a development split, the rows are drawn from the training split.
        with suppress(AlignAttnError):
            files["rows"] = split_path(task, split, options.data.data_dir)
            break
    return {what: digest_of(file) for what, file in files.items() if file.is_file()}


@dataclass(frozen=True)
class Side:
    """The development set of a task, its halves, and the model's predictions.

    Attributes:
        name: `in-domain` or `out-of-domain`.
        loaded: its rows, as the only evaluation split of its task, with a record of the rows left out.
        halves: the row indices of each half, by the name of the half.
        predictions: the `pyarrow` table of the predictions of its rows, as in a run's `predictions.parquet`.
        truncated_rows: its truncated rows; None if there are none.
    """

    name: str
    loaded: "Rows[LabelledTask]"
    halves: "Mapping[str, NDArray[np.int64]]"
    predictions: Any = None
    truncated_rows: TruncatedRows | None = None

    @property
    def split(self) -> str:
        """The name of its split in the task."""
        return self.loaded.task.evaluation_splits[0]

    def half(self, name: str) -> "tuple[NDArray[np.float64], NDArray[np.int64]]":
        """Return the probabilities `[N, C]` of the rows of a half, and their labels `[N]`."""
        import numpy as np
        import pyarrow as pa

        rows = self.predictions.take(pa.array(self.halves[name]))
        return np.stack(rows["probabilities"].to_numpy()), np.asarray(rows["label"].to_numpy())

    def held_out(self, temperature: float) -> "ScaledPredictions":
        """Return the reported rows, before and after temperature scaling."""
        from alignattn.reports.charts import ScaledPredictions

        return ScaledPredictions.by_temperature(*self.half(HELD_OUT), temperature)


def halves(
    labels: "ArrayLike", seed: int = HALVING_SEED, stratify: bool = False
) -> "tuple[NDArray[np.int64], NDArray[np.int64]]":
    """Return the rows of the development half and of the held-out half, drawn at random: sorted indices from 0.

    The halves are disjoint and together contain all rows. With an odd number of rows the held-out half has one more.

    Args:
        labels: labels of the rows, `[N]`.
        seed: seed of the draw.
        stratify: whether each class is halved too, to within one row.
    """
    import numpy as np

    order = np.random.default_rng(seed).permutation(len(np.asarray(labels)))
    if stratify:
        order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    # Every other row of a random order is a random half; in an order sorted by class, it is one of each class.
    return np.sort(order[1::2]), np.sort(order[::2])


def _load_side(name: str, task: LabelledTask, options: DomainShiftOptions) -> Side:
    """Load and halve the development set of a task: its first evaluation split."""
    from alignattn.tasks.rows import load_rows, max_samples

    split = task.evaluation_splits[0]
    loaded = load_rows(
        replace(task, evaluation_splits=(split,)),
        need_train=False,
        data_dir=options.data.data_dir,
        cache_dir=options.model.cache_dir,
        skip_bad_rows=options.data.skip_bad_rows,
    )
    rows = max_samples(loaded.task, loaded.evaluation[split], options.data.max_eval_samples, options.data.take)
    if len(rows) < 2:
        raise AlignAttnError(
            f"split {split!r} of {task.name} has one labelled row and cannot be split in half: give more rows"
        )
    drawn = halves(rows[task.label_column][:], HALVING_SEED, options.stratify)
    by_name = dict(zip((DEVELOPMENT, HELD_OUT), drawn, strict=True))
    return Side(name, replace(loaded, evaluation={split: rows}), by_name)


def _predict(training: RunOptions, args: "RunArguments", sides: Sequence[Side]) -> list[Side]:
    """Return the sides with the saved model's predictions for their development sets."""
    import transformers
    from accelerate import PartialState

    from alignattn.finetuning.model import load_preprocessor
    from alignattn.finetuning.rows import encode_split
    from alignattn.finetuning.task_trainer import TaskTrainer
    from alignattn.patching.checkpoints import load_checkpoint
    from alignattn.tasks.truncation import truncated_rows

    data, task = training.data, sides[0].loaded.task
    name = str(training.output_dir)
    model = load_checkpoint(name, getattr(transformers, task.auto_class))
    tokenizer = load_preprocessor(name, model, type(task))
    splits = [encode_split(side.loaded.task, side.loaded.evaluation[side.split], tokenizer, data) for side in sides]
    cut = [truncated_rows(side.loaded.task, split) for side, split in zip(sides, splits, strict=True)]
    # The run has already printed this for the in-domain task.
    if cut[1] is not None and PartialState().is_main_process:
        print(f"{sides[1].loaded.task.name} {sides[1].split}: {cut[1]}")
    trainer = TaskTrainer(
        task=task,
        splits={side.name: split for side, split in zip(sides, splits, strict=True)},
        model=model,
        args=args,
        data_collator=task.collator(tokenizer, splits[0]),
        processing_class=tokenizer,
    )
    return [
        replace(side, predictions=trainer.predict_split(split).predictions, truncated_rows=rows)
        for side, split, rows in zip(sides, splits, cut, strict=True)
    ]


def _result(
    options: DomainShiftOptions, run: "RunResult", sides: Sequence[Side], args: "RunArguments"
) -> DomainShiftResult:
    from alignattn.evaluation.calibration import (
        ECE_BINS,
        apply_temperature,
        fit_temperature,
        log_probabilities,
        negative_log_likelihood,
    )
    from alignattn.finetuning.results import device_name, package_versions

    known, labels = sides[0].half(DEVELOPMENT)
    temperature = fit_temperature(log_probabilities(known), labels)
    scaled = [side.held_out(temperature) for side in sides]
    return DomainShiftResult(
        pair="-".join(task.name for task in options.tasks),
        model=run.model,
        attention=run.attention,
        attention_config=run.attention_config,
        seed=run.seed,
        stratify=options.stratify,
        halving_seed=HALVING_SEED,
        num_bins=ECE_BINS,
        temperature=temperature,
        development_nll={
            "before": negative_log_likelihood(known, labels),
            "after": negative_log_likelihood(apply_temperature(known, temperature), labels),
        },
        sides={
            side.name: SideResult(
                task=side.loaded.task.name,
                split=side.split,
                train_rows=run.train_rows if side.name == IN_DOMAIN else 0,
                development_rows=len(side.halves[DEVELOPMENT]),
                held_out_rows=len(side.halves[HELD_OUT]),
                dropped_rows=side.loaded.dropped,
                bad_rows={split: [bad.to_dict() for bad in listed] for split, listed in side.loaded.bad_rows.items()},
                derived_splits=side.loaded.derived,
                figures=rows.estimates(),
                truncated_rows=side.truncated_rows,
            )
            for side, rows in zip(sides, scaled, strict=True)
        },
        versions=package_versions(),
        device=device_name(args.device),
        shift_auroc=scaled[0].shifts_to(scaled[1]),
        constant_prediction={
            side.name: answer for side in sides if (answer := side.loaded.task.constant_prediction(side.predictions))
        },
    )


def _write(options: RunOptions, sides: Sequence[Side], result: DomainShiftResult, digests: dict[str, str]) -> None:
    """Write the folder; `results.json` last, because it marks the folder as complete."""
    import pyarrow as pa

    from alignattn.finetuning.examples import write_predictions
    from alignattn.reports.pages import REPORT_FILE, Section, write_report
    from alignattn.utils.files import write_json, write_text

    folder, tables, sections = options.output_dir, [], []
    for side in sides:
        # Both halves are splits with unique names, as `calibrate` reads them.
        halved = pa.concat_tables(
            side.predictions.take(pa.array(rows)).add_column(
                0, "split", pa.array([f"{side.name}-{name}"] * len(rows), pa.string())
            )
            for name, rows in side.halves.items()
        )
        tables.append(halved.add_column(0, "side", pa.array([side.name] * halved.num_rows)))
        rows = side.held_out(result.temperature)
        title = f"{side.loaded.task.name} ({side.name}), {len(rows.labels)} rows"
        sections.append(Section(title=title, charts=rows.charts(result.sides[side.name].figures, result.num_bins)))
    write_text(folder / CONFIG_FILE, options.to_yaml())
    write_json(folder / OUT_OF_DOMAIN_FILE, digests)
    write_predictions(folder, tables)
    facts = {"model": result.model, "attention": result.attention, "seed": str(result.seed)}
    write_report(folder / REPORT_FILE, f"Domain shift, {result.pair}", facts, sections)
    write_json(folder / RESULTS_FILE, asdict(result))


def read_domain_shift(folder: Path) -> DomainShiftResult | None:
    """Return the result in `folder`, or None if there is none yet; raises the errors of `read_record`."""
    return read_record(folder / RESULTS_FILE, DomainShiftResult, "evaluate")


def render_domain_shift(result: DomainShiftResult) -> str:
    """Return a table of accuracy and calibration error with intervals, and notes."""
    from alignattn.evaluation.calibration.scaling import temperature_note
    from alignattn.evaluation.calibration.summary import interval_notes
    from alignattn.models.packaged import seen_before
    from alignattn.reports.charts import percent_text
    from alignattn.utils.console import render_table

    lines = [
        [
            *(name, side.task, str(side.held_out_rows), f"{result.temperature if state == 'after' else 1:.3f}"),
            *(percent_text(estimates[figure], 2) for figure in TABLE_FIGURES),
        ]
        for name, side in result.sides.items()
        for state, estimates in side.figures.items()
    ]
    note = temperature_note(result.temperature)
    before, after = (result.development_nll[state] for state in ("before", "after"))
    caption = [
        *interval_notes("In brackets after each figure", result.num_bins),
    ]
    for name, side in result.sides.items():
        trained = f"trained on {side.train_rows} rows, " if name == IN_DOMAIN else ""
        how = "halved class by class" if result.stratify else "halved"
        dropped = sum(side.dropped_rows.values())
        notes = [
            f"{side.task}: {trained}split {side.split} {how} with seed {result.halving_seed} into "
            f"{side.development_rows} development and {side.held_out_rows} held-out rows; the report is on the latter",
            *([f"{dropped} unlabelled rows left out"] if dropped else []),
            *(
                f"{len(bad)} bad rows of {split} left out, listed in {RESULTS_FILE}"
                for split, bad in side.bad_rows.items()
            ),
            *(f"split {split} is {origin}" for split, origin in side.derived_splits.items()),
        ]
        caption.append("; ".join(notes))
    caption += [
        *(f"{name}: {answer} is predicted for every row" for name, answer in result.constant_prediction.items()),
        *(
            f"{_auroc_words(state)} {percent_text(estimate, 2)} % (50 % is uninformative)"
            for state, estimate in result.shift_auroc.items()
        ),
        f"temperature {result.temperature:.3f}{note}: fitted on the development half of the in-domain task (NLL there "
        f"{before:.3f} before, {after:.3f} after)",
        *seen_before([result.model], (side.task for side in result.sides.values())),
    ]
    return "\n".join([render_table(_header(), lines), "", *caption])


def write_seed_table(folder: Path, results: Sequence[DomainShiftResult]) -> str:
    """Write mean and standard deviation over the seeds to `results.json` in `folder`; return them as a table.

    The standard deviation is that of a sample (n - 1); for a single seed it is None.
    """
    from alignattn.evaluation.estimates import over_seeds, with_deviation
    from alignattn.models.packaged import seen_before
    from alignattn.utils.console import render_table
    from alignattn.utils.files import write_json

    first = results[0]
    temperature = over_seeds([result.temperature for result in results])
    sides: dict[str, dict[str, Any]] = {}
    lines = []
    for name, side in first.sides.items():
        figures = {
            state: {
                figure: over_seeds([result.sides[name].figures[state][figure].value for result in results])
                for figure in estimates
            }
            for state, estimates in side.figures.items()
        }
        sides[name] = asdict(side) | {"figures": figures}
        for state, spreads in figures.items():
            scaling = with_deviation(temperature, "{:.3f}") if state == "after" else "1.000"
            cells = [with_deviation(spreads[name], "{:.2f}", 100) for name in TABLE_FIGURES]
            lines.append([name, side.task, str(side.held_out_rows), scaling, *cells])
    aurocs = {state: over_seeds([result.shift_auroc[state].value for result in results]) for state in first.shift_auroc}
    content = {
        "pair": first.pair,
        "model": first.model,
        "attention": first.attention,
        "seeds": [result.seed for result in results],
        "temperature": temperature,
        "sides": sides,
        "shift_auroc": aurocs,
    }
    write_json(folder / RESULTS_FILE, content)
    caption = [
        f"mean ± standard deviation over {plural(len(results), 'seed')}",
        *(f"{_auroc_words(state)} {with_deviation(spread, '{:.2f}', 100)} %" for state, spread in aurocs.items()),
        *seen_before([first.model], (side.task for side in first.sides.values())),
    ]
    return "\n".join([render_table(_header(), lines), "", *caption])


def _header() -> list[str]:
    from alignattn.evaluation.calibration import FIGURES

    return ["side", "task", "rows", "temperature", *(FIGURES[figure].heading for figure in TABLE_FIGURES)]


def _auroc_words(state: str) -> str:
    return f"AUROC of the largest probability, in-domain against out-of-domain rows, {state} temperature scaling:"
