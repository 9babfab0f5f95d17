"""One fine-tuning run: options -> rows -> tensors -> patched model -> metrics -> the files of a run's folder."""

import math
import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from accelerate import PartialState
from transformers import PreTrainedModel, set_seed

from alignattn.finetuning.best_model import best_model, choose_metric, stopped_at, stopping
from alignattn.finetuning.callbacks import Progress, balance_at, log_distance
from alignattn.finetuning.card import model_card, write_model_card
from alignattn.finetuning.function_change import check_twin, compare_with_twin
from alignattn.finetuning.hub import push_run
from alignattn.finetuning.lora import adapt, keep_merged
from alignattn.finetuning.model import check_before_rows, load_run_model, start_of
from alignattn.finetuning.options import RunOptions
from alignattn.finetuning.resources import check_disk_room, describe_precision
from alignattn.finetuning.results import (
    PREDICTIONS_FILE,
    RESULTS_FILE,
    RunResult,
    device_name,
    package_versions,
    read_result,
    render_metrics,
)
from alignattn.finetuning.resuming import check_checkpoint, resume_hint
from alignattn.finetuning.rows import ORDERS_IN_WORDS, EncodedData, count_cut_rows, encode_splits, load_run_rows
from alignattn.finetuning.run_files import CONFIG_FILE, DATA_FILE, TASK_FILE, is_begun
from alignattn.finetuning.run_folder import MODEL_OPTION, check_same_data, data_digests, is_same_start
from alignattn.finetuning.task_trainer import TaskTrainer
from alignattn.finetuning.training_arguments import (
    RunArguments,
    check_full_batch,
    check_shared_graph,
    training_arguments,
)
from alignattn.finetuning.training_options import PUSH_OPTIONS, TrainingOptions
from alignattn.models import SAMPLING_OPTION, capabilities_of
from alignattn.models.build import BuiltModel
from alignattn.models.packaged import seen_before
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.tasks import Task, get_task
from alignattn.tasks.definitions import write_definition
from alignattn.tasks.processor import Evaluation
from alignattn.tasks.processors import processor_for
from alignattn.tasks.rows import Rows
from alignattn.tasks.truncated_rows import TruncatedRows
from alignattn.tasks.unknown_words import MANY, unknown_share
from alignattn.training.checkpoints import last_whole_checkpoint, remove_checkpoints
from alignattn.training.saving import remove_torn_weights
from alignattn.training.trainer import AlignmentTrainer
from alignattn.utils.bad_rows import as_json
from alignattn.utils.errors import AlignAttnError, listing, one_line
from alignattn.utils.files import read_yaml, replacing, write_json, write_text
from alignattn.utils.folder_lock import folder_lock
from alignattn.utils.network import say_reports
from alignattn.utils.publishing import publishable

OPTIONS_THAT_MAY_DIFFER = frozenset(
    {
        "output_dir",
        "resume_from_checkpoint",
        "disable_tqdm",
        "report_to",
        "log_query_key_distance",
        "keep_checkpoints",
        "model_sha256",
        *PUSH_OPTIONS,
    }
)
"""Options that do not make another run of the same folder."""

NEWEST_CHECKPOINT = (None, "True", "true", "last")
"""Values of `--resume_from_checkpoint` that name none."""


def finetune_one(options: RunOptions, args: RunArguments | None = None) -> RunResult:
    """Fine-tune one seed, evaluate it, and write its folder; a finished run is read, not run again.

    Args:
        options: of the run.
        args: what the Trainer takes, where it is made of the options already.
    """
    finished = read_result(options.output_dir)
    if finished is not None:
        print(f"{options.output_dir} is finished already; its results:\n{render_metrics(finished)}")
        _remove_left_checkpoints(options)
        if options.training.push_to_hub and PartialState().is_main_process:
            push_run(finished, options)
        return finished
    with folder_lock(options.output_dir), resume_hint(options.output_dir):
        # Another process may have made it meanwhile, or another run.
        check_output_dir(options)
        if read_result(options.output_dir) is not None:
            return finetune_one(options, args)
        remove_torn_weights(options.output_dir)
        return _finetune(options, args or training_arguments(options.training, RunArguments))


