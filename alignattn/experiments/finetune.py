"""One fine-tuning run: options -> rows -> tensors -> patched model -> metrics -> the files of a run's folder."""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from accelerate import PartialState
from transformers import EvalPrediction, PreTrainedModel, PreTrainedTokenizerBase, Trainer, set_seed
from transformers.trainer_utils import SaveStrategy

from alignattn.errors import AlignAttnError
from alignattn.experiments.arguments import DataArguments, ModelArguments, RunArguments, RunOptions
from alignattn.experiments.model_loading import LoadedModel, load_model
from alignattn.experiments.results import (
    CONFIG_FILE,
    PREDICTIONS_FILE,
    RESULTS_FILE,
    RunResult,
    read_result,
    render_metrics,
    write_seed_summary,
)
from alignattn.files import replacing, write_json, write_text
from alignattn.patching import alignment_parameters, function_parameters
from alignattn.tasks import Task, get_task
from alignattn.tasks.conll import TAGS, TOKENS
from alignattn.tasks.kinds import EncodedSplit, Evaluation, TaskKind, kind_of
from alignattn.tasks.rows import Rows, load_rows, load_task_files, load_user_rows, load_user_tags, max_samples
from alignattn.tasks.sources import CONLL
from alignattn.trainer import AlignmentTrainer, last_whole_checkpoint

OPTIONS_THAT_MAY_DIFFER = frozenset({"output_dir", "resume_from_checkpoint", "disable_tqdm", "report_to"})
"""Options that do not make another run of the same folder."""

