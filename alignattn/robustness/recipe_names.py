"""The names of recipes, of what they are made of and of how attacks end, which need no heavy import."""

from collections.abc import Mapping
from typing import Literal, get_args

from alignattn.support.errors import unknown

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


def check_recipe(recipe: str) -> None:
    """Check that there is such a recipe."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
