"""`alignattn balance`: balance a checkpoint's queries and keys without changing its function, and write a report."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from alignattn.models.names import model_name
from alignattn.tasks.names import TEXT_FILE
from alignattn.tasks.text_source import check_text_source
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.options import REQUIRED, Count, InputDir, InputFile, Options, OutputDir, option


@dataclass(frozen=True, kw_only=True)
class BalanceOptions(Options):
    """The options of `alignattn balance`."""

    model: str = option(REQUIRED, "Folder, Hub id or minilm; patched by alignattn or not.", place=model_name)
    task: str | None = option(None, "A task of `alignattn list tasks`; its training rows are used.", metavar="TASK")
    train_file: InputFile | None = option(None, f"Instead of --task: {TEXT_FILE}, one text per line, or a table.")
    text_columns: tuple[str, ...] | None = option(None, "One or two text columns of the table.")
    data_dir: InputDir | None = option(None, "Folder of the task's Parquet files (default: the Hub).")
    output_dir: OutputDir = option(REQUIRED, "Folder for the balanced model and its report.")
    max_train_samples: Count = option(256, "Rows that estimate the moments (the first ones).")
    held_back_samples: Count = option(64, "Held-out rows (the next ones) that measure the change.")
    max_length: Count | None = option(None, "Maximum tokens per row (default: the run's, or 128).")
    batch_size: Count = option(16, "Batch size.")
    centre: bool = option(False, "Equalise only the means, which changes one bias.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_source(self, "train_file", "balance on")


COMMAND = Command(
    "balance",
    "give queries and keys equal means and covariances without changing what the model computes",
    BalanceOptions,
    run="alignattn.commands.balance:balance_checkpoint",
    examples=(
        "alignattn balance --model minilm --task mrpc --output_dir balanced",
        "alignattn balance --model runs/mrpc --train_file texts.txt --output_dir balanced",
    ),
)


def balance_checkpoint(arguments: BalanceOptions) -> Any:
    """Balance a checkpoint, write it with its tokenizer and `balance.json` to a folder, and print what changed."""
    import alignattn
    from alignattn.finetuning.callbacks import split_rows
    from alignattn.finetuning.heads import check_only_texts
    from alignattn.finetuning.rows import file_texts, input_batches
    from alignattn.finetuning.run_folder import is_run_folder, read_finished_run
    from alignattn.models.lengths import most_tokens
    from alignattn.patching.balance import balance
    from alignattn.patching.checkpoints import load_pretrained
    from alignattn.tasks.definitions import get_task
    from alignattn.tasks.rows import load_rows
    from alignattn.tasks.task import TaskOptions
    from alignattn.utils.files import write_json
    from alignattn.utils.paths import check_free, publishable, unfinished

    folder = Path(arguments.output_dir)
    check_free(folder, ("balance.json", "config.json"))
    model_class = _class_of(arguments.model)
    if arguments.task is None:
        task, rows = file_texts(Path(str(arguments.train_file)), arguments.text_columns or ())
    else:
        task = get_task(arguments.task)
        check_only_texts(arguments.model, type(task), task.name)
        loaded = load_rows(task, data_dir=arguments.data_dir)
        task, rows = loaded.task, loaded.train
    model, tokenizer = load_pretrained(arguments.model, model_class, tokenizer_options=task.tokenizer_options)
    max_length = arguments.max_length or 128
    if arguments.max_length is None and is_run_folder(Path(arguments.model)):
        run = read_finished_run(Path(arguments.model), "--model")
        max_length = run.options.data.task_options(run.task, tokenizer).max_length
    options = TaskOptions(min(max_length, most_tokens(model, tokenizer)), doc_stride=0)
    limits = arguments.max_train_samples, arguments.held_back_samples
    splits = split_rows(task, rows, tokenizer, options, *limits)
    moments, held_back = (
        input_batches(task, split, tokenizer, range(len(split.encoded)), arguments.batch_size) for split in splits
    )
    report = balance(model, moments, held_back=held_back, centre=arguments.centre)
    of_moments, of_change = (len(split.rows) for split in splits)
    data = publishable(arguments.task or arguments.train_file)
    with unfinished(folder):
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        settings = publishable(asdict(arguments) | {"output_dir": None, "max_length": options.max_length})
        counts = {"data": data, "moment_rows": of_moments, "held_back_rows": of_change}
        write_json(
            folder / "balance.json",
            {"alignattn": alignattn.__version__, "settings": settings, **counts, **report.to_dict()},
        )
    print(
        f"{report.describe()}\nrows of {data}: {of_moments} for the moments, {of_change} held out\nwritten to {folder}"
    )
    return report


def _class_of(name: str) -> Any:
    """The model class in a checkpoint's config: loading with it keeps the head."""
    from transformers import AutoModel

    from alignattn.finetuning.heads import check_reads_tokens
    from alignattn.models import MODEL_TYPE_PREFIX, capabilities_of
    from alignattn.models.build import saved_class
    from alignattn.patching.checkpoints import class_with_head, loading, read_config_fields

    with loading(name):
        fields = read_config_fields(name)
    if saved_class(fields) is not None:
        capabilities = capabilities_of(str(fields["model_type"]).removeprefix(MODEL_TYPE_PREFIX))
        instead = ", or call alignattn.balance on it" if capabilities.has_heads else ""
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
