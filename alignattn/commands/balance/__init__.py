"""`alignattn balance`."""

from dataclasses import dataclass

from alignattn.models.names import model_name
from alignattn.tasks.task import TEXT_FILE
from alignattn.tasks.text_source import check_text_source
from alignattn.utils.command import Command
from alignattn.utils.option import REQUIRED, Count, InputDir, InputFile, OutputDir, Seed, option
from alignattn.utils.options import Options

TASK_HELP = "One of `alignattn list tasks`: its training rows give the moments."


@dataclass(frozen=True, kw_only=True)
class BalanceOptions(Options):
    """The options of `alignattn balance`."""

    model: str = option(REQUIRED, "Folder, Hub id or minilm; patched by alignattn or not.", place=model_name)
    task: str | None = option(None, TASK_HELP, metavar="TASK")
    train_file: InputFile | None = option(None, f"Or a {TEXT_FILE} of a text a line, or a table.")
    text_columns: tuple[str, ...] | None = option(None, "One or two columns of the file that hold the texts.")
    data_dir: InputDir | None = option(None, "Folder of the task's Parquet files (default: the Hub).")
    output_dir: OutputDir = option(REQUIRED, "Folder for the balanced model and its report.")
    max_train_samples: Count = option(256, "First rows, which give the moments.")
    held_back_samples: Count = option(64, "The rows after them, to measure the change on.")
    max_length: Count | None = option(None, "Maximum tokens per row (default: the run's own, or 128).")
    batch_size: Count = option(16, "Batch size.")
    centre: bool = option(False, "Equalise the means only: one bias changes.")
    random_seed: Seed | None = option(
        None,
        "As a control, a random A of the same condition instead.",
        excludes={"centre": "it draws A, and equal means need none"},
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_source(self, "train_file", "balance on")


COMMAND = Command(
    "balance",
    "equal means and covariances of a model's queries and keys in closed form, its function untouched",
    BalanceOptions,
    run="alignattn.commands.balance.command:balance_checkpoint",
    examples=(
        "alignattn balance --model minilm --task mrpc --output_dir balanced",
        "alignattn balance --model runs/mrpc --train_file texts.txt --output_dir balanced",
    ),
)
