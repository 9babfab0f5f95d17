"""Progress bars that libraries draw by themselves, one per weight file and per `map` over rows."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def without_library_bars() -> Iterator[None]:
    """Silence the bars of transformers and datasets if they are imported; download bars stay."""
    datasets, logging = sys.modules.get("datasets"), sys.modules.get("transformers.utils.logging")
    had_bars = datasets is not None and not datasets.are_progress_bars_disabled()
    if datasets is not None and had_bars:
        datasets.disable_progress_bars()
    hook = None if logging is None else logging.set_tqdm_hook(_no_bar)
    try:
        yield
    finally:
        if logging is not None:
            logging.set_tqdm_hook(hook)
        if datasets is not None and had_bars:
            datasets.enable_progress_bars()


def _no_bar(factory: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return sys.modules["transformers.utils.logging"].EmptyTqdm(*args, **kwargs)
