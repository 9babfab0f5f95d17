"""Changes of the process that prevent a silent mistake with patched models, and last only while there is one.

Importing alignattn changes nothing. The first patch that needs a change makes it; `unpatch` or the garbage collection
of the last patched model undoes it. For models that are not patched, each of them does nothing (docs/python.md).
"""

import weakref
from collections.abc import Callable
from typing import Any


class ProcessChange:
    """A change that is in place while any of its holders lives.

    Args:
        make: makes the change, and returns how to undo it.
    """

    def __init__(self, make: Callable[[], Callable[[], None]]) -> None:
        self._make = make
        self._undo: Callable[[], None] | None = None
        self._holders: dict[int, Any] = {}

    def hold(self, holder: Any) -> None:
        """Make the change, unless it is in place, and keep it until `holder` is released or deleted."""
        # Registered first: the garbage collector may delete the last other holder in between.
        if id(holder) not in self._holders:
            self._holders[id(holder)] = finalizer = weakref.finalize(holder, self._release, id(holder))
            finalizer.atexit = False
        if self._undo is None:
            self._undo = self._make()

    def release(self, holder: Any) -> None:
        """Undo the change, unless other holders live."""
        if (finalizer := self._holders.get(id(holder))) is not None:
            finalizer()

    def _release(self, key: int) -> None:
        self._holders.pop(key, None)
        if not self._holders and self._undo is not None:
            undo, self._undo = self._undo, None
            undo()


def replace_attributes(replacements: dict[tuple[type, str], Any]) -> Callable[[], None]:
    """Replace attributes of classes, given by class and name, and return how to restore them."""
    before = {(owner, name): vars(owner)[name] for owner, name in replacements}
    for (owner, name), value in replacements.items():
        setattr(owner, name, value)

    def restore() -> None:
        for (owner, name), value in before.items():
            # Another library may have wrapped ours since; without a patched model, ours changes nothing.
            if vars(owner).get(name) is replacements[owner, name]:
                setattr(owner, name, value)

    return restore
