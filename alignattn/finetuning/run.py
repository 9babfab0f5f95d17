"""One fine-tuning run: options -> rows -> tensors -> patched model -> metrics -> the files of a run's folder."""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from accelerate import PartialState
from transformers import PreTrainedModel, set_seed

from alignattn.finetuning.best_checkpoint import best_model, choose_metric, stopped_at, stopping
from alignattn.finetuning.callbacks import Balancing, BestBeside, DistanceLog, Progress, Runtime
from alignattn.finetuning.card import model_card, write_model_card
from alignattn.finetuning.examples import with_inputs, with_split, write_predictions
from alignattn.finetuning.hub import open_repository, push_run
from alignattn.finetuning.lora import keep_merged
from alignattn.finetuning.model import build_model, continued_run, patch_model, pretrained_config
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.precision import computed_types, describe_precision
from alignattn.finetuning.report import write_run_report
from alignattn.finetuning.results import (
    RESULTS_FILE,
    RunResult,
    defined,
    device_name,
    package_versions,
    read_result,
    render_metrics,
)
from alignattn.finetuning.resuming import check_output_dir, checkpoint_to_resume, resume_hint
from alignattn.finetuning.rows import (
    ORDERS_IN_WORDS,
    EncodedData,
    encode_splits,
    load_run_rows,
    truncated_rows_by_split,
)
from alignattn.finetuning.run_files import CONFIG_FILE, DATA_FILE, TASK_FILE
from alignattn.finetuning.run_folder import data_digests
from alignattn.finetuning.slices import SliceScores, measured_slices, slice_examples, slices_of
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import (
    RunArguments,
    check_full_batch,
    check_shared_graph,
    training_arguments,
)
from alignattn.finetuning.training_options import BALANCED
from alignattn.models import SAMPLING_OPTION, capabilities_of
from alignattn.models.build import BuiltModel
from alignattn.models.packaged import seen_before
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.tasks import QuestionAnswering, Task, TokenClassification
from alignattn.tasks.answers.windows import count_truncated_questions, truncated_questions_warning
from alignattn.tasks.definitions import write_definition
from alignattn.tasks.labels import mistyped_classes
from alignattn.tasks.long_texts import WindowCollator, WindowedRows
from alignattn.tasks.names import TRAIN
from alignattn.tasks.rows import Rows
from alignattn.tasks.task import EncodedSplit, Evaluation
from alignattn.tasks.truncation import TruncatedRows, windows_hint
from alignattn.training.checkpoints import remove_checkpoints, remove_torn_weights
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.console import log_reports
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.files import read_yaml, umask, write_json, write_text
from alignattn.utils.paths import folder_lock, publishable

RARE_SHARE = 0.01
"""A class is rare if its share of the training rows is below this, and below half of an even share."""


def finetune_one(options: RunOptions, args: RunArguments | None = None) -> RunResult:
    """Fine-tune with one seed, evaluate, and write the run's folder; a finished run is read, not run again.

    Args:
        options: the options of the run.
        args: the arguments of the Trainer; None = made from the options.
    """
    folder = options.output_dir
    with folder_lock(folder), resume_hint(folder):
        check_output_dir(options)
        finished = read_result(folder)
        if finished is not None:
            print(f"{folder} is finished already; its results:\n{render_metrics(finished)}")
            _finish_again(finished, options)
            return finished
        remove_torn_weights(folder)
        args = args or training_arguments(options.training, RunArguments)
        # Before rows are read, the labels of a user's file are not known.
        if options.task is not None:
            options.check(options.task)
        config = pretrained_config(options)

        rows = load_run_rows(options)
        options.check(rows.task)
        assert rows.train is not None
        check_shared_graph(rows.task, args, len(rows.train), options.data.fan_out)
        set_seed(args.seed)
        start = continued_run(options.model.model)
        built = build_model(options, rows, config)
        built = replace(built, model=patch_model(built.model, options.model))
        data = encode_splits(rows, built.tokenizer, options.data)
        # By these files, a later call recognises the run.
        write_json(folder / DATA_FILE, data_digests(options))
        write_text(folder / CONFIG_FILE, options.to_yaml())
        if options.task is not None and options.keeps_task:
            write_definition(folder / TASK_FILE, options.task)
        if options.training.push_to_hub and PartialState().is_main_process:
            open_repository(options)

        trainer = _build_trainer(built, rows.task, data, args, options)
        truncated = truncated_rows_by_split(rows.task, data)
        if trainer.is_world_process_zero():
            _print_remarks(trainer, options, data, built, truncated)
        parameters, precision = _count_parameters(built.model), computed_types(trainer)
        training = _train(trainer, options, data, built.tokenizer)

        evaluations = {split: trainer.predict_split(encoded) for split, encoded in data.evaluation.items()}
        result = _result(options, rows, built, trainer, parameters, training, evaluations)
        longest = data.train.options.max_length
        result = replace(result, start=start, truncated_rows=truncated, precision=precision, max_length=longest)
        if trainer.is_world_process_zero():
            result = _write(result, options, trainer, data, evaluations)
        return result


