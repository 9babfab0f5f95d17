"""`evaluate.Metric` as this package uses it; importing it takes seconds: import it where scores are computed."""

from typing import Any

import evaluate


class InMemoryMetric(evaluate.Metric):  # type: ignore[misc]  # evaluate has no types
    """A metric that keeps what it is given in memory, and makes no folder in the user's cache, as all others do."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**(options | {"keep_in_memory": True}))

    def _build_data_dir(self) -> str:
        return str(self._data_dir_root)