def _remove_left_checkpoints(options: RunOptions) -> None:
    """Remove what a run left that was killed when all was written; those of a run that never said so stay."""
    config = options.output_dir / CONFIG_FILE
    written = read_yaml(config) if config.is_file() else {}
    if written.get("keep_checkpoints") is False and not options.training.keep_checkpoints:
        remove_checkpoints(options.output_dir)


def _finetune(options: RunOptions, args: RunArguments) -> RunResult:
    data_options = options.data
    check_before_rows(options)
    check_twin(options)
    rows = load_run_rows(options)
    task = rows.task
    if reason := options.training.reason_unsupported(task):
        raise AlignAttnError(f"{reason}: leave it out")
    assert rows.train is not None
    check_shared_graph(task, args, len(rows.train), data_options.fan_out)
    set_seed(args.seed)
    loaded = load_run_model(options.model, rows, args.seed, skip_bad_rows=data_options.skip_bad_rows)
    data = encode_splits(rows, loaded.processor, data_options)
    write_json(options.output_dir / DATA_FILE, data_digests(options))
    write_text(options.output_dir / CONFIG_FILE, options.to_yaml())
    if options.task is not None and options.keeps_task:
        write_definition(options.output_dir / TASK_FILE, options.task)
    start = start_of(options.model.model)
    trained = adapt(loaded.model, options.model)
    parameters = _count_parameters(trained)
    precision = describe_precision(options, trained) if capabilities_of(options.model.model).is_pretrained else None
    trainer = _build_trainer(replace(loaded, model=trained), task, data, args, options.training)
    for method in trainer.methods:
        if remark := method.before_prediction(trainer, data.train.encoded):
            print(remark, file=sys.stderr)
    cut = count_cut_rows(task, data, loaded.processor)
    if trainer.is_world_process_zero():
        for remark in (
            *_remarks(task, options, cut, (precision, loaded.remark)),
            *_of_unknown_words(options, data, loaded),
        ):
            print(remark)
    if options.training.log_query_key_distance:
        log_distance(trainer, task, data.evaluation, loaded.processor)
    finish = balance_at(options.training, trainer, task, data.train, loaded.processor)
    checkpoint = _checkpoint_to_resume(options, args, trained)
    if checkpoint is None and trainer.is_world_process_zero():
        check_disk_room(trainer)
    # What an option has looked at before may have drawn random numbers: a seed trains as it does without it.
    set_seed(args.seed)
    output = trainer.train(resume_from_checkpoint=checkpoint)
    finish()
    keep_merged(trainer, options.model, options.output_dir)
    # Not as a user's call, which would push: the run is pushed last, when nothing of it can be lost any more.
    trainer.save_model(_internal_call=True)
    trainer.save_state()
    evaluations = _evaluate(trainer, data, options.output_dir)
    result = _result(options, rows, loaded, trainer, parameters, output.metrics, evaluations)
    result = replace(result, truncated_rows=cut, start=start)
    if trainer.is_world_process_zero():
        result = replace(result, twin=compare_with_twin(options, task, data.evaluation))
        _finish(result, trainer, options)
    return result


def _finish(result: RunResult, trainer: TaskTrainer, options: RunOptions) -> None:
    """Write what a run came to, its results last of all that is whole, and push it."""
    write_model_card(options.output_dir, model_card(result, options))
    write_json(options.output_dir / RESULTS_FILE, result.to_dict())
    print(f"{options.output_dir}\n{render_metrics(result)}")
    if trainer.args.push_to_hub:
        trainer.wait_for_pushes()
    # Only what is written whole makes them of no use.
    if not options.training.keep_checkpoints:
        remove_checkpoints(options.output_dir)
    if trainer.args.push_to_hub:
        push_run(result, options)


