"""`alignattn demo`."""

from dataclasses import dataclass

from alignattn.models.names import model_name
from alignattn.utils.command import Command
from alignattn.utils.option import Count, InputDir, OutputDir, Seed, option
from alignattn.utils.options import Options


@dataclass(frozen=True, kw_only=True)
class DemoOptions(Options):
    """The options of `alignattn demo`."""

    output_dir: OutputDir = option("demo", "Folder of the data, the three runs and the picture.")
    model: str = option("minilm", "Folder or Hub id (default: MiniLM of the extra 'demo').", place=model_name)
    data_dir: InputDir | None = option(
        None,
        "Folder with glue/qqp and twitter_ppdb (Parquet files): use Quora questions and tweets instead of sentences "
        "from the documentation of installed packages.",
    )
    train_rows: Count = option(600, "Rows to train on.")
    validation_rows: Count = option(200, "Evaluation rows per domain.")
    num_train_epochs: float = option(2.0, "Training epochs.", above=0)
    learning_rate: float = option(2e-4, "Peak learning rate of the encoder.", low=0)
    alignment_weight: float = option(0.01, "Weight λ of the alignment loss.", low=0)
    seed: Seed = option(1, "Seed of the sentences and of the runs.")


COMMAND = Command(
    "demo",
    "fine-tune MiniLM with plain, aligned and balanced attention, and plot the results",
    DemoOptions,
    run="alignattn.commands.demo.command:run_demo",
    draws=True,
    examples=("alignattn demo --output_dir demo",),
)
