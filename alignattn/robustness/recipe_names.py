"""The names of recipes, of what they are made of and of how attacks end, which need no heavy import."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from alignattn.utils.errors import AlignAttnError, unknown

RECIPES: Mapping[str, str] = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
}
"""The recipes, each with the class of TextAttack that builds it."""

Outcome = Literal["failed", "succeeded", "skipped"]
"""The model withstood; it did not; there was nothing to attack, or the attack broke off with an error."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

UNIVERSAL_SENTENCE_ENCODER = "use"
WORDNET = "wordnet"
SOURCES_OF_WORDS = ("word_vectors", "neighbors", "synonyms")

LONGEST = 512
"""Tokens that a model is given where nobody says how many, and it takes as many."""


def check_recipe(recipe: str) -> None:
    """Check that there is such a recipe."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)


def check_sources_of_words(given: Any) -> None:
    """Check that the words to swap come from one source at most.

    Args:
        given: has what is given of each as an attribute, or None.
    """
    names = [f"--{name}" for name in SOURCES_OF_WORDS if getattr(given, name) is not None]
    if len(names) > 1:
        raise AlignAttnError(f"{' and '.join(names)} are given: the words to swap come from one of them")
