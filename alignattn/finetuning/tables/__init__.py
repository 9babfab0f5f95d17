"""The papers' tables that `alignattn reproduce` fills, a YAML file each, whose fields its `table.py` describes."""

from collections.abc import Mapping
from pathlib import Path

TABLES: Mapping[str, Path] = {path.stem: path for path in sorted(Path(__file__).parent.glob("*.yaml"))}
"""Files of tables, by name."""