def _finish_again(finished: RunResult, options: RunOptions) -> None:
    """Finish a run that was killed after its results were written: remove its checkpoints and push it."""
    config = options.output_dir / CONFIG_FILE
    written = read_yaml(config) if config.is_file() else {}
    # Without that line in the config, keep the checkpoints.
    if written.get("keep_checkpoints") is False and not options.training.keep_checkpoints:
        remove_checkpoints(options.output_dir)
    if options.training.push_to_hub and PartialState().is_main_process:
        push_run(finished, options)


def _rare_classes(task: Any, train: EncodedSplit, *, is_own: bool) -> str:
    """Return a line on the classes that few training rows have; empty if there are none.

    Classes of the user's own file that may be typing errors, which loading reported, are left out.
    """
    if not task.can_weight_classes:
        return ""
    counts = task.class_counts(train)
    of_words = isinstance(task, TokenClassification)
    total, label = (counts.sum(), "words have the tag") if of_words else (len(train.rows), "rows have the label")
    fewest = min(RARE_SHARE, 1 / (2 * len(counts))) * total
    by_name = dict(zip(task.labels, counts.tolist(), strict=True))
    mistyped = mistyped_classes(by_name) if is_own and not of_words else {}
    rare = sorted((count, name) for name, count in by_name.items() if count < fewest and name not in mistyped)
    if not rare:
        return ""
    named = listing([f"{name} ({count})" for count, name in rare])
    return f"under {fewest / total:.1%} of the {total} training {label} {named}"


def _build_trainer(
    built: BuiltModel, task: Task, data: EncodedData, args: RunArguments, options: RunOptions
) -> TaskTrainer:
    """Return the trainer, which adds λ · L_align and the losses of training methods to the task's loss."""
    training = options.training
    watched = task.splits_in_training(list(data.evaluation))
    choose_metric(args, training, task, watched)
    stops = stopping(args, training.early_stopping_patience)
    check_full_batch(args, len(data.train.encoded))
    if not data.evaluation:
        print("no evaluation rows, so no scores: give --validation_file, or --validation_share 0.1", file=sys.stderr)
    log_reports(args.report_to)
    rows: Any = data.train.encoded
    collator = task.collator(built.tokenizer, data.train, is_training=True)
    if options.data.has_windows:
        rows, collator = WindowedRows(rows, args.seed), WindowCollator(built.tokenizer)
    class_weights: dict[str, float] = {}
    if training.class_weights is not None:
        weights = task.class_weights(data.train, training.named_weights)
        class_weights = dict(zip(getattr(task, "labels", ()), weights.tolist(), strict=True))
    try:
        trainer = TaskTrainer(
            task=task,
            class_weights=class_weights,
            splits={split: data.evaluation[split] for split in watched},
            model=built.model,
            args=args,
            train_dataset=rows,
            data_collator=collator,
            processing_class=built.tokenizer,
            callbacks=[Progress(training.transformers.get("disable_tqdm")), *filter(None, [stops])],
        )
    except (ValueError, TypeError, ImportError) as error:
        # The Trainer checks some options itself, such as --report_to; its messages name them.
        raise AlignAttnError(one_line(error)) from error
    for method in trainer.methods:
        if remark := method.before_prediction(trainer, data.train.encoded):
            print(remark, file=sys.stderr)
    return trainer


def _print_remarks(
    trainer: TaskTrainer,
    options: RunOptions,
    data: EncodedData,
    built: BuiltModel,
    truncated: Mapping[str, TruncatedRows],
) -> None:
    """Print remarks on the rows, the attention and the model before training begins."""
    task, capabilities = trainer.task, capabilities_of(options.model.model)
    labels = getattr(task, "labels", ())
    if options.task is None and labels:
        numbered = [f"{number} = {name}" for number, name in enumerate(labels)]
        print(f"{task.name}, {len(labels)} labels: {listing(numbered)}")
    elif options.task is None:
        print(f"{task.name}: the labels are scores")
    if SAMPLING_OPTION in capabilities.training_defaults:
        print(f"training batches: rows {ORDERS_IN_WORDS[options.training.train_sampling_strategy]}")
    if options.attention.filled_slots:
        weight = "" if options.attention.alignment is None else f", λ {options.attention.alignment_weight:g}"
        print(f"attention {options.attention.name}{weight}")
    if capabilities.is_pretrained:
        print(describe_precision(options, built.model))
    if built.remark is not None:
        print(built.remark)
    for remark in seen_before([options.model.model], [task.name]):
        print(remark)
    if rare := _rare_classes(task, data.train, is_own=options.task is None):
        weigh = f": --class_weights {BALANCED} makes all classes count equally"
        # A CRF refuses weights.
        print(rare + ("" if trainer.class_weights or options.model.has_crf else weigh), file=sys.stderr)
    for split, rows in truncated.items():
        print(f"{split}: {rows}{windows_hint(task, [data.train])}")
    if isinstance(task, QuestionAnswering):
        for split, encoded in {TRAIN: data.train, **data.evaluation}.items():
            if count := count_truncated_questions(encoded):
                print(f"{split}: {truncated_questions_warning(count)}")


