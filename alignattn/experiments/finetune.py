"""One fine-tuning run: options -> rows -> tensors -> patched model -> metrics -> the files of a run's folder."""

import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from accelerate import PartialState
from huggingface_hub.errors import StrictDataclassError
from scipy.special import softmax
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    EvalPrediction,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    set_seed,
)
from transformers.trainer_utils import SaveStrategy

from alignattn.checkpoints import unloadable
from alignattn.config import AttentionConfig
from alignattn.errors import AlignAttnError
from alignattn.experiments.arguments import DataArguments, ModelArguments, RunArguments, RunOptions
from alignattn.experiments.parser import did_you_mean
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
from alignattn.patching import CHILD_NAME, LOADING_HINT, alignment_parameters, function_parameters, patch
from alignattn.tasks import Task, get_task
from alignattn.tasks.encoding import encode
from alignattn.tasks.metrics import compute_metrics, predict
from alignattn.tasks.rows import Rows, load_rows, load_user_rows, max_samples
from alignattn.trainer import AlignmentTrainer, last_whole_checkpoint

OPTIONS_THAT_MAY_DIFFER = frozenset({"output_dir", "resume_from_checkpoint", "disable_tqdm", "report_to"})
"""Options that do not make another run of the same folder."""

REPORTED_PACKAGES = ("alignattn", "torch", "transformers", "datasets", "accelerate")