def _result(
    options: RunOptions,
    rows: Rows[Any],
    loaded: BuiltModel,
    trainer: TaskTrainer,
    parameters: dict[str, int],
    training: Mapping[str, float],
    evaluations: Mapping[str, Evaluation],
) -> RunResult:
    assert rows.train is not None
    return RunResult(
        task=rows.task.name,
        model=publishable(options.model.model),
        attention=options.attention.name,
        attention_config=options.attention.to_dict(),
        seed=trainer.args.seed,
        metrics={
            split: {name: None if math.isnan(value) else value for name, value in evaluation.metrics.items()}
            for split, evaluation in evaluations.items()
        },
        thresholds={
            split: dict(evaluation.thresholds) for split, evaluation in evaluations.items() if evaluation.thresholds
        },
        train_rows=len(rows.train),
        evaluation_rows={split: len(dataset) for split, dataset in rows.evaluation.items()},
        dropped_rows=rows.dropped,
        bad_rows=as_json(rows.bad_rows),
        derived_splits=rows.derived,
        train_runtime=training["train_runtime"],
        train_samples_per_second=training["train_samples_per_second"],
        training=_last_logged(trainer),
        parameters=parameters,
        embeddings=None if loaded.embeddings is None else publishable(asdict(loaded.embeddings)),
        versions=package_versions(),
        device=device_name(trainer.args.device),
        labels=list(getattr(rows.task, "labels", ())),
        constant_prediction={
            split: answer
            for split, evaluation in evaluations.items()
            if (answer := processor_for(rows.task).constant_prediction(rows.task, evaluation.predictions)) is not None
        },
        best=best_model(trainer),
        stopped_at=stopped_at(trainer),
    )


def _remarks(
    task: Task, options: RunOptions, cut: Mapping[str, TruncatedRows], of_model: Sequence[str | None]
) -> Iterator[str]:
    """Yield what is to be known of the rows and the attention before a training begins."""
    labels = getattr(task, "labels", ())
    if options.task is None and labels:
        numbered = [f"{number} = {name}" for number, name in enumerate(labels)]
        yield f"{task.name}, {len(labels)} labels: {listing(numbered)}"
    elif options.task is None:
        yield f"{task.name}: the labels are scores"
    if SAMPLING_OPTION in capabilities_of(options.model.model).training_defaults:
        yield f"batches of rows {ORDERS_IN_WORDS[options.training.train_sampling_strategy]}"
    if options.attention.filled_slots:
        weight = "" if options.attention.alignment is None else f", λ {options.attention.alignment_weight:g}"
        yield f"attention {options.attention.name}{weight}"
    yield from filter(None, of_model)
    yield from seen_before([options.model.model], [task.name])
    yield from (f"{split}: {rows}" for split, rows in cut.items())


def _of_unknown_words(options: RunOptions, data: EncodedData, loaded: BuiltModel) -> Iterator[str]:
    """Yield of which splits a model from nothing knows too few words."""
    if capabilities_of(options.model.model).is_pretrained:
        return
    for split, encoded in data.evaluation.items():
        share = unknown_share(encoded, loaded.processor)
        if share > MANY:
            yield (
                f"{split}: {100 * share:.1f} % of the words are unknown to the model, more than {100 * MANY:.0f} %: it "
                "knows those of its training rows alone, and passes over others"
            )


def check_output_dir(options: RunOptions) -> None:
    """Refuse a folder that holds another run or other files, and a checkpoint of another run."""
    folder = options.output_dir
    given = options.values["resume_from_checkpoint"]
    if given not in NEWEST_CHECKPOINT:
        resumed = Path(given).absolute().parent / CONFIG_FILE
        _check_differences(options, resumed, f"--resume_from_checkpoint {given} is of another run", "give another")
    if not folder.exists():
        return
    task = options.data.task
    if (folder / TASK_FILE).is_file() and task is not None and Path(task).is_file() and options.task != get_task(task):
        raise AlignAttnError(f"{folder} holds a run of {task} as it was before: give another --output_dir")
    # A run that failed before its first checkpoint leaves its config alone: nothing would be lost.
    if folder.is_dir() and not is_begun(folder):
        return
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise AlignAttnError(f"{folder} exists and is no run of alignattn: give another --output_dir")
    may_differ = {MODEL_OPTION} if is_same_start(options, folder) else frozenset()
    problem = f"{folder} already holds another run"
    _check_differences(options, config, problem, "give another --output_dir", may_differ)
    check_same_data(options, folder)


