"""One fine-tuning run: options -> rows -> model -> tensors -> training -> metrics -> the files of a run's folder."""

import math
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from accelerate import PartialState
from transformers import set_seed

from alignattn.finetuning.callbacks import Balancing, BestBeside, DistanceLog, Progress, Runtime
from alignattn.finetuning.card import CARD_FILE, model_card
from alignattn.finetuning.examples import (
    SliceScores,
    input_numbers,
    measured_slices,
    slice_examples,
    slices_of,
    trained_rows,
    write_predictions,
)
from alignattn.finetuning.hub import open_repository, push_run
from alignattn.finetuning.lora import keep_merged
from alignattn.finetuning.model import build_model, computed_types, continued_run, describe_precision, pretrained_config
from alignattn.finetuning.options import BALANCED, RunOptions
from alignattn.finetuning.report import write_run_report
from alignattn.finetuning.results import (
    CONFIG_FILE,
    DATA_FILE,
    RESULTS_FILE,
    TASK_FILE,
    RunResult,
    device_name,
    package_versions,
    read_result,
    render_metrics,
)
from alignattn.finetuning.rows import ORDERS_IN_WORDS, EncodedData, encode_splits, load_run_rows
from alignattn.finetuning.run_checkpoints import best_model, checkpoint_to_resume, prepare_selection, resume_hint
from alignattn.finetuning.run_folder import check_output_dir, data_digests, is_run_folder
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import RunArguments, check_steps, training_arguments
from alignattn.models import SAMPLING_OPTION, capabilities_of
from alignattn.models.build import BuiltModel
from alignattn.models.packaged import seen_before
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.tasks import Task, TokenClassification
from alignattn.tasks.definitions import write_definition
from alignattn.tasks.labels import mistyped_classes
from alignattn.tasks.long_texts import WindowCollator, WindowedRows
from alignattn.tasks.names import PROBABILITIES, TRAIN
from alignattn.tasks.rows import Rows
from alignattn.tasks.task import Evaluation
from alignattn.tasks.truncation import TruncatedRows, truncated_rows, windows_hint
from alignattn.training.callbacks import EarlyStopping
from alignattn.training.checkpoints import remove_checkpoints, remove_torn_weights
from alignattn.utils.console import announce
from alignattn.utils.errors import AlignAttnError, listing, one_line, plural
from alignattn.utils.files import read_yaml, umask, write_json, write_text
from alignattn.utils.parquet import INPUT_COLUMN
from alignattn.utils.paths import folder_lock, publishable

LOCAL_REPORTERS = frozenset({"tensorboard", "dvclive"})
"""Values of `--report_to` that only write local files."""

RARE_SHARE = 0.01
"""A class is rare if its share of the training rows is below this, and below half of an even share."""


def finetune_one(options: RunOptions) -> RunResult:
    """Fine-tune with one seed, evaluate, and write the run's folder; a finished run is read, not run again.

    Args:
        options: the options of the run.
    """
    folder, training = options.output_dir, options.training
    with folder_lock(folder), resume_hint(options):
        check_output_dir(options)
        finished = read_result(folder)
        if finished is not None:
            print(f"{folder} is finished already; its results:\n{render_metrics(finished)}")
            # It may have been killed after its results were written. Without that line in its config, keep checkpoints.
            written = read_yaml(folder / CONFIG_FILE) if (folder / CONFIG_FILE).is_file() else {}
            if written.get("keep_checkpoints") is False and not training.keep_checkpoints:
                remove_checkpoints(folder)
            if training.push_to_hub and PartialState().is_main_process:
                push_run(options, open_repository(options))
            return finished
        remove_torn_weights(folder)

        # Refuse what does not fit, as far as it is known before rows are read: the labels of a user's file are not.
        args = training_arguments(training)
        if options.task is not None:
            options.check(options.task)
        config = pretrained_config(options)

        rows = load_run_rows(options)
        task = rows.task
        options.check(task)

        # The model, with its patch and its adapters, and the rows that it reads.
        set_seed(args.seed)
        start = continued_run(options.model.model) if is_run_folder(Path(options.model.model)) else None
        built = build_model(options, rows, config)
        data = encode_splits(rows, built.tokenizer, options.data)
        # Windows of a long text are one row.
        trained = data.train.rows if options.data.has_windows else data.train.encoded
        check_steps(task, args, len(trained), options.data.fan_out)

        # By these files, a later call recognises the run.
        write_json(folder / DATA_FILE, data_digests(options))
        write_text(folder / CONFIG_FILE, options.to_yaml())
        if options.task is not None and options.keeps_task:
            write_definition(folder / TASK_FILE, options.task)
        else:
            (folder / TASK_FILE).unlink(missing_ok=True)
        pushes = training.push_to_hub and PartialState().is_main_process
        repo_id = open_repository(options) if pushes else None

        trainer = _create_trainer(built, task, data, args, options)
        splits = {TRAIN: data.train, **data.evaluation}
        truncated = {split: cut for split in splits if (cut := truncated_rows(task, splits[split])) is not None}
        # Pictures would be read twice, and a known data set is as its authors split it.
        is_of_texts = options.data.train_file is not None and task.reads_only_texts
        repeated = trained_rows(rows.train, rows.evaluation, task) if is_of_texts else {}
        if trainer.is_world_process_zero():
            _print_remarks(trainer, options, data, built, truncated, repeated)
        # Of the model in training: afterwards, adapters are merged.
        groups: dict[str, Any] = {
            "total": built.model.parameters(),
            "trainable": (weights for weights in built.model.parameters() if weights.requires_grad),
            "alignment": alignment_parameters(built.model),
            "attention_function": function_parameters(built.model),
        }
        of_training = {
            "start": start,
            "truncated_rows": truncated,
            "trained_rows": repeated,
            "precision": computed_types(trainer),
            "parameters": {name: sum(weights.numel() for weights in group) for name, group in groups.items()},
            **_train(trainer, options, data),
        }

        evaluations = {split: trainer.predict_split(encoded) for split, encoded in data.evaluation.items()}
        result = _write(options, rows, built, trainer, data, evaluations, of_training)
        if repo_id is not None:
            push_run(options, repo_id)
        return result