REPORTED_PACKAGES = ("alignattn", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class EncodedData:
    """The tensors of a run: rows to train on and rows to evaluate on by split."""

    train: EncodedSplit
    evaluation: dict[str, EncodedSplit]


def finetune(options: RunOptions) -> list[RunResult]:
    """Run each seed of the call that is not finished, and write what they share.

    Raises:
        AlignAttnError: for every mistake a user can mend; nothing that was written before is lost.
    """
    runs = options.runs()
    for run in runs:
        check_output_dir(run)
    results = [finetune_one(run) for run in runs]
    if options.values["seeds"] is not None and PartialState().is_main_process:
        print(write_seed_summary(options.output_dir, results))
    # A process group that outlives the interpreter's end aborts now and then in a thread of its own.
    PartialState().destroy_process_group()
    return results


def finetune_one(options: RunOptions) -> RunResult:
    """Fine-tune one seed, evaluate it, and write its folder; a finished run is read, not run again."""
    finished = read_result(options.output_dir)
    if finished is not None:
        print(f"{options.output_dir} is finished already; its results:\n{render_metrics(finished)}")
        return finished
    model_args, data_args, args = options.model(), options.data(), options.training()
    rows = _limited(_load(model_args, data_args), data_args)
    task = rows.task
    if args.label_smoothing_factor and not kind_of(task).smooths_labels(task):
        raise AlignAttnError(f"--label_smoothing_factor: task {task.name!r} has no classes to smooth: leave it out")
    set_seed(args.seed)
    loaded = load_model(model_args, rows, args.seed, skip_bad_rows=data_args.skip_bad_rows)
    data = _encode(rows, loaded.tokenizer, data_args)
    write_text(options.output_dir / CONFIG_FILE, options.to_yaml())
    trainer = _build_trainer(loaded, task, data, args)
    output = trainer.train(resume_from_checkpoint=_checkpoint_to_resume(options, args))
    trainer.save_model()
    trainer.save_state()
    evaluations = _evaluate(trainer, task, data, options.output_dir)
    result = RunResult(
        task=task.name,
        model=model_args.model,
        attention=model_args.attention_config().name,
        attention_config=model_args.attention_config().to_dict(),
        seed=args.seed,
        metrics={split: evaluation.metrics for split, evaluation in evaluations.items()},
        thresholds={
            split: dict(evaluation.thresholds) for split, evaluation in evaluations.items() if evaluation.thresholds
        },
        train_rows=len(data.train.rows),
        evaluation_rows={split: len(encoded.rows) for split, encoded in data.evaluation.items()},
        dropped_rows=rows.dropped,
        bad_rows={split: [asdict(bad) for bad in listed] for split, listed in rows.bad_rows.items()},
        derived_splits=rows.derived,
        train_runtime=output.metrics["train_runtime"],
        train_samples_per_second=output.metrics["train_samples_per_second"],
        training=_last_logged(trainer),
        parameters=_count_parameters(loaded.model),
        embeddings=None if loaded.embeddings is None else asdict(loaded.embeddings),
        versions=package_versions(),
        device=device_name(args.device),
    )
    if trainer.is_world_process_zero():
        write_json(options.output_dir / RESULTS_FILE, result.to_dict())
        print(f"{options.output_dir}\n{render_metrics(result)}")
    return result


def check_output_dir(options: RunOptions) -> None:
    """Refuse a folder that holds another run or other files.

    Raises:
        AlignAttnError: if so.
    """
    folder = options.output_dir
    if not folder.exists():
        return
    # A run that failed before its first checkpoint leaves its config alone: nothing would be lost.
    if folder.is_dir() and {path.name for path in folder.iterdir()} <= {CONFIG_FILE}:
        return
    config = folder / CONFIG_FILE
    if not config.is_file():
        raise AlignAttnError(f"{folder} exists and is no run of alignattn: give another --output_dir")
    mine, theirs = (_comparable(text) for text in (options.to_yaml(), config.read_text(encoding="utf-8")))
    if mine != theirs:
        differing = sorted(name for name in mine | theirs if mine.get(name) != theirs.get(name))
        raise AlignAttnError(
            f"{folder} already holds another run (it differs in {', '.join(differing)}): give another --output_dir"
        )


def _comparable(text: str) -> dict[str, Any]:
    return {name: value for name, value in yaml.safe_load(text).items() if name not in OPTIONS_THAT_MAY_DIFFER}


def _checkpoint_to_resume(options: RunOptions, args: RunArguments) -> str | None:
    if args.resume_from_checkpoint not in (None, "True", "true", "last"):
        if not Path(args.resume_from_checkpoint).is_dir():
            raise AlignAttnError(f"--resume_from_checkpoint: there is no folder {args.resume_from_checkpoint}")
        return str(args.resume_from_checkpoint)
    checkpoint = last_whole_checkpoint(options.output_dir)
    if checkpoint is None:
        return None
    print(f"resuming from {checkpoint}")
    return str(checkpoint)


def _load(model_args: ModelArguments, data_args: DataArguments) -> Rows[Any]:
    reading: dict[str, Any] = {"cache_dir": model_args.cache_dir, "skip_bad_rows": data_args.skip_bad_rows}
    if data_args.train_file is None:
        if data_args.task is None:
            raise AlignAttnError(
                "no data: give --task NAME, or --train_file FILE with --text_columns (or --tokens_column)"
            )
        return load_rows(get_task(data_args.task), data_dir=data_args.data_dir, **reading)
    if data_args.data_dir is not None:
        raise AlignAttnError("--data_dir and --train_file exclude each other: drop one of them")
    files = (data_args.train_file, data_args.validation_file)
    if data_args.task is not None and (data_args.text_columns or data_args.tokens_column):
        raise AlignAttnError(
            "--task and --text_columns (or --tokens_column) exclude each other: with --train_file the task says which "
            "columns are read"
        )
    if data_args.task is not None:
        return load_task_files(get_task(data_args.task), *files, **reading)
    if data_args.text_columns:
        return load_user_rows(*files, data_args.text_columns, data_args.label_column, **reading)
    if Path(data_args.train_file).suffix.lower() == CONLL:
        return load_user_tags(*files, TOKENS, TAGS, **reading)
    if data_args.tokens_column is not None:
        return load_user_tags(*files, data_args.tokens_column, data_args.label_column, **reading)
    raise AlignAttnError(
        "--train_file needs --text_columns with its one or two text columns, --tokens_column with its lists of words, "
        "or --task NAME where it holds rows of that task"
    )


def _limited(rows: Rows[Any], arguments: DataArguments) -> Rows[Any]:
    assert rows.train is not None
    evaluation = {split: max_samples(dataset, arguments.max_eval_samples) for split, dataset in rows.evaluation.items()}
    return replace(rows, train=max_samples(rows.train, arguments.max_train_samples), evaluation=evaluation)


def _encode(rows: Rows[Any], tokenizer: PreTrainedTokenizerBase, arguments: DataArguments) -> EncodedData:
    assert rows.train is not None
    return EncodedData(
        encode_split(rows.task, rows.train, tokenizer, arguments),
        {split: encode_split(rows.task, dataset, tokenizer, arguments) for split, dataset in rows.evaluation.items()},
    )


def encode_split(
    task: Task, rows: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments
) -> EncodedSplit:
    """Return rows with what a model reads of them.

    Raises:
        AlignAttnError: if the options leave no room for a row.
    """
    options = arguments.task_options(task)
    return EncodedSplit(rows, kind_of(task).encode(task, rows, tokenizer, options), options)


class TaskTrainer(AlignmentTrainer):
    """Scores each evaluation set by the metrics of its task and by its own rows."""

    def __init__(self, *args: Any, task: Task, splits: Mapping[str, EncodedSplit], **kwargs: Any) -> None:
        self.scorers = {name: partial(_metrics_of, kind_of(task), task, split) for name, split in splits.items()}
        evaluation: Any = {name: split.encoded for name, split in splits.items()}
        if len(evaluation) == 1:
            # A single set without a name keeps the names of metrics short: eval_accuracy.
            evaluation = next(iter(evaluation.values()))
        super().__init__(
            *args,
            eval_dataset=evaluation or None,
            compute_metrics=next(iter(self.scorers.values()), None),
            **kwargs,
        )

    def evaluate(self, eval_dataset: Any = None, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate as `Trainer` does, which calls itself with the name of each of several sets."""
        if isinstance(eval_dataset, str):
            self.compute_metrics = self.scorers[eval_dataset]
        return super().evaluate(eval_dataset, *args, **kwargs)


def _metrics_of(kind: TaskKind[Any], task: Task, split: EncodedSplit, prediction: EvalPrediction) -> dict[str, float]:
    return kind.evaluate(task, split, prediction.predictions, prediction.label_ids).metrics


def _build_trainer(loaded: LoadedModel, task: Task, data: EncodedData, args: RunArguments) -> TaskTrainer:
    if args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None:
        args.metric_for_best_model = task.main_metric
    _check_best_metric(args.metric_for_best_model, task, list(data.evaluation))
    if not data.evaluation:
        print("no --validation_file: nothing will be evaluated", file=sys.stderr)
    try:
        return TaskTrainer(
            task=task,
            splits=data.evaluation,
            model=loaded.model,
            args=args,
            train_dataset=data.train.encoded,
            data_collator=kind_of(task).collator(loaded.tokenizer),
            processing_class=loaded.tokenizer,
        )
    except (ValueError, TypeError, ImportError) as error:
        # The Trainer judges some options by itself, such as --report_to; its messages name them.
        raise AlignAttnError(" ".join(str(error).split())) from error


def _check_best_metric(name: str | None, task: Task, splits: Sequence[str]) -> None:
    if name is None:
        return
    prefixes = [""] if len(splits) == 1 else [f"{split}_" for split in splits]
    known = [f"{prefix}{metric}" for prefix in prefixes for metric in ("loss", *task.metrics)]
    if name.removeprefix("eval_") not in known:
        raise AlignAttnError(f"--metric_for_best_model {name!r} is not measured: choose one of {', '.join(known)}")


def _evaluate(trainer: TaskTrainer, task: Task, data: EncodedData, folder: Path) -> dict[str, Evaluation]:
    trainer.compute_metrics = None
    evaluations = {split: predict_split(trainer, task, encoded) for split, encoded in data.evaluation.items()}
    if evaluations and trainer.is_world_process_zero():
        write_predictions(folder, {split: evaluation.predictions for split, evaluation in evaluations.items()})
    return evaluations


def predict_split(trainer: Trainer, task: Task, split: EncodedSplit) -> Evaluation:
    """Return what the outputs of the trainer's model for a split are worth."""
    outputs = trainer.predict(split.encoded)
    return kind_of(task).evaluate(task, split, outputs.predictions, outputs.label_ids)


def write_predictions(folder: Path, tables: Mapping[str, pa.Table]) -> None:
    """Write the predictions of the splits to `predictions.parquet`."""
    with replacing(folder / PREDICTIONS_FILE) as temporary:
        pq.write_table(pa.concat_tables(with_split(table, split) for split, table in tables.items()), temporary)


def with_split(table: pa.Table, split: str) -> pa.Table:
    """Return predictions with the name of their split in every line."""
    return table.add_column(0, "split", pa.array([split] * table.num_rows, pa.string()))


def _last_logged(trainer: AlignmentTrainer) -> dict[str, float]:
    """The last logged value of each quantity of the training, such as `align_loss`."""
    logged: dict[str, float] = {}
    for entry in trainer.state.log_history:
        if "loss" in entry or "train_loss" in entry:
            logged |= entry
    return logged


def _count_parameters(model: PreTrainedModel) -> dict[str, int]:
    return {
        "total": sum(parameter.numel() for parameter in model.parameters()),
        "trainable": sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad),
        "alignment": sum(parameter.numel() for parameter in alignment_parameters(model)),
        "attention_function": sum(parameter.numel() for parameter in function_parameters(model)),
    }


def package_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that a result depends on."""
    return {name: version(name) for name in REPORTED_PACKAGES} | {"python": sys.version.split()[0]}


def device_name(device: torch.device) -> str:
    """Return what a device is, in words."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{platform.processor() or platform.machine()} CPU, {torch.get_num_threads()} threads"
