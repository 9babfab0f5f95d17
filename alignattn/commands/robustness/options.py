"""The options of `alignattn robustness` and of what goes with it."""

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
    check_sources_of_words,
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
EXAMPLES = "Examples to attack, without rows that the model gets wrong; it may be raised later."
ENCODERS = f"{UNIVERSAL_SENTENCE_ENCODER} (Universal Sentence Encoder) or an encoder's folder."
RESOURCE_FILES = ("word_vectors", "neighbors", "mlm", "nltk_data")
RESOURCES = "resources"
"""Group in the help."""

DEFAULT_LIMIT = 20
"""Examples that the terminal shows; a page holds all."""


@dataclass(frozen=True, kw_only=True)
class AttackOptions(Options):
    """The options that every command that attacks has: which models, by which recipes, made of what."""

    run: tuple[str, ...] | None = option(
        None,
        "Run folders of alignattn finetune; several give a table.",
        metavar="DIR",
        place=run_folder,
    )
    model: str | None = option(None, "A fine-tuned classifier to attack, with --task.", place=model_name)
    task: str | None = option(None, "The task of --model.", metavar="TASK")
    recipes: tuple[str, ...] = option(tuple(RECIPES), "Attacks.", choices=tuple(RECIPES), distinct="recipe")
    num_examples: Count = option(1000, EXAMPLES)
    attack_columns: tuple[str, ...] | None = option(None, "Columns to change (default: the recipe's own rule).")
    data_dir: InputDir | None = option(None, "Folder of Parquet files (default: the run's, or the Hub).")
    skip_bad_rows: bool = option(False, "Leave out rows that cannot be used (those of a run anyway).")
    max_length: Count | None = option(None, f"Maximum tokens per row (default: the run's, or the model's, {LONGEST}).")
    batch_size: Count | None = option(None, "Batch size of scoring (default: by the device).")
    half_precision: bool = option(False, "float16, on CUDA.")
    seed: Seed = option(42, "Seed of the attacks.")
    word_vectors: InputFile | None = option(None, "In place of counter-fitted vectors.", group=RESOURCES)
    neighbors: InputFile | None = option(None, "Parquet (word, neighbors) in their place.", group=RESOURCES)
    synonyms: str | None = option(
        None, "Its synonyms in their place.", group=RESOURCES, choices=(WORDNET,), metavar=WORDNET
    )
    sentence_encoder: str = option(
        UNIVERSAL_SENTENCE_ENCODER, ENCODERS, group=RESOURCES, metavar="DIR", place=model_folder
    )
    mlm: InputDir | None = option(None, "Masked-language model, not bert-base-uncased.", group=RESOURCES)
    nltk_data: InputDir | None = option(None, "Folder of NLTK data.", group=RESOURCES)
    output_dir: OutputDir = option("robustness", "Folder for records and tables.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.run and (self.model is not None or self.task is not None):
            raise AlignAttnError("--run names model and task: leave --model and --task out")
        if self.attacks and not self.run and (self.model is None or self.task is None):
            raise AlignAttnError("nothing to attack: give --run FOLDER, or --model FOLDER with --task NAME")
        if self.task is not None:
            get_task(self.task)
        check_sources_of_words(self)

    @property
    def attacks(self) -> bool:
        """Whether anything is attacked."""
        return True

    def resources(self) -> "Resources":
        """Return what the attacks are made of."""
        # It reads tables, which no option needs.
        from alignattn.robustness.resources import Resources

        given = {name: getattr(self, name) for name in RESOURCE_FILES}
        paths = {name: None if value is None else Path(value) for name, value in given.items()}
        resources = Resources(**paths, synonyms=self.synonyms, sentence_encoder=self.sentence_encoder)
        resources.check()
        return resources


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions(AttackOptions):
    """The options of `alignattn robustness`."""

    shard: str = option(str(WHOLE), "Attack a part of the rows alone, such as 3/8.", metavar="N/COUNT")
    merge: bool = option(False, "Merge the shards in --output_dir, and write the table of all runs there.")

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.part
        if not self.merge:
            return
        known = options_of(type(self))
        others = [name for name in known.keys() - {"merge", "output_dir"} if getattr(self, name) != known[name].default]
        if others:
            raise AlignAttnError(f"--merge takes --output_dir alone: leave --{' and --'.join(sorted(others))} out")

    @property
    def attacks(self) -> bool:
        """Whether anything is attacked, and not merged."""
        return not self.merge

    @cached_property
    def part(self) -> Shard:
        """The shard that is asked for."""
        return Shard.parse(self.shard)


@dataclass(frozen=True, kw_only=True)
class ShowOptions(Options):
    """The options of `alignattn robustness show`."""

    results: str = option(
        REQUIRED,
        "JSON lines that an attack wrote.",
        positional=True,
        metavar="RESULTS",
        place=input_file_like("*.jsonl"),
    )
    html: OutputFile | None = option(None, "Write one page of the examples to this new file.")
    limit: Count | None = option(None, f"Maximum examples (default: {DEFAULT_LIMIT}; all in a page).")
    outcome: str | None = option(None, f"Only those that {', '.join(OUTCOMES)}.", choices=OUTCOMES)
    labels: tuple[str, ...] | None = option(None, "Names of the classes (default: those of the task).")


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageTrainingOptions(TransformersOptions):
    """transformers' training options, with the defaults for a new head on a pretrained encoder."""

    hidden = frozenset({"push_to_hub"})
    output_dir: OutputDir = option(REQUIRED, "Folder of the model.", group=RUN)
    learning_rate: float = option(1e-4, "Learning rate of encoder and head.", group=TRAINING, low=0)
    num_train_epochs: float = option(3.0, "Training epochs.", group=TRAINING, above=0)
    per_device_train_batch_size: Count = option(32, "Training batch size.", group=TRAINING)
    per_device_eval_batch_size: Count = option(64, "Evaluation batch size.", group=TRAINING)
    save_strategy: str = option("no", "When checkpoints are saved.", group=RUN, choices=SAVE_STRATEGIES)


@dataclass(frozen=True, kw_only=True)
class MaskedLanguageOptions(Options):
    """The options of `alignattn robustness train-mlm`.

    Attributes:
        training: of encoder and head.
    """

    training: MaskedLanguageTrainingOptions
    model: str = option(REQUIRED, "Folder or Hub id of the encoder, such as a MiniLM.", place=model_name)
    train_file: tuple[InputFile, ...] = option(REQUIRED, "One text per line; or tables, with --text_columns.")
    text_columns: tuple[str, ...] | None = option(None, "Columns of the tables; each holds texts of its own.")
    max_length: Count = option(64, "Maximum tokens per text; longer ones are truncated.")
    mlm_probability: float = option(0.15, "Share of masked tokens.", above=0, below=1)
