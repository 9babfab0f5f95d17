"""TextAttack's recipes, built around a model with the given resources."""

import sys
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from alignattn.robustness import RECIPES
from alignattn.robustness.library import load_textattack
from alignattn.robustness.resources import (
    BERT,
    Resources,
    counter_fitted_vectors,
    prepare_nltk,
    read_neighbors,
    universal_sentence_encoder,
)
from alignattn.utils.attributes import replaced
from alignattn.utils.errors import AlignAttnError

SPARED_COLUMNS = {"textfooler": (("premise", "hypothesis"), frozenset({"premise"}))}
"""The recipes' rule: in an input with exactly these columns, the columns of the set do not change."""


def build_attack(
    recipe: str,
    model_wrapper: Any,
    resources: Resources,
    attack_columns: Sequence[str] | None = None,
    *,
    half_precision: bool = False,
) -> Any:
    """Build a recipe of TextAttack and replace only the parts with other resources.

    Thresholds, window sizes, numbers of candidates, the search and the goal are the recipe's own.

    Args:
        recipe: one of `RECIPES`.
        model_wrapper: the model to attack, as TextAttack's goal functions query it.
        resources: replacements of the originals; necessary originals are downloaded.
        attack_columns: the columns whose words may change; None for the recipe's own rule.
        half_precision: run the sentence encoder and the masked-language model in float16, on CUDA only.

    Returns:
        A `textattack.Attack`.
    """
    resources.check()
    textattack = load_textattack()
    from textattack.constraints.pre_transformation import InputColumnModification
    from textattack.constraints.semantics import WordEmbeddingDistance
    from textattack.transformations import WordSwapEmbedding

    from alignattn.robustness import substitutes

    dtype = torch.float16 if half_precision and torch.cuda.is_available() else torch.float32

    def masked_language_model(**kwargs: Any) -> Any:
        model, tokenizer = _load_masked_language_model(resources.mlm, dtype)
        return substitutes.PaddedToLongest(masked_language_model=model, tokenizer=tokenizer, **kwargs)

    def similarity(**kwargs: Any) -> Any:
        return substitutes.SentenceSimilarity(_load_encoder(resources.encoder_folder, dtype), **kwargs)

    def word_distance(**kwargs: Any) -> Any:
        if not resources.has_vectors:
            return substitutes.LeftOut(**kwargs)
        return WordEmbeddingDistance(embedding=_load_words(resources), **kwargs)

    replacements: dict[str, Callable[..., Any]] = {
        "WordSwapEmbedding": lambda **kwargs: WordSwapEmbedding(embedding=_load_words(resources), **kwargs),
        "WordEmbeddingDistance": word_distance,
        "UniversalSentenceEncoder": similarity,
        "WordSwapMaskedLM": masked_language_model,
        "WordSwapHomoglyphSwap": substitutes.HomoglyphSwap,
        "PartOfSpeech": substitutes.LoadedPartOfSpeech,
    }
    tagger = ("averaged_perceptron_tagger_eng", "universal_tagset")
    packages = {"textfooler": tagger, "textbugger": ("stopwords",), "bae": (*tagger, "stopwords")}
    prepare_nltk(resources.nltk_data, (*packages[recipe], *(["wordnet"] if resources.synonyms else [])))
    recipe_class = getattr(textattack.attack_recipes, RECIPES[recipe])
    module = sys.modules[recipe_class.__module__]
    with replaced(module, **{name: part for name, part in replacements.items() if hasattr(module, name)}):
        attack = recipe_class.build(model_wrapper)
    attack.constraints = [rule for rule in attack.constraints if not isinstance(rule, substitutes.LeftOut)]
    if attack_columns is not None:
        kept = [rule for rule in attack.pre_transformation_constraints if not isinstance(rule, InputColumnModification)]
        attack.pre_transformation_constraints = [*kept, substitutes.OnlyColumns(attack_columns)]
    return attack


def attacked_columns(recipe: str, columns: Sequence[str], chosen: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the columns whose words an attack may change, in the order of `columns`.

    TextFooler's own rule keeps the premise of an input of `premise` and `hypothesis`, and attacks both texts of any
    other pair, such as `sentence1` and `sentence2`. TextBugger and BAE attack every column.

    Args:
        recipe: one of `RECIPES`.
        columns: the columns of an input.
        chosen: the columns of `--attack_columns`; None for the recipe's own rule.
    """
    if chosen is None:
        matching, spared = SPARED_COLUMNS.get(recipe, ((), frozenset()))
        return tuple(column for column in columns if tuple(columns) != matching or column not in spared)
    unknown = [column for column in chosen if column not in columns]
    if unknown or not chosen:
        raise AlignAttnError(
            f"--attack_columns {' '.join(chosen)}: choose from the task's columns: {', '.join(columns)}"
        )
    return tuple(column for column in columns if column in chosen)


@lru_cache(maxsize=1)
def _load_words(resources: Resources) -> Any:
    """Return the embedding of `WordSwapEmbedding`: candidates of each word, with or without vectors."""
    from alignattn.models.words import read_embeddings
    from alignattn.robustness.substitutes import CandidateLists, VectorEmbedding, wordnet_synonyms

    if resources.synonyms is not None:
        return CandidateLists(cache(wordnet_synonyms))
    if resources.neighbors is not None:
        neighbors = read_neighbors(resources.neighbors)
        return CandidateLists(lambda word: neighbors.get(word, []))
    path = resources.word_vectors or counter_fitted_vectors()
    # The reader's own message suggests --skip_bad_rows, which here skips rows to attack.
    embeddings = read_embeddings(path, None, skip_bad_rows=True)
    if embeddings.bad_lines:
        line, problem = embeddings.bad_lines[0]
        raise AlignAttnError(
            f"{path}, line {line}: {problem} ({len(embeddings.bad_lines)} bad lines); correct the file, or give "
            "another with --word_vectors FILE"
        )
    return VectorEmbedding(list(embeddings.vectors), np.stack(list(embeddings.vectors.values())))


@lru_cache
def _load_encoder(folder: Path | None, dtype: torch.dtype) -> Any:
    from textattack.constraints.semantics.sentence_encoders import UniversalSentenceEncoder
    from textattack.shared.utils import device

    from alignattn.robustness.models import CachedEncoder, load_sentence_encoder

    if folder is not None:
        return load_sentence_encoder(folder, device, dtype)
    original = UniversalSentenceEncoder()
    original.model = universal_sentence_encoder(original._tfhub_url)
    return CachedEncoder(original.encode)


@lru_cache(maxsize=1)
def _load_masked_language_model(folder: Path | None, dtype: torch.dtype) -> Any:
    from transformers import AutoModelForMaskedLM

    from alignattn.patching.checkpoints import load_pretrained

    model, tokenizer = load_pretrained(
        str(folder or BERT),
        AutoModelForMaskedLM,
        lacking="masked-language head: train one with docs/examples/train_mlm.py",
        choices="the folder of a masked-language model with --mlm; docs/examples/train_mlm.py trains a stand-in",
        use_safetensors=True,
    )
    network: torch.nn.Module = model
    network.to(dtype=dtype)
    return model, tokenizer