def _check_differences(
    options: RunOptions, config: Path, problem: str, advice: str, may_differ: Set[str] = frozenset()
) -> None:
    """Refuse options that make another run than those of a file, which need not be there."""
    written = read_yaml(config) if config.is_file() else {}
    differing = sorted(set(options.differences(written)) - OPTIONS_THAT_MAY_DIFFER - may_differ) if written else []
    if differing:
        raise AlignAttnError(f"{problem} (it differs in {', '.join(differing)}): {advice}")


def _checkpoint_to_resume(options: RunOptions, args: RunArguments, model: Any) -> str | None:
    if args.resume_from_checkpoint not in NEWEST_CHECKPOINT:
        checkpoint = Path(args.resume_from_checkpoint)
        check_checkpoint(checkpoint, model)
    elif (newest := last_whole_checkpoint(options.output_dir)) is not None:
        checkpoint = newest
        print(f"resuming from {checkpoint}")
        check_checkpoint(checkpoint)
    else:
        return None
    return str(checkpoint)


def _build_trainer(
    loaded: BuiltModel, task: Task, data: EncodedData, args: RunArguments, options: TrainingOptions
) -> TaskTrainer:
    watched = processor_for(task).watched(list(data.evaluation))
    choose_metric(args, options, task, watched)
    stops = stopping(args, options.early_stopping_patience)
    check_full_batch(args, len(data.train.encoded))
    if not data.evaluation:
        print("no --validation_file: nothing will be evaluated", file=sys.stderr)
    say_reports(args.report_to)
    try:
        return TaskTrainer(
            task=task,
            splits={split: data.evaluation[split] for split in watched},
            model=loaded.model,
            args=args,
            train_dataset=data.train.encoded,
            data_collator=processor_for(task).batches(loaded.processor, data.train, trains=True),
            processing_class=loaded.processor,
            callbacks=[
                Progress.suiting(options.disable_tqdm),
                *([] if stops is None else [stops]),
            ],
        )
    except (ValueError, TypeError, ImportError) as error:
        # The Trainer judges some options by itself, such as --report_to; its messages name them.
        raise AlignAttnError(one_line(error)) from error


def _evaluate(trainer: TaskTrainer, data: EncodedData, folder: Path) -> dict[str, Evaluation]:
    evaluations = {split: trainer.predict_split(encoded) for split, encoded in data.evaluation.items()}
    if evaluations and trainer.is_world_process_zero():
        write_predictions(
            folder, [with_split(evaluation.predictions, split) for split, evaluation in evaluations.items()]
        )
    return evaluations


def write_predictions(folder: Path, tables: Sequence[pa.Table]) -> None:
    """Write the predictions of the splits to `predictions.parquet`."""
    with replacing(folder / PREDICTIONS_FILE) as temporary:
        pq.write_table(pa.concat_tables(tables), temporary)


def with_split(table: pa.Table, split: str) -> pa.Table:
    """Return predictions with the name of their split in every line."""
    return table.add_column(0, "split", pa.array([split] * table.num_rows, pa.string()))


def _last_logged(trainer: AlignmentTrainer) -> dict[str, float | None]:
    """The last logged value of each quantity of the training, such as `align_loss`; None for one that is not finite."""
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        if "loss" in entry or "train_loss" in entry:
            logged |= entry
    lost = sorted(name for name, value in logged.items() if not math.isfinite(value))
    if lost and trainer.is_world_process_zero():
        print(f"not finite at last, and null in {RESULTS_FILE}: {', '.join(lost)}", file=sys.stderr)
    return {name: None if name in lost else value for name, value in logged.items()}


def _count_parameters(model: PreTrainedModel) -> dict[str, int]:
    return {
        "total": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "alignment": sum(parameter.numel() for parameter in alignment_parameters(model)),
        "attention_function": sum(parameter.numel() for parameter in function_parameters(model)),
    }
