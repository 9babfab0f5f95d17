"""The names of recipes, resources and outcomes; imports nothing heavy."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from alignattn.utils.errors import AlignAttnError, unknown

RECIPES: Mapping[str, str] = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
}
"""TextAttack's class for each recipe."""

Outcome = Literal["failed", "succeeded", "skipped"]
"""Outcomes: the attack failed or succeeded, the model was wrong before it, or an error aborted it."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

UNIVERSAL_SENTENCE_ENCODER = "use"
WORDNET = "wordnet"
SOURCES_OF_WORDS = ("word_vectors", "neighbors", "synonyms")

LONGEST = 512
"""Default maximum of tokens, if the model supports it."""


def check_recipe(recipe: str) -> None:
    """Check that there is such a recipe."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)


def check_sources_of_words(given: Any) -> None:
    """Check that `given`, options or resources, names at most one source of words to swap."""
    names = [f"--{name}" for name in SOURCES_OF_WORDS if getattr(given, name) is not None]
    if len(names) > 1:
        raise AlignAttnError(f"{' and '.join(names)} are given: choose one source of words")
