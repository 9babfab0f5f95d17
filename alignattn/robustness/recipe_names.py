"""The names of recipes and of what they may be made of, for options that are read before anything heavy is imported."""

from collections.abc import Mapping

from alignattn.support.errors import unknown

RECIPES: Mapping[str, str] = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
}
"""The recipes, each with the class of TextAttack that builds it."""

UNIVERSAL_SENTENCE_ENCODER = "use"
WORDNET = "wordnet"


def check_recipe(recipe: str) -> None:
    """Check that there is such a recipe."""
    if recipe not in RECIPES:
        raise unknown("recipe", recipe, RECIPES)
