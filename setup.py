"""What pyproject.toml cannot say: the configs of the repository's root are a package of the wheel."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["alignattn*"]), "alignattn.configs"],
    package_dir={"alignattn.configs": "configs"},
)
