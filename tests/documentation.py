"""The documentation pages, and the code in them."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
)


NEEDS = "# needs "
"""In a shell command of a page: what it needs beside a clone, and why no test runs it."""


def blocks(language: str, *pages: Path) -> list[str]:
    """Return the code blocks in a language, of some pages or of all."""
    pattern = re.compile(rf"^```{language}$\n(.*?)^```$", re.DOTALL | re.MULTILINE)
    return [block for page in pages or PAGES for block in pattern.findall(page.read_text(encoding="utf-8"))]


def python_block(word: str) -> str:
    """Return the first block of `docs/python.md` that contains a word."""
    return next(block for block in blocks("python", ROOT / "docs" / "python.md") if word in block)


def command_lines(*pages: Path) -> Iterator[str]:
    """Yield the lines of shell code; a continued line is joined."""
    for block in blocks("bash", *pages):
        yield from block.replace("\\\n", " ").splitlines()