def _train(trainer: TaskTrainer, options: RunOptions, data: EncodedData, tokenizer: Any) -> Mapping[str, float]:
    """Train from the newest checkpoint or from the start, save the model, and return the training metrics."""
    training = options.training
    if training.log_query_key_distance:
        DistanceLog(trainer, data.evaluation, tokenizer)
    if training.balance is not None:
        Balancing(trainer, training, data.train, tokenizer)
    checkpoint = checkpoint_to_resume(options, trainer.model, trainer.args)
    if checkpoint is not None:
        trainer.add_callback(BestBeside(checkpoint))
    # Options may have drawn random numbers before: the seed makes training independent of them.
    set_seed(trainer.args.seed)
    runtime = Runtime()
    trainer.add_callback(runtime)
    output = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    seconds = runtime.seconds
    keep_merged(trainer, options.model, options.output_dir)
    # An internal call does not push: the run is pushed last, when all of it is written.
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        # safetensors makes its files private.
        for weights in options.output_dir.glob("*.safetensors"):
            weights.chmod(0o666 & ~umask())
    return output.metrics | {"train_runtime": seconds}


def _result(
    options: RunOptions,
    rows: Rows[Any],
    built: BuiltModel,
    trainer: TaskTrainer,
    parameters: dict[str, int],
    training: Mapping[str, float],
    evaluations: Mapping[str, Evaluation],
) -> RunResult:
    task = rows.task
    constant = task.constant_prediction
    answers = {split: constant(evaluation.predictions) for split, evaluation in evaluations.items()}
    return RunResult(
        task=task.name,
        model=publishable(options.model.model),
        attention=options.attention.name,
        attention_config=options.attention.to_dict(),
        seed=trainer.args.seed,
        metrics={split: defined(evaluation.metrics) for split, evaluation in evaluations.items()},
        classes={split: one.classes for split, one in evaluations.items() if one.classes},
        class_weights=trainer.class_weights,
        thresholds={split: dict(one.thresholds) for split, one in evaluations.items() if one.thresholds},
        train_rows=len(rows.train or ()),
        evaluation_rows={split: len(dataset) for split, dataset in rows.evaluation.items()},
        dropped_rows=rows.dropped,
        bad_rows={split: [bad.to_dict() for bad in listed] for split, listed in rows.bad_rows.items()},
        derived_splits=rows.derived,
        train_runtime=training["train_runtime"],
        train_samples_per_second=training["train_samples_per_second"],
        training=_last_logged(trainer),
        parameters=parameters,
        embeddings=None if built.embeddings is None else publishable(asdict(built.embeddings)),
        versions=package_versions(),
        device=device_name(trainer.args.device),
        labels=list(getattr(task, "labels", ())),
        constant_prediction={split: answer for split, answer in answers.items() if answer is not None},
        best=best_model(trainer),
        stopped_at=stopped_at(trainer),
    )


def _write(
    result: RunResult,
    options: RunOptions,
    trainer: TaskTrainer,
    data: EncodedData,
    evaluations: Mapping[str, Evaluation],
) -> RunResult:
    """Write predictions, report, card and at last the results, which mark the run as finished; return them."""
    folder, task, column = options.output_dir, trainer.task, options.data.slice_by
    if evaluations:
        tables = [
            with_split(with_inputs(evaluation.predictions, data.evaluation[split].rows, task.input_columns), split)
            for split, evaluation in evaluations.items()
        ]
        write_predictions(folder, tables)
    slices: dict[str, SliceScores] = {}
    if column is not None:
        slices = {
            split: slice_examples(
                evaluation.predictions, slices_of(data.evaluation[split].rows[column][:]), task.measured
            )
            for split, evaluation in evaluations.items()
        }
    result = replace(result, slices={split: measured_slices(scores) for split, scores in slices.items()})
    write_run_report(folder, task, result, data.evaluation, evaluations, slices, trainer.state.log_history)
    write_model_card(folder, model_card(result, options))
    write_json(folder / RESULTS_FILE, result.to_dict())
    print(f"{folder}\n{render_metrics(result)}")
    # Checkpoints are redundant once the results are written.
    if not options.training.keep_checkpoints:
        remove_checkpoints(folder)
    if options.training.push_to_hub:
        push_run(result, options)
    return result


def _last_logged(trainer: AlignmentTrainer) -> dict[str, float | None]:
    """Return the last logged value of each quantity, such as `align_loss`; None if it is not finite."""
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        if "loss" in entry or "train_loss" in entry:
            logged |= entry
    lost = sorted(name for name, value in logged.items() if not math.isfinite(value))
    if lost and trainer.is_world_process_zero():
        print(f"not finite in the last step, and null in {RESULTS_FILE}: {', '.join(lost)}", file=sys.stderr)
    return {name: None if name in lost else value for name, value in logged.items()}


def _count_parameters(model: PreTrainedModel) -> dict[str, int]:
    return {
        "total": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "alignment": sum(parameter.numel() for parameter in alignment_parameters(model)),
        "attention_function": sum(parameter.numel() for parameter in function_parameters(model)),
    }
