"""`alignattn balance`: balance a checkpoint's queries and keys without changing its function, and write a report."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import datasets
from transformers import AutoModel

import alignattn
from alignattn.commands.balance import BalanceOptions
from alignattn.finetuning.callbacks import split_rows
from alignattn.finetuning.heads import check_only_texts, check_reads_tokens
from alignattn.finetuning.rows import file_texts, input_batches
from alignattn.finetuning.run_folder import is_run_folder, read_finished_run
from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
from alignattn.models.build import saved_class
from alignattn.models.lengths import most_tokens
from alignattn.patching.balance import BalanceReport, balance
from alignattn.patching.checkpoints import class_with_head, load_pretrained, loading, read_config_fields
from alignattn.tasks import Task, get_task
from alignattn.tasks.processor import EncodedSplit
from alignattn.tasks.rows import load_rows
from alignattn.tasks.task import TaskOptions
from alignattn.tasks.task_types import processor_class, processor_for
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.files import check_free, unfinished, write_json
from alignattn.utils.publishing import publishable

REPORT_FILE = "balance.json"
MODEL_FILE = "config.json"
MAX_LENGTH = 128
"""Default of `--max_length` for a model that is not a run of alignattn."""


def balance_checkpoint(arguments: BalanceOptions) -> BalanceReport:
    """Balance a checkpoint, write it with its tokenizer and `balance.json` to a folder, and print what changed."""
    folder = Path(arguments.output_dir)
    check_free(folder, (REPORT_FILE, MODEL_FILE))
    model_class = _class_of(arguments.model)
    task, rows = _texts(arguments)
    moments, measured = split_rows(len(rows), arguments.max_train_samples, arguments.held_back_samples)
    processor = processor_for(task)
    model, tokenizer = load_pretrained(arguments.model, model_class, tokenizer_options=processor.tokenizer_options)
    most = most_tokens(model, tokenizer)
    options = TaskOptions(min(arguments.max_length or _length_of(arguments.model, tokenizer), most), doc_stride=0)
    chosen = rows.select(range(measured.stop))
    split = EncodedSplit(chosen, processor.encode(chosen, tokenizer, options), options, tokenizer)
    report = balance(
        model,
        input_batches(task, split, tokenizer, moments, arguments.batch_size),
        held_back=input_batches(task, split, tokenizer, measured, arguments.batch_size),
        centre=arguments.centre,
        random_seed=arguments.random_seed,
    )
    data = publishable(arguments.task or arguments.train_file)
    with unfinished(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        settings = publishable(asdict(arguments) | {"output_dir": None, "max_length": options.max_length})
        counts = {"data": data, "moment_rows": len(moments), "held_back_rows": len(measured)}
        write_json(
            folder / REPORT_FILE,
            {"alignattn": alignattn.__version__, "settings": settings, **counts, **report.to_dict()},
        )
    print(
        f"{report.describe()}\nrows of {data}: {len(moments)} for the moments, {len(measured)} held out\nwritten "
        f"to {folder}"
    )
    return report


def _texts(arguments: BalanceOptions) -> tuple[Task, datasets.Dataset]:
    if arguments.task is None:
        return file_texts(Path(str(arguments.train_file)), arguments.text_columns or ())
    task = get_task(arguments.task)
    check_only_texts(arguments.model, processor_class(task), task.name)
    loaded = load_rows(task, data_dir=arguments.data_dir)
    assert loaded.train is not None
    return loaded.task, loaded.train


def _length_of(model: str, tokenizer: Any) -> int:
    """The maximum number of tokens of a run; the default for a model that is not a run."""
    if not is_run_folder(Path(model)):
        return MAX_LENGTH
    run = read_finished_run(Path(model), "--model")
    return run.options.data.task_options(run.task, tokenizer).max_length


def _class_of(name: str) -> Any:
    """The model class in a checkpoint's config: loading with it keeps the head."""
    with loading(name):
        fields = read_config_fields(name)
    if saved_class(fields) is not None:
        capabilities = capabilities_of(str(fields["model_type"]).removeprefix(MODEL_TYPE_PREFIX))
        instead = ", or train it with `alignattn finetune --balance end`" if capabilities.has_heads else ""
        raise AlignAttnError(
            f"{name!r} is a trained {fields['model_type']} model, and this command balances only pretrained "
            f"encoders: give one{instead}"
        )
    check_reads_tokens(name, fields)
    own = class_with_head(fields)
    if own is None and fields.get("architectures"):
        raise AlignAttnError(
            f"{name!r} was saved from {fields['architectures'][0]}, which transformers lacks, and its head would be "
            "lost: give its encoder alone"
        )
    return own or AutoModel