@dataclass(frozen=True)
class EncodedData:
    """The tensors of a run: rows to train on and rows to evaluate on by split."""

    train: datasets.Dataset
    evaluation: dict[str, datasets.Dataset]


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
    task, rows = _load_task(model_args, data_args)
    set_seed(args.seed)
    model, tokenizer = load_model(model_args, task)
    data = _encode(rows, task, tokenizer, data_args)
    write_text(options.output_dir / CONFIG_FILE, options.to_yaml())
    trainer = _build_trainer(model, tokenizer, task, data, args)
    output = trainer.train(resume_from_checkpoint=_checkpoint_to_resume(options, args))
    trainer.save_model()
    trainer.save_state()
    metrics = _evaluate(trainer, task, data, options.output_dir)
    result = RunResult(
        task=task.name,
        model=model_args.model,
        attention=model_args.attention_config().name,
        attention_config=model_args.attention_config().to_dict(),
        seed=args.seed,
        metrics=metrics,
        train_rows=len(data.train),
        evaluation_rows={split: len(dataset) for split, dataset in data.evaluation.items()},
        dropped_rows=rows.dropped,
        derived_splits=rows.derived,
        train_runtime=output.metrics["train_runtime"],
        train_samples_per_second=output.metrics["train_samples_per_second"],
        training=_last_logged(trainer),
        parameters=_count_parameters(model),
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


def _load_task(model_args: ModelArguments, data_args: DataArguments) -> tuple[Task, Rows]:
    if data_args.train_file is None:
        if data_args.task is None:
            raise AlignAttnError("no data: give --task NAME, or --train_file FILE with --text_columns")
        task = get_task(data_args.task)
        return task, load_rows(task, data_dir=data_args.data_dir, cache_dir=model_args.cache_dir)
    if data_args.task is not None:
        raise AlignAttnError("--task and --train_file exclude each other: drop one of them")
    if not data_args.text_columns:
        raise AlignAttnError("--train_file needs --text_columns: name its one or two text columns")
    return load_user_rows(
        data_args.train_file,
        data_args.validation_file,
        data_args.text_columns,
        data_args.label_column,
        cache_dir=model_args.cache_dir,
    )


def load_model(arguments: ModelArguments, task: Task) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a pretrained model with a head for `task` and patch it; and its tokenizer.

    Raises:
        AlignAttnError: if there is no such model, a field of its config is unknown, or it cannot be patched.
    """
    hub = {"revision": arguments.model_revision, "cache_dir": arguments.cache_dir}
    try:
        config = AutoConfig.from_pretrained(arguments.model, **hub)
        if config._attn_implementation == LOADING_HINT:
            attention = AttentionConfig.from_dict(getattr(config, CHILD_NAME))
            raise AlignAttnError(
                f"{arguments.model!r} was saved with an attention of its own ({attention.describe_slots()}), which "
                "another run cannot start from: give the pretrained model it was made of"
            )
        config.num_labels = task.num_labels
        if task.is_regression:
            config.problem_type = "regression"
        else:
            config.id2label = dict(enumerate(task.labels))
            config.label2id = {label: index for index, label in enumerate(task.labels)}
        _set_config_fields(config, arguments.model_config_fields())
        tokenizer = AutoTokenizer.from_pretrained(arguments.model, **hub)
        model = AutoModelForSequenceClassification.from_pretrained(arguments.model, config=config, **hub)
    except AlignAttnError:
        raise
    except (OSError, ValueError, KeyError) as error:
        raise unloadable(arguments.model, error) from error
    patch(model, arguments.attention_config())
    return model, tokenizer


def _set_config_fields(config: Any, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        if not hasattr(config, name):
            hint = did_you_mean(name, vars(config))
            raise AlignAttnError(f"--model_config: {type(config).__name__} has no field {name!r}{hint}")
        try:
            setattr(config, name, value)
        except (StrictDataclassError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())
            raise AlignAttnError(f"--model_config: {name}={value!r} does not fit: {reason}") from error


def _encode(rows: Rows, task: Task, tokenizer: PreTrainedTokenizerBase, arguments: DataArguments) -> EncodedData:
    def encoded(dataset: datasets.Dataset, limit: int | None) -> datasets.Dataset:
        return encode(
            max_samples(dataset, limit),
            task,
            tokenizer,
            arguments.max_length,
            num_proc=arguments.preprocessing_num_workers,
        )

    assert rows.train is not None
    return EncodedData(
        encoded(rows.train, arguments.max_train_samples),
        {split: encoded(dataset, arguments.max_eval_samples) for split, dataset in rows.evaluation.items()},
    )


def _build_trainer(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    data: EncodedData,
    args: RunArguments,
) -> AlignmentTrainer:
    def metrics_of(prediction: EvalPrediction) -> dict[str, float]:
        return compute_metrics(task, np.asarray(prediction.predictions), np.asarray(prediction.label_ids))

    evaluation: Any = data.evaluation
    if len(evaluation) == 1:
        # A single set without a name keeps the names of metrics short: eval_accuracy.
        evaluation = next(iter(evaluation.values()))
    if args.save_strategy == SaveStrategy.BEST and args.metric_for_best_model is None:
        args.metric_for_best_model = task.main_metric
    _check_best_metric(args.metric_for_best_model, task, list(data.evaluation))
    if not evaluation:
        print("no --validation_file: nothing will be evaluated", file=sys.stderr)
    try:
        return AlignmentTrainer(
            model=model,
            args=args,
            train_dataset=data.train,
            eval_dataset=evaluation or None,
            data_collator=DataCollatorWithPadding(tokenizer),
            processing_class=tokenizer,
            compute_metrics=metrics_of,
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


def _evaluate(trainer: AlignmentTrainer, task: Task, data: EncodedData, folder: Path) -> dict[str, dict[str, float]]:
    metrics, tables = {}, []
    for split, dataset in data.evaluation.items():
        prediction = trainer.predict(dataset, metric_key_prefix=split)
        logits, labels = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
        metrics[split] = compute_metrics(task, logits, labels)
        tables.append(prediction_table(task, split, np.arange(len(labels)), logits, labels))
    if tables and trainer.is_world_process_zero():
        with replacing(folder / PREDICTIONS_FILE) as temporary:
            pq.write_table(pa.concat_tables(tables), temporary)
    return metrics


def prediction_table(task: Task, split: str, rows: np.ndarray, logits: np.ndarray, labels: np.ndarray) -> pa.Table:
    """Return what `predictions.parquet` holds of a split; a regression has no column of probabilities.

    Args:
        task: that the outputs are for.
        split: its name.
        rows: `[N]`, their numbers in the split, from 0.
        logits: `[N, C]`, the model's outputs.
        labels: `[N]`.

    Raises:
        AlignAttnError: if the outputs hold NaN or infinity.
    """
    columns = {
        "split": pa.array([split] * len(labels)),
        "row": pa.array(rows),
        "label": pa.array(labels),
        "prediction": pa.array(predict(task, logits)),
    }
    if not task.is_regression:
        probabilities = softmax(logits.astype(np.float64), axis=1)
        columns["probabilities"] = pa.array(list(probabilities))
    return pa.table(columns)


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
