"""A checkpoint's state file: its schema, because transformers would unpack anything, and a callback's part of it."""

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, TypeVar

from annotated_types import Ge, Gt, Le, MaxLen
from pydantic import BeforeValidator
from transformers import TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState

MAX_COUNT = 2**63 - 1


def _in_range(value: Any) -> Any:
    # An integer of hundreds of digits is accepted as a float, but cannot be added to one.
    if isinstance(value, int) and abs(value) > MAX_COUNT:
        raise ValueError("it is too large")
    return value


Number = Annotated[float, BeforeValidator(_in_range)]
NotNegative = Annotated[Number, Ge(0)]
Positive = Annotated[Number, Gt(0)]
Count = Annotated[int, Ge(0), Le(MAX_COUNT)]
PositiveCount = Annotated[int, Ge(1), Le(MAX_COUNT)]
Nothing = Annotated[dict[str, Any], MaxLen(0)]

_WHOLE: dict[str, Any] = {"extra": "forbid"}
"""pydantic's setting that refuses unknown names."""


A = TypeVar("A")
B = TypeVar("B")


@dataclass
class CallbackState(Generic[A, B]):
    """The result of a callback's method `state`: its arguments and its attributes."""

    __pydantic_config__: ClassVar = _WHOLE

    args: A
    attributes: B


@dataclass
class Meter:
    """The attributes of `LossMeter`."""

    __pydantic_config__: ClassVar = _WHOLE

    interval: dict[str, Number]
    interval_steps: NotNegative
    run_loss: Number
    run_steps: NotNegative
    num_processes: PositiveCount


@dataclass
class PatienceArguments:
    """The arguments of `EarlyStopping`."""

    __pydantic_config__: ClassVar = _WHOLE

    early_stopping_patience: PositiveCount
    early_stopping_threshold: NotNegative


@dataclass
class Patience:
    """The attributes of `EarlyStopping`."""

    __pydantic_config__: ClassVar = _WHOLE

    early_stopping_patience_counter: Count


@dataclass
class JointPatience(Patience):
    """The attributes of `JointBest`: also the best of each of its metrics."""

    best: dict[str, Number]


@dataclass
class Control(TrainerControl):
    """The arguments of `TrainerControl`."""

    __pydantic_config__: ClassVar = _WHOLE


@dataclass
class PlainCallbacks:
    """The callbacks of the plain Trainer that save their state."""

    __pydantic_config__: ClassVar = _WHOLE

    TrainerControl: CallbackState[Control, Nothing]


@dataclass
class AlignmentCallbacks(PlainCallbacks):
    """The callbacks of a Trainer of this package that save their state."""

    LossMeter: CallbackState[Nothing, Meter]
    EarlyStopping: CallbackState[PatienceArguments, Patience] | None = None
    JointBest: CallbackState[Nothing, JointPatience] | None = None


@dataclass
class SavedState(TrainerState):
    """The state of transformers' Trainer, with the fields that a resumption requires."""

    __pydantic_config__: ClassVar = _WHOLE

    epoch: NotNegative = field(kw_only=True)
    global_step: PositiveCount = field(kw_only=True)
    max_steps: PositiveCount = field(kw_only=True)
    logging_steps: Positive = field(kw_only=True)  # type: ignore[assignment]
    eval_steps: Positive = field(kw_only=True)  # type: ignore[assignment]
    save_steps: Positive = field(kw_only=True)  # type: ignore[assignment]
    train_batch_size: PositiveCount = field(kw_only=True)
    num_input_tokens_seen: Count = 0
    total_flos: NotNegative = field(kw_only=True)
    log_history: list[dict[str, Number]] = field(kw_only=True)
    best_metric: Number | None = field(kw_only=True)
    best_model_checkpoint: str | None = field(kw_only=True)
    stateful_callbacks: PlainCallbacks = field(kw_only=True)  # type: ignore[assignment]  # as they are written

    def __post_init__(self) -> None:
        """Keep the values as read: transformers would fill them from its callbacks."""


@dataclass
class SavedAlignmentState(SavedState):
    """The state of a Trainer of this package."""

    stateful_callbacks: AlignmentCallbacks = field(kw_only=True)


def restore(callback: ExportableState, state: TrainerState, initial: ExportableState) -> None:
    """Give a callback the state that a checkpoint saved of it, or that of `initial` when training starts anew."""
    callbacks: Any = state.stateful_callbacks or {}
    saved = callbacks.get(type(callback).__name__) if state.global_step else None
    # A copy, because the Trainer writes the state of the checkpoint again.
    for name, value in deepcopy((saved or initial.state())["attributes"]).items():
        setattr(callback, name, value)
