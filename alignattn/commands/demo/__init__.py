"""`alignattn demo`."""

from dataclasses import dataclass

from alignattn.models.names import model_name
from alignattn.support.command import Command
from alignattn.support.option import LARGEST_SEED, option
from alignattn.support.options import Options
from alignattn.support.places import output_folder

MOST_ROWS = 20_000
"""No pair is there twice, and the grammar runs out of them."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """The options of `alignattn demo`."""

    output_dir: str = option(
        "demo", "Folder of the data, the two runs and the picture.", metavar="DIR", place=output_folder
    )
    model: str = option("minilm", "Model folder, Hub id, or MiniLM of the extra 'demo'.", place=model_name)
    train_rows: int = option(900, "Generated rows to train on.", low=1, high=MOST_ROWS)
    validation_rows: int = option(300, "Generated rows of each genre to evaluate on.", low=1, high=MOST_ROWS)
    num_train_epochs: float = option(4.0, "Passes over the training rows.", above=0)
    learning_rate: float = option(2e-4, "Learning rate of the pretrained model.", low=0)
    alignment_weight: float = option(0.01, "λ of the aligned run.", low=0)
    seed: int = option(1, "Seed of the data and of both runs.", low=0, high=LARGEST_SEED)


COMMAND = Command(
    "demo",
    "fine-tune MiniLM with plain and with alignment attention on generated sentence pairs",
    DemoOptions,
    run="alignattn.commands.demo.command:run_demo",
    examples=("alignattn demo --output_dir demo",),
)
