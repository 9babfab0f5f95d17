"""The options of `alignattn robustness` and its subcommands."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from alignattn.finetuning.run_folder import run_folder
from alignattn.finetuning.training_options import RUN, SAVE_STRATEGIES, TRAINING, TransformersOptions
from alignattn.models.names import model_folder, model_name
from alignattn.robustness.recipe_names import (
    LONGEST,
    OUTCOMES,
    RECIPES,
    UNIVERSAL_SENTENCE_ENCODER,
    WORDNET,
)
from alignattn.tasks import get_task
from alignattn.utils.errors import AlignAttnError
from alignattn.utils.option import REQUIRED, Count, InputDir, InputFile, OutputDir, OutputFile, Seed, option
from alignattn.utils.options import Options, options_of
from alignattn.utils.places import input_file_like
from alignattn.utils.shard import WHOLE, Shard

if TYPE_CHECKING:
    from alignattn.robustness.resources import Resources

ROBUSTNESS = "alignattn robustness"
EXAMPLES = "Correctly classified examples to attack; may be raised later."
ENCODERS = f"{UNIVERSAL_SENTENCE_ENCODER} (Universal Sentence Encoder), or the folder of an encoder."
RESOURCE_FILES = ("word_vectors", "neighbors", "mlm", "nltk_data")
RESOURCES = "resources"
"""Group in the help."""

SOURCES_OF_WORDS = "both define the replacements of a word"
OF_A_RUN = {"run": "a run has its model and task"}

DEFAULT_LIMIT = 20
"""Examples shown in the terminal; a page shows all."""


@dataclass(frozen=True, kw_only=True)
class AttackOptions(Options):
    """The options of all commands that attack: models, recipes and resources."""

    run: tuple[str, ...] | None = option(
        None,
        "Run folders of `alignattn finetune`.",
        metavar="DIR",
        place=run_folder,
    )
    model: str | None = option(
        None, "Fine-tuned classifier to attack; needs --task.", place=model_name, requires=("task",), excludes=OF_A_RUN
    )
    task: str | None = option(None, "Task of --model.", metavar="TASK", requires=("model",), excludes=OF_A_RUN)
    recipes: tuple[str, ...] = option(tuple(RECIPES), "Attacks.", choices=tuple(RECIPES), distinct="recipe")
    num_examples: Count = option(1000, EXAMPLES)
    attack_columns: tuple[str, ...] | None = option(None, "Columns to attack (default: the recipe's rule).")
    data_dir: InputDir | None = option(None, "Folder of Parquet files (default: the run's, or the Hub).")
    skip_bad_rows: bool = option(False, "Skip bad rows (default: as the run did).")
    max_length: Count | None = option(None, f"Maximum tokens per row (default: the run's, or the model's, {LONGEST}).")
    batch_size: Count | None = option(None, "Batch size of scoring (default: by the device).")
    half_precision: bool = option(False, "Score in float16 (CUDA only).")
    seed: Seed = option(42, "Seed of the attacks.")
    word_vectors: InputFile | None = option(None, "Replace the counter-fitted vectors.", group=RESOURCES)
    neighbors: InputFile | None = option(
        None,
        "Replace them by a Parquet file (word, neighbors).",
        group=RESOURCES,
        excludes={"word_vectors": SOURCES_OF_WORDS},
    )
    synonyms: str | None = option(
        None,
        "Replace them by the synonyms of WordNet.",
        group=RESOURCES,
        choices=(WORDNET,),
        metavar=WORDNET,
        excludes=dict.fromkeys(("word_vectors", "neighbors"), SOURCES_OF_WORDS),
    )
    sentence_encoder: str = option(
        UNIVERSAL_SENTENCE_ENCODER, ENCODERS, group=RESOURCES, metavar="DIR", place=model_folder
    )
    mlm: InputDir | None = option(None, "Masked-language model (default: bert-base-uncased).", group=RESOURCES)
    nltk_data: InputDir | None = option(None, "Folder of NLTK data.", group=RESOURCES)
    output_dir: OutputDir = option("robustness", "Folder for records and tables.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.attacks and not self.run and self.model is None:
            raise AlignAttnError("nothing to attack: give --run FOLDER, or --model FOLDER with --task NAME")
        if self.task is not None:
            get_task(self.task, file_option=None)

    @property
    def attacks(self) -> bool:
        """Whether anything is attacked."""
        return True

    def resources(self) -> "Resources":
        """Return the resources of the attacks."""
        # Imported here, because the options do not need its packages.
        from alignattn.robustness.resources import Resources

        given = {name: getattr(self, name) for name in RESOURCE_FILES}
        paths = {name: None if value is None else Path(value) for name, value in given.items()}
        resources = Resources(**paths, synonyms=self.synonyms, sentence_encoder=self.sentence_encoder)
        resources.check()
        return resources


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(AttackOptions):
    """The options of `alignattn robustness`."""

    shard: str = option(str(WHOLE), "Attack one part of the rows, such as 3/8.", metavar="N/COUNT")
    merge: bool = option(False, "Merge the shards in --output_dir and write the table.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.part
        if not self.merge:
            return
        known = options_of(type(self))
        others = [name for name in known.keys() - {"merge", "output_dir"} if getattr(self, name) != known[name].default]
        if others:
            raise AlignAttnError(f"--merge works with --output_dir alone: leave --{' and --'.join(sorted(others))} out")

    @property
    def attacks(self) -> bool:
        """Whether anything is attacked instead of merged."""
        return not self.merge

    @cached_property
    def part(self) -> Shard:
        """The requested shard."""
        return Shard.parse(self.shard)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """The options of `alignattn robustness show`."""

    results: str = option(
        REQUIRED,
        "JSON lines file of an attack.",
        positional=True,
        metavar="RESULTS",
        place=input_file_like("*.jsonl"),
    )
    html: OutputFile | None = option(None, "Write the examples to a new HTML page.")
    limit: Count | None = option(None, f"Maximum examples (default: {DEFAULT_LIMIT}; all in a page).")
    outcome: str | None = option(None, f"Show one outcome only: {', '.join(OUTCOMES)}.", choices=OUTCOMES)
    labels: tuple[str, ...] | None = option(None, "Class names (default: the task's).")


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageTrainingOptions(TransformersOptions):
    """transformers' training options, with the defaults for a new head on a pretrained encoder."""

    hidden = frozenset({"push_to_hub"})
    output_dir: OutputDir = option(REQUIRED, "Folder of the model.", group=RUN)
    learning_rate: float = option(1e-4, "Learning rate of encoder and head.", group=TRAINING, low=0)
    num_train_epochs: float = option(3.0, "Training epochs.", group=TRAINING, above=0)
    per_device_train_batch_size: Count = option(32, "Training batch size.", group=TRAINING)
    per_device_eval_batch_size: Count = option(64, "Evaluation batch size.", group=TRAINING)
    save_strategy: str = option("no", "When to save checkpoints.", group=RUN, choices=SAVE_STRATEGIES)


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageOptions(Options):
    """The options of `alignattn robustness train-mlm`.

    Attributes:
        training: the training options of encoder and head.
    """

    training: MaskedLanguageTrainingOptions
    model: str = option(REQUIRED, "Folder or Hub id of the encoder, such as a MiniLM.", place=model_name)
    train_file: tuple[InputFile, ...] = option(REQUIRED, "One text per line; or tables, with --text_columns.")
    text_columns: tuple[str, ...] | None = option(None, "Text columns of the tables; each cell is one text.")
    max_length: Count = option(64, "Maximum tokens per text; longer ones are truncated.")
    mlm_probability: float = option(0.15, "Share of masked tokens.", above=0, below=1)
