"""Sentences that people wrote: two that follow one another in the documentation of packages that are installed anyway.

Nothing is imported of the packages: their files are read. Which sentences there are changes with their versions, which
`constraints.txt` names.
"""

import ast
import random
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

from alignattn.utils.errors import AlignAttnError

NUMERICS, NETWORKS = "numerics", "networks"
PACKAGES: Mapping[str, tuple[str, ...]] = {NUMERICS: ("numpy", "scipy", "sklearn"), NETWORKS: ("networkx",)}
"""Those whose documentation is of a domain; alignattn and torch need them."""

MIN_WORDS, MAX_WORDS = 6, 24
SENTENCE = re.compile(r"[A-Z][A-Za-z0-9 ,;:'\"()-]*[.]")
"""Plain English: no formulas, references or markup."""
SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z])")
PARAGRAPH_END = re.compile(r"\n\s*\n")
NO_PROSE = (">>>", "..", "---", "===", " : ")
"""What examples, directives, headings and lists of parameters have in them."""
TESTS = "tests"


@dataclass(frozen=True)
class Continuation:
    """A row: `label` is 1 where the second sentence follows the first, 0 where it is of another place."""

    first: str
    second: str
    label: int


def documentation_rows(domain: str, count: int, seed: int) -> list[Continuation]:
    """Draw rows of a domain, every other one of which has the sentence that follows.

    Args:
        domain: one of `PACKAGES`.
        count: of the rows.
        seed: of the draw.

    Raises:
        AlignAttnError: if there are fewer.
    """
    pairs = list(_pairs(domain))
    if count > len(pairs):
        raise AlignAttnError(
            f"the documentation has {len(pairs)} pairs of sentences of {domain}, and {count} are asked for: lower "
            "--train_rows or --validation_rows"
        )
    rng = random.Random(f"{domain} {seed}")  # noqa: S311, the rows must be the same for a seed
    rng.shuffle(pairs)
    rows = []
    for number, (first, second) in enumerate(pairs[:count]):
        label = number % 2
        others = pairs[number + 1 :] + pairs[:number]
        rows.append(Continuation(first, second if label else rng.choice(others)[1], label))
    return rows


@cache
def _pairs(domain: str) -> tuple[tuple[str, str], ...]:
    """All pairs of a domain; of those with the same second sentence the first."""
    found: dict[str, str] = {}
    for package in PACKAGES[domain]:
        for paragraph in _paragraphs(package):
            sentences = SENTENCE_END.split(" ".join(paragraph.split()))
            for first, second in pairwise(sentences):
                if _is_plain(first) and _is_plain(second):
                    found.setdefault(second, first)
    return tuple((first, second) for second, first in found.items())


def _is_plain(sentence: str) -> bool:
    return MIN_WORDS <= len(sentence.split()) <= MAX_WORDS and SENTENCE.fullmatch(sentence) is not None


def _paragraphs(package: str) -> Iterator[str]:
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        for path in sorted(Path(folder).rglob("*.py")):
            if TESTS in path.parts:
                continue
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                    for paragraph in PARAGRAPH_END.split(ast.get_docstring(node) or ""):
                        if not any(mark in paragraph for mark in NO_PROSE):
                            yield paragraph