def _create_trainer(
    built: BuiltModel, task: Task, data: EncodedData, args: RunArguments, options: RunOptions
) -> TaskTrainer:
    """Return the trainer, which adds λ · L_align and the losses of training methods to the task's loss."""
    training = options.training
    watched = task.splits_in_training(list(data.evaluation))
    stops = prepare_selection(args, training, task, watched)
    rows: Any = data.train.encoded
    collator = task.collator(built.tokenizer, data.train, is_training=True)
    if options.data.has_windows:
        rows, collator = WindowedRows(rows, args.seed), WindowCollator(built.tokenizer)
    class_weights: dict[str, float] = {}
    if training.class_weights is not None:
        weights = task.class_weights(data.train, training.named_weights)
        class_weights = dict(zip(getattr(task, "labels", ()), weights.tolist(), strict=True))
    if services := " and ".join(sorted(set(args.report_to or ()) - LOCAL_REPORTERS)):
        announce(f"sending the losses and options of this run to {services}, as its package is configured")
    try:
        return TaskTrainer(
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


def _print_remarks(
    trainer: TaskTrainer,
    options: RunOptions,
    data: EncodedData,
    built: BuiltModel,
    truncated: Mapping[str, TruncatedRows],
    repeated: Mapping[str, int],
) -> None:
    """Print remarks on the rows, the attention and the model before training begins."""
    task, capabilities = trainer.task, capabilities_of(options.model.model)
    labels = getattr(task, "labels", ())
    if not data.evaluation:
        print("no evaluation rows, so no scores: give --validation_file, or --validation_share 0.1", file=sys.stderr)
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
        print(describe_precision(options.model, built.model))
    if built.remark is not None:
        print(built.remark)
    for remark in seen_before([options.model.model], [task.name]):
        print(remark)

    if task.can_weight_classes:
        counts = task.class_counts(data.train)
        of_words = isinstance(task, TokenClassification)
        total, label = (
            (counts.sum(), "words have the tag") if of_words else (len(data.train.rows), "rows have the label")
        )
        fewest = min(RARE_SHARE, 1 / (2 * len(counts))) * total
        count_of = dict(zip(labels, counts.tolist(), strict=True))
        # Loading reported the classes of the user's own file that may be typing errors.
        mistyped = mistyped_classes(count_of) if options.task is None and not of_words else {}
        rare = sorted((count, name) for name, count in count_of.items() if count < fewest and name not in mistyped)
        # A CRF refuses weights.
        is_weighted = trainer.class_weights or options.model.has_crf
        advice = "" if is_weighted else f": --class_weights {BALANCED} makes all classes count equally"
        if rare:
            named = listing([f"{name} ({count})" for count, name in rare])
            print(f"under {fewest / total:.1%} of the {total} training {label} {named}{advice}", file=sys.stderr)

    for split, count in repeated.items():
        total = len(data.evaluation[split].rows)
        print(
            f"{split}: {count} of {plural(total, 'row')} have the inputs of a training row: scores on them say little "
            "about new rows",
            file=sys.stderr,
        )
    for split, cut in truncated.items():
        print(f"{split}: {cut}{windows_hint(task, [data.train])}")


def _train(trainer: TaskTrainer, options: RunOptions, data: EncodedData) -> dict[str, float]:
    """Train from the newest checkpoint or from the start, save the model, and return how long the training took."""
    training = options.training
    for method in trainer.methods:
        if remark := method.check_prediction(trainer, data.train.encoded):
            print(remark, file=sys.stderr)
    if training.log_query_key_distance:
        DistanceLog(trainer, data.evaluation)
    if training.balance is not None:
        Balancing(trainer, training, data.train)
    checkpoint = checkpoint_to_resume(options, trainer.model, trainer.args)
    if checkpoint is not None:
        trainer.add_callback(BestBeside(checkpoint))
    # Options may have drawn random numbers before: the seed makes training independent of them.
    set_seed(trainer.args.seed)
    runtime = Runtime()
    trainer.add_callback(runtime)
    output = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    seconds = runtime.seconds

    if options.model.lora_r is not None:
        keep_merged(trainer, options.model, options.output_dir)
    # An internal call does not push: the run is pushed last, when all of it is written.
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    if trainer.is_world_process_zero():
        # safetensors makes its files private.
        for weights in options.output_dir.rglob("*.safetensors"):
            weights.chmod(0o666 & ~umask())
    return {
        "train_runtime": seconds,
        "train_samples_per_second": output.metrics["train_samples_per_second"],
    }


def _write(
    options: RunOptions,
    rows: Rows[Any],
    built: BuiltModel,
    trainer: TaskTrainer,
    data: EncodedData,
    evaluations: Mapping[str, Evaluation],
    of_training: Mapping[str, Any],
) -> RunResult:
    """Return the result; the first process writes predictions, report, card and results, and removes the checkpoints.

    The results come last: they mark the run as finished.

    Args:
        options: the options of the run.
        rows: the rows of the run.
        built: the model that was trained, and its tokenizer.
        trainer: the trainer of the run.
        data: the encoded rows.
        evaluations: the evaluations of the splits.
        of_training: fields of the result that were known before the evaluation.
    """
    folder, task, state = options.output_dir, rows.task, trainer.state
    is_first, column = trainer.is_world_process_zero(), options.data.slice_by
    # The last logged value of each quantity, such as `align_loss`.
    logged: dict[str, float] = {}
    for entry in state.log_history:
        if "loss" in entry or "train_loss" in entry:
            logged |= entry
    lost = sorted(name for name, value in logged.items() if not math.isfinite(value))
    if lost and is_first:
        print(f"not finite in the last step, and null in {RESULTS_FILE}: {', '.join(lost)}", file=sys.stderr)
    slices: dict[str, SliceScores] = {}
    if column is not None:
        for split, evaluation in evaluations.items():
            of_value = slices_of(data.evaluation[split].rows[column][:])
            slices[split] = slice_examples(evaluation.predictions, of_value, task.measured)
    constant = {split: task.constant_prediction(one.predictions) for split, one in evaluations.items()}
    callbacks = trainer.callback_handler.callbacks
    has_stopped = any(isinstance(callback, EarlyStopping) and callback.has_stopped for callback in callbacks)
    result = RunResult(
        task=task.name,
        model=publishable(options.model.model),
        attention=options.attention.name,
        attention_config=options.attention.to_dict(),
        seed=trainer.args.seed,
        metrics={
            split: {name: value if math.isfinite(value) else None for name, value in evaluation.metrics.items()}
            for split, evaluation in evaluations.items()
        },
        classes={split: one.classes for split, one in evaluations.items() if one.classes},
        class_weights=trainer.class_weights,
        thresholds={split: dict(one.thresholds) for split, one in evaluations.items() if one.thresholds},
        train_rows=len(rows.train),
        evaluation_rows={split: len(dataset) for split, dataset in rows.evaluation.items()},
        dropped_rows=rows.dropped,
        bad_rows={split: [bad.to_dict() for bad in listed] for split, listed in rows.bad_rows.items()},
        derived_splits=rows.derived,
        training={name: None if name in lost else value for name, value in logged.items()},
        embeddings=None if built.embeddings is None else publishable(asdict(built.embeddings)),
        versions=package_versions(),
        device=device_name(trainer.args.device),
        labels=list(getattr(task, "labels", ())),
        constant_prediction={split: answer for split, answer in constant.items() if answer is not None},
        best=best_model(trainer),
        stopped_at=state.global_step if has_stopped and state.global_step < state.max_steps else None,
        slices={split: measured_slices(scores) for split, scores in slices.items()},
        max_length=data.train.options.max_length,
        **of_training,
    )
    if not is_first:
        return result

    tables = []
    for split, evaluation in evaluations.items():
        table = evaluation.predictions
        if PROBABILITIES in table.column_names:
            # By the numbers of inputs, `calibrate` finds repeated rows.
            inputs = input_numbers(data.evaluation[split].rows, task)
            table = table.append_column(INPUT_COLUMN, pa.array(inputs))
        tables.append(table.add_column(0, "split", pa.array([split] * table.num_rows, pa.string())))
    if tables:
        write_predictions(folder, tables)
    write_run_report(folder, task, result, data.evaluation, evaluations, slices, state.log_history)
    write_text(folder / CARD_FILE, model_card(result, options))
    write_json(folder / RESULTS_FILE, asdict(result))
    print(f"{folder}\n{render_metrics(result)}")
    # Checkpoints are redundant once the results are written.
    if not options.training.keep_checkpoints:
        remove_checkpoints(folder)
    return result
