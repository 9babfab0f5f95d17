"""What pyproject.toml cannot say: the configs of the root are a package of the wheel, and so are folders of data."""

from setuptools import find_namespace_packages, setup

setup(
    packages=[*find_namespace_packages(include=["alignattn*"], exclude=["*.__pycache__"]), "alignattn.configs"],
    package_dir={"alignattn.configs": "configs"},
)
