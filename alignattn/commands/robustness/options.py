"""The options of the commands that attack: which models, by which recipes, made of what."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from alignattn.robustness.recipes import RECIPES, check_recipe
from alignattn.robustness.resources import UNIVERSAL_SENTENCE_ENCODER, WORDNET, Resources
from alignattn.runs.options import LARGEST_SEED
from alignattn.support.errors import AlignAttnError
from alignattn.support.parser import check_range

PROG = "alignattn robustness"
RESOURCE_FILES = ("word_vectors", "neighbors", "mlm", "nltk_data")


@dataclass
class AttackArguments:
    """The options that every command that attacks has."""

    run: list[str] | None = field(
        default=None, metadata={"help": "Run folders of alignattn finetune; several give a table."}
    )
    model: str | None = field(default=None, metadata={"help": "A fine-tuned classifier to attack, with --task."})
    task: str | None = field(default=None, metadata={"help": "The task of --model."})
    recipes: list[str] = field(
        default_factory=lambda: list(RECIPES), metadata={"help": f"Attacks: {', '.join(RECIPES)} (default: all)."}
    )
    num_examples: int = field(
        default=1000,
        metadata={"help": "Examples to attack, not counting rows that the model gets wrong; it may be raised later."},
    )
    attack_columns: list[str] | None = field(
        default=None, metadata={"help": "Columns of a pair whose words may change (default: the recipe's own rule)."}
    )
    data_dir: str | None = field(
        default=None, metadata={"help": "Folder of Parquet files to read instead of the Hub (default: the run's)."}
    )
    skip_bad_rows: bool = field(
        default=False, metadata={"help": "Leave rows out that cannot be used (of a run, those it left out are anyway)."}
    )
    max_length: int = field(default=512, metadata={"help": "Most tokens that the model reads of a row."})
    batch_size: int | None = field(default=None, metadata={"help": "Texts scored at once (default: by the device)."})
    half_precision: bool = field(default=False, metadata={"help": "float16, on CUDA."})
    seed: int = field(default=42, metadata={"help": "Seed of the attacks."})
    word_vectors: str | None = field(
        default=None, metadata={"help": "Word vectors (text or .npz) in place of the counter-fitted ones."}
    )
    neighbors: str | None = field(
        default=None, metadata={"help": "Parquet file of neighbour lists (word, neighbors) in place of word vectors."}
    )
    synonyms: str | None = field(default=None, metadata={"help": f"{WORDNET}: its synonyms in place of word vectors."})
    sentence_encoder: str = field(
        default=UNIVERSAL_SENTENCE_ENCODER,
        metadata={"help": f"{UNIVERSAL_SENTENCE_ENCODER} (Universal Sentence Encoder) or an encoder's folder."},
    )
    mlm: str | None = field(
        default=None, metadata={"help": "Folder of a masked-language model in place of bert-base-uncased."}
    )
    nltk_data: str | None = field(default=None, metadata={"help": "Folder of NLTK data."})
    output_dir: str = field(default="robustness", metadata={"help": "Folder for records and tables."})

    def __post_init__(self) -> None:
        if self.half_precision and not torch.cuda.is_available():
            raise AlignAttnError("--half_precision is for CUDA, and there is no such GPU here: leave it out")
        for name in ("num_examples", "max_length", "batch_size"):
            check_range(self, name, 1)
        check_range(self, "seed", 0, LARGEST_SEED)
        for recipe in self.recipes:
            check_recipe(recipe)
        if len(set(self.recipes)) < len(self.recipes):
            raise AlignAttnError(f"--recipes {' '.join(self.recipes)} names a recipe twice")

    def resources(self) -> Resources:
        """Return what the attacks are made of.

        Raises:
            AlignAttnError: if a file or folder is missing or will not do.
        """
        given = {name: getattr(self, name) for name in RESOURCE_FILES}
        paths = {name: None if value is None else Path(value) for name, value in given.items()}
        resources = Resources(**paths, synonyms=self.synonyms, sentence_encoder=self.sentence_encoder)
        resources.check()
        return resources
