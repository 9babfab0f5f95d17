"""Accuracy and calibration under a domain shift: train on one task, evaluate on it and on another.

The protocol is that of Desai & Durrett 2020 ("Calibration of Pre-trained Transformers", section 3), which Zhang et al.
2021, table 2, follow. The development set of each task is halved: one half is held out and reported. The temperature
is fitted on the other half of the in-domain task.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
from accelerate import PartialState
from numpy.typing import ArrayLike, NDArray

from alignattn.commands.domain_shift import DomainShiftOptions
from alignattn.commands.domain_shift.pair import names_of_pair
from alignattn.commands.domain_shift.report import (
    HELD_OUT,
    IN_DOMAIN,
    OUT_OF_DOMAIN,
    DomainShiftResult,
    SideResult,
    read_domain_shift,
    render_domain_shift,
    write_seed_table,
)
from alignattn.evaluation.calibration import (
    ECE_BINS,
    fit_temperature,
    log_probabilities,
    negative_log_likelihood,
)
from alignattn.evaluation.calibration.scaling import MIN_TO_HALVE
from alignattn.finetuning.examples import with_split, write_predictions
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.results import RESULTS_FILE, RunResult, device_name, package_versions
from alignattn.finetuning.resuming import check_output_dir, check_running
from alignattn.finetuning.rows import encode_split, load_evaluation_rows
from alignattn.finetuning.run import finetune_one
from alignattn.finetuning.run_files import CONFIG_FILE, RUN_FOLDER
from alignattn.finetuning.run_folder import first_changed
from alignattn.finetuning.seeds import run_seeds
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import RunArguments, training_arguments
from alignattn.patching.checkpoints import load_pretrained
from alignattn.reports.diagrams import ScaledPredictions
from alignattn.reports.report import REPORT_FILE, Section, write_report
from alignattn.tasks import LabelledTask, is_definition
from alignattn.tasks.reading import split_path
from alignattn.tasks.rows import Rows, max_samples
from alignattn.tasks.task import PROBABILITIES, TRAIN
from alignattn.tasks.task_types import processor_for
from alignattn.tasks.truncation import TruncatedRows, truncated_rows
from alignattn.utils.bad_rows import as_json
from alignattn.utils.digests import digest_of
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import entries, write_json, write_text
from alignattn.utils.folder_lock import folder_lock

DEVELOPMENT = "development"
OUT_OF_DOMAIN_FILE = "out-of-domain.json"
"""File of a result with the digests of the out-of-domain task; the run has those of the in-domain task."""
HALVING_SEED = 42
"""All runs, whatever their seed, use the same halves."""


@dataclass(frozen=True)
class DevelopmentSet:
    """The two halves of the development set of one side.

    Attributes:
        side: `in-domain` or `out-of-domain`.
        loaded: its rows, as the only evaluation split of its task, with a record of the rows left out.
        halves: the row indices of each half, by the name of the half.
    """

    side: str
    loaded: Rows[LabelledTask]
    halves: Mapping[str, NDArray[np.int64]]

    @property
    def task(self) -> LabelledTask:
        """Its task."""
        return self.loaded.task

    @property
    def split(self) -> str:
        """The name of its split in the task."""
        return self.task.evaluation_splits[0]


@dataclass(frozen=True)
class SidePredictions:
    """The model's predictions for a development set, and its truncated rows."""

    development_set: DevelopmentSet
    predictions: pa.Table
    truncated_rows: TruncatedRows | None = None

    def half(self, name: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the probabilities `[N, C]` of the rows of a half, and their labels `[N]`."""
        rows = self.predictions.take(pa.array(self.development_set.halves[name]))
        return np.stack(rows[PROBABILITIES].to_numpy()), np.asarray(rows["label"].to_numpy())

    def held_out(self, temperature: float) -> ScaledPredictions:
        """Return the reported rows, before and after temperature scaling."""
        return ScaledPredictions.by_temperature(*self.half(HELD_OUT), temperature)


def halves(
    labels: ArrayLike, seed: int = HALVING_SEED, stratify: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of the development half and of the held-out half, drawn at random: sorted indices from 0.

    The halves are disjoint and together contain all rows. With an odd number of rows the held-out half has one more.

    Args:
        labels: labels of the rows, `[N]`.
        seed: seed of the draw.
        stratify: whether each class is halved too, to within one row.
    """
    order = np.random.default_rng(seed).permutation(len(np.asarray(labels)))
    if stratify:
        order = order[np.argsort(np.asarray(labels)[order], kind="stable")]
    # Every other row of a random order is a random half; in an order sorted by class, it is one of each class.
    return np.sort(order[1::2]), np.sort(order[::2])


def domain_shift(options: DomainShiftOptions) -> list[DomainShiftResult]:
    """Train and evaluate each unfinished seed of the call, and write the summary over seeds."""
    return run_seeds(options, check_folder, domain_shift_one, write_seed_table)


def domain_shift_one(options: DomainShiftOptions) -> DomainShiftResult:
    """Train one seed, evaluate it and write its folder; for a finished seed, only print the result."""
    with folder_lock(options.output_dir, options.to_dict(), partial(check_folder, options)):
        check_folder(options)
        finished = read_domain_shift(options.output_dir)
        if finished is not None:
            print(f"{options.output_dir} is finished already; its results:\n{render_domain_shift(finished)}")
            return finished
        return _domain_shift(options)


def _domain_shift(options: DomainShiftOptions) -> DomainShiftResult:
    # Load both sides before the training, so that an error in either comes before hours of training.
    sides = [
        load_side(side, task, options) for side, task in zip((IN_DOMAIN, OUT_OF_DOMAIN), options.tasks, strict=True)
    ]
    digests = _digests_out_of_domain(options)
    training = training_options(options)
    args = training_arguments(training.training, RunArguments)
    run = finetune_one(training, args)
    judged = _predict(training, args, sides)
    result = _result(options, run, judged, args)
    if PartialState().is_main_process:
        _write(options, judged, result, digests)
        print(f"{render_domain_shift(result)}\nwritten to {options.output_dir}")
    return result


def training_options(options: DomainShiftOptions) -> RunOptions:
    """Return the options of `finetune` for the in-domain run, in a subfolder of the result's folder."""
    return RunOptions(
        model=options.model,
        data=replace(options.data, task=names_of_pair(options.pair)[0]),
        training=replace(options.training, output_dir=str(options.output_dir / RUN_FOLDER)),
    )


def _digests_out_of_domain(options: DomainShiftOptions) -> dict[str, str]:
    """Return the SHA-256 of the definition and the rows of the out-of-domain task, as far as they are local files."""
    name, task = names_of_pair(options.pair)[1], options.tasks[1]
    files = {"definition": Path(name)} if is_definition(name) else {}
    for split in (task.evaluation_splits[0], TRAIN):
        # Without a development split, the rows are drawn from the training split.
        with suppress(AlignAttnError):
            files["rows"] = split_path(task, split, options.data.data_dir)
            break
    return {what: digest_of(file) for what, file in files.items() if file.is_file()}


def load_side(side: str, task: LabelledTask, options: DomainShiftOptions) -> DevelopmentSet:
    """Load and halve the development set of a task: its first evaluation split."""
    split = task.evaluation_splits[0]
    loaded = load_evaluation_rows(replace(task, evaluation_splits=(split,)), options.model, options.data)
    rows = max_samples(loaded.task, loaded.evaluation[split], options.data.max_eval_samples, options.data.take)
    if len(rows) < MIN_TO_HALVE:
        raise AlignAttnError(
            f"split {split!r} of {task.name} has one labelled row and cannot be split in half: give more rows"
        )
    drawn = halves(rows[task.label_column][:], HALVING_SEED, options.stratify)
    by_name = dict(zip((DEVELOPMENT, HELD_OUT), drawn, strict=True))
    return DevelopmentSet(side, replace(loaded, evaluation={split: rows}), by_name)


def check_folder(options: DomainShiftOptions) -> None:
    """Refuse a folder of another run; a folder that contains only the trained run is accepted, to be evaluated."""
    folder = options.output_dir
    check_running(options)
    holds_run_only = folder.is_dir() and entries(folder) == {RUN_FOLDER}
    if not holds_run_only:
        check_output_dir(options)
    check_output_dir(training_options(options))
    what = first_changed(_digests_out_of_domain(options), folder / OUT_OF_DOMAIN_FILE)
    if what is not None:
        raise AlignAttnError(
            f"{folder} holds another result: the {what} of {options.tasks[1].name} changed; give another --output_dir"
        )


def _predict(training: RunOptions, args: RunArguments, sides: Sequence[DevelopmentSet]) -> list[SidePredictions]:
    """The saved model's predictions for the development set of each side."""
    folder, data = training.output_dir, training.data
    processor = processor_for(sides[0].task)
    model, tokenizer = load_pretrained(str(folder), processor.auto_class)
    splits = [encode_split(side.task, side.loaded.evaluation[side.split], tokenizer, data) for side in sides]
    cut = [truncated_rows(side.task, split, tokenizer) for side, split in zip(sides, splits, strict=True)]
    for side, rows in zip(sides, cut, strict=True):
        # The run has already printed this for the in-domain task.
        if rows is not None and side.side == OUT_OF_DOMAIN and PartialState().is_main_process:
            print(f"{side.task.name} {side.split}: {rows}")
    trainer = TaskTrainer(
        task=sides[0].task,
        splits={side.side: split for side, split in zip(sides, splits, strict=True)},
        model=model,
        args=args,
        data_collator=processor.collator(tokenizer, splits[0]),
        processing_class=tokenizer,
    )
    predictions = [trainer.predict_split(split).predictions for split in splits]
    return list(map(SidePredictions, sides, predictions, cut))


def _result(
    options: DomainShiftOptions, run: RunResult, judged: Sequence[SidePredictions], args: RunArguments
) -> DomainShiftResult:
    known, labels = judged[0].half(DEVELOPMENT)
    temperature = fit_temperature(log_probabilities(known), labels)
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
            state: negative_log_likelihood(rows, labels)
            for state, rows in ScaledPredictions.by_temperature(known, labels, temperature).probabilities.items()
        },
        sides={one.development_set.side: _side_result(one, run, temperature) for one in judged},
        versions=package_versions(),
        device=device_name(args.device),
        shift_auroc=judged[0].held_out(temperature).shifts_to(judged[1].held_out(temperature)),
        constant_prediction={
            one.development_set.side: answer
            for one in judged
            if (answer := processor_for(one.development_set.task).constant_prediction(one.predictions))
        },
    )


