"""A plugin of pytest, `-p deprecations`: a deprecation that alignattn's own code causes is an error.

Python attributes a warning to the module that calls what is deprecated. transformers and datasets log some of theirs
instead, without saying who called: the first of each message is an error, too.
"""

import logging
from typing import Any

OWN_CODE = r"alignattn\."


def pytest_configure(config: Any) -> None:
    for category in ("DeprecationWarning", "PendingDeprecationWarning", "FutureWarning"):
        config.addinivalue_line("filterwarnings", f"error::{category}:{OWN_CODE}")
    for library in ("transformers", "datasets"):
        logging.getLogger(library).addHandler(Refusing())


class Refusing(logging.Handler):
    """Raises where a library logs that something is deprecated."""

    def emit(self, record: logging.LogRecord) -> None:
        if "deprecated" in record.getMessage():
            raise DeprecationWarning(record.getMessage())
