"""`alignattn inspect`."""

from dataclasses import dataclass

from alignattn.models.names import model_name
from alignattn.tasks.task import TEXT_FILE
from alignattn.tasks.text_source import check_text_source
from alignattn.utils.command import Command
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, Count, InputDir, InputFile, OutputDir, Seed, option
from alignattn.utils.options import Options

TASK_HELP = "A task of `alignattn list tasks`; its first development split is read."


@dataclass(frozen=True, kw_only=True)
class InspectOptions(Options):
    """The options of `alignattn inspect`."""

    model: str = option(REQUIRED, "Model folder or Hub id; patched by alignattn or not.", place=model_name)
    task: str | None = option(None, TASK_HELP, metavar="TASK")
    validation_file: InputFile | None = option(None, f"Instead of --task: {TEXT_FILE}, one text per line, or a table.")
    compare: str | None = option(None, "Second model to compare with.", place=model_name)
    text_columns: tuple[str, ...] | None = option(None, "One or two text columns of the table.")
    data_dir: InputDir | None = option(None, "Folder of the task's Parquet files (default: the Hub).")
    output_dir: OutputDir = option("inspection", "Folder for the table and the heat maps.")
    max_eval_samples: Count = option(64, "Maximum rows; larger splits are sampled.")
    max_length: Count | None = option(None, "Maximum tokens per row (default: the task's).")
    batch_size: Count = option(8, "Batch size.")
    seed: Seed = option(42, "Seed of the sample.")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_text_source(self, "validation_file", "look at")
        if self.compare == self.model:
            raise AlignAttnError(f"--compare {self.compare} is the same as --model: give another checkpoint")

    def models(self) -> list[str]:
        """Return the models to study: one, or the two to compare."""
        return [self.model] if self.compare is None else [self.model, self.compare]


COMMAND = Command(
    "inspect",
    "measure each attention head of a model, or compare two models: a table and heat maps",
    InspectOptions,
    run="alignattn.commands.inspect.command:inspect_model",
    draws=True,
    examples=("alignattn inspect --model runs/mrpc --task mrpc --compare albert-base-v2 --output_dir heads",),
)
