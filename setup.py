"""What pyproject.toml cannot say: folders of data are packages, the root's configs too, and what an index shows."""

import re
from pathlib import Path

from setuptools import find_namespace_packages, setup

FILES = ""
"""Where an index's readers find the files of this repository, such as `https://github.com/NAME/alignattn/blob/v0.1.0/`."""


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
