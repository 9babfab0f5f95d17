"""A checkpoint's state names every callback of this package that has one."""

import dataclasses

from transformers.trainer_callback import ExportableState

import alignattn.training.early_stopping
import alignattn.training.meter  # noqa: F401  # they define the callbacks
from alignattn.training.saved_state import AlignmentCallbacks

SAVED = AlignmentCallbacks.__module__


def subclasses(kind):
    return {kind}.union(*map(subclasses, kind.__subclasses__()))


def test_every_callback_with_a_state_is_read_back():
    own = {
        kind.__name__
        for kind in subclasses(ExportableState)
        if kind.__module__.startswith("alignattn.") and kind.__module__ != SAVED
    }
    assert own >= {"LossMeter", "EarlyStopping", "JointBest"}
    assert own <= {field.name for field in dataclasses.fields(AlignmentCallbacks)}
