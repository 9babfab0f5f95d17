"""What pyproject.toml cannot say: folders of data are packages, the root's configs too, and what an index shows."""

import re
import tomllib
from pathlib import Path

from setuptools import find_namespace_packages, setup

URLS = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]["urls"]
FILES = f"{URLS['Repository']}/blob/main/" if "Repository" in URLS else ""
"""Where an index's readers find the files of this repository."""


def index_readme() -> str:
    """Return README.md as an index shows it, without the files beside it: links lead to `FILES`, or are plain text."""
    text = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    text = re.sub(r"(?m)^!\[[^\]]*\]\((?!https?:)[^)]*\)\n", "", text)
    return re.sub(r"\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", rf"[\1]({FILES}\2)" if FILES else r"\1", text)


setup(
    packages=[*find_namespace_packages(include=["alignattn*"], exclude=["*.__pycache__"]), "alignattn.configs"],
    package_dir={"alignattn.configs": "configs"},
    long_description=index_readme(),
    long_description_content_type="text/markdown",
)