def _side_result(judged: SidePredictions, run: RunResult, temperature: float) -> SideResult:
    side = judged.development_set
    return SideResult(
        task=side.task.name,
        split=side.split,
        train_rows=run.train_rows if side.side == IN_DOMAIN else 0,
        development_rows=len(side.halves[DEVELOPMENT]),
        held_out_rows=len(side.halves[HELD_OUT]),
        dropped_rows=side.loaded.dropped,
        bad_rows=as_json(side.loaded.bad_rows),
        derived_splits=side.loaded.derived,
        figures=judged.held_out(temperature).estimates(),
        truncated_rows=judged.truncated_rows,
    )


def _write(
    options: RunOptions, judged: Sequence[SidePredictions], result: DomainShiftResult, digests: dict[str, str]
) -> None:
    """Write the folder; `results.json` last, because it marks the folder as complete."""
    folder = options.output_dir
    write_text(folder / CONFIG_FILE, options.to_yaml())
    write_json(folder / OUT_OF_DOMAIN_FILE, digests)
    write_predictions(folder, list(map(_prediction_table, judged)))
    sections = []
    for one in judged:
        side, rows = one.development_set.side, one.held_out(result.temperature)
        title = f"{one.development_set.task.name} ({side}), {len(rows.labels)} rows"
        sections.append(Section(title=title, charts=rows.charts(result.sides[side].figures, result.num_bins)))
    facts = {"model": result.model, "attention": result.attention, "seed": str(result.seed)}
    write_report(folder / REPORT_FILE, f"Domain shift, {result.pair}", facts, sections)
    write_json(folder / RESULTS_FILE, asdict(result))


def _prediction_table(judged: SidePredictions) -> pa.Table:
    """The predictions of both halves as splits with unique names, as `calibrate` reads them."""
    side = judged.development_set
    halved = pa.concat_tables(
        with_split(judged.predictions.take(pa.array(rows)), f"{side.side}-{name}") for name, rows in side.halves.items()
    )
    return halved.add_column(0, "side", pa.array([side.side] * halved.num_rows))
