"""Progress bars that libraries draw by themselves, one per weight file and per `map` over rows."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_library_bars() -> Iterator[None]:
    """Silence the bars of transformers and datasets if they are imported; download bars stay.

    The command line sets `TQDM_DISABLE` for libraries that it imports later.
    """
    datasets, logging = sys.modules.get("datasets"), sys.modules.get("transformers.utils.logging")
    had_bars = datasets is not None and not datasets.are_progress_bars_disabled()
    if datasets is not None and had_bars:
        datasets.disable_progress_bars()
    hook = logging and logging.set_tqdm_hook(lambda factory, args, kwargs: logging.EmptyTqdm(*args, **kwargs))
    try:
        yield
    finally:
        if logging is not None:
            logging.set_tqdm_hook(hook)
        if datasets is not None and had_bars:
            datasets.enable_progress_bars()
