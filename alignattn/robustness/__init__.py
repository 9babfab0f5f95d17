"""Attacks on fine-tuned classifiers with TextAttack's recipes TextFooler, TextBugger and BAE.

A run's model is wrapped (`models`), a recipe is built around it (`recipes`) with the given linguistic resources
(`resources`), and each row is attacked (`loop`). Importing this package does not import TextAttack, which is optional.
"""

from collections.abc import Mapping
from typing import Literal

RECIPES: Mapping[str, str] = {
    "textfooler": "TextFoolerJin2019",
    "textbugger": "TextBuggerLi2018",
    "bae": "BAEGarg2019",
}
"""TextAttack's class for each recipe."""

Outcome = Literal["failed", "succeeded", "skipped"]
"""The attack failed or succeeded, the model was wrong before it, or an error aborted it."""

UNIVERSAL_SENTENCE_ENCODER = "use"
WORDNET = "wordnet"

LONGEST = 512
"""Default maximum of tokens, if the model supports it."""
