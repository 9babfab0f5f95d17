"""`alignattn balance`."""

from dataclasses import dataclass

from alignattn.models.names import model_name
from alignattn.tasks.task import TEXT_FILE
from alignattn.tasks.text_source import check_text_source
from alignattn.utils.command import Command
from alignattn.utils.option import REQUIRED, Count, InputDir, InputFile, OutputDir, Seed, option
from alignattn.utils.options import Options

TASK_HELP = "A task of `alignattn list tasks`; its training rows are used."


@dataclass(frozen=True, kw_only=True)
class BalanceOptions(Options):
    """The options of `alignattn balance`."""

    model: str = option(REQUIRED, "Folder, Hub id or minilm; patched by alignattn or not.", place=model_name)
    task: str | None = option(None, TASK_HELP, metavar="TASK")
    train_file: InputFile | None = option(None, f"Instead of --task: {TEXT_FILE}, one text per line, or a table.")
    text_columns: tuple[str, ...] | None = option(None, "One or two text columns of the table.")
    data_dir: InputDir | None = option(None, "Folder of the task's Parquet files (default: the Hub).")
    output_dir: OutputDir = option(REQUIRED, "Folder for the balanced model and its report.")
    max_train_samples: Count = option(256, "Rows that estimate the moments (the first ones).")
    held_back_samples: Count = option(64, "Held-out rows (the next ones) that measure the change.")
    max_length: Count | None = option(None, "Maximum tokens per row (default: the run's, or 128).")
    batch_size: Count = option(16, "Batch size.")
    centre: bool = option(False, "Equalise only the means, which changes one bias.")
    random_seed: Seed | None = option(
        None,
        "Control: a random A with the same eigenvalues.",
        excludes={"centre": "the means alone need no matrix A"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_source(self, "train_file", "balance on")


COMMAND = Command(
    "balance",
    "give queries and keys equal means and covariances without changing what the model computes",
    BalanceOptions,
    run="alignattn.commands.balance.command:balance_checkpoint",
    examples=(
        "alignattn balance --model minilm --task mrpc --output_dir balanced",
        "alignattn balance --model runs/mrpc --train_file texts.txt --output_dir balanced",
    ),
)
